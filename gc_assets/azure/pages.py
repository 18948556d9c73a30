"""List a container page by page.

Azure continues a listing at its own markers, and documents the order of keys only in part. The
functions therefore do not rely on the order. If a page repeats keys of the previous one, the
listing stops with an error.

Hadoop and hierarchical namespaces create entries for directories, which are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from azure.storage.blob import BlobPrefix, ContainerClient

from gc_assets.azure.client import translate_errors
from gc_assets.buckets.protocol import Page
from gc_assets.core.errors import StoreError

# A page has at most this many rows (REST API reference, List Blobs).
PAGE_KEYS: Final = 5000
_DIRECTORY: Final = "hdi_isfolder"


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of a listing.

    Attributes:
        page: The blobs.
        marker: The marker of the next page, or None if this is the last one.
        directories: The number of directory entries that were left out.
    """

    page: Page
    marker: str | None
    directories: int

    def select_after(self, start: bytes) -> Page:
        """Return the page without the keys up to and including `start`."""
        if not start:
            return self.page
        selected = self.page.select([number for number, key in enumerate(self.page.keys) if key > start])
        return replace(selected, common=[prefix for prefix in selected.common if prefix > start])


def list_pages(
    container: ContainerClient,
    location: str,
    prefix: str,
    *,
    delimiter: str = "",
    versions: bool = False,
    marker: str | None = None,
    page_keys: int = PAGE_KEYS,
) -> Iterator[ListedPage]:
    """List blobs, page by page.

    Args:
        container: The client for the container.
        location: The address of the container for error messages, ending in `/`.
        prefix: List only blobs whose full names begin with this prefix.
        delimiter: Summarize names that contain it after the prefix as common prefixes.
        versions: Whether to list all versions.
        marker: The marker at which to continue an earlier listing.
        page_keys: The maximum number of rows in a page.

    Raises:
        OSError: If the server denies a request, or does not respond to any attempt.
        StoreError: If the pages are inconsistent.
    """
    location = f"{location}{prefix}"
    include = ["metadata", "versions"] if versions else ["metadata"]
    with translate_errors(location):
        options: dict[str, Any] = {"name_starts_with": prefix or None, "include": include, "results_per_page": page_keys}
        blobs = container.walk_blobs(delimiter=delimiter, **options) if delimiter else container.list_blobs(**options)
        pages = blobs.by_page(continuation_token=marker)
        last: bytes | None = None
        while True:
            items = list(next(pages, ()))
            listed = _parse_page(items, getattr(pages, "continuation_token", None), versions)
            _require_progress(listed, last, marker, prefix.encode(), location)
            last, marker = listed.page.last or last, listed.marker
            yield listed
            if marker is None:
                return


def count_soft_deleted(container: ContainerClient, location: str, prefix: str, max_pages: int) -> tuple[int, int, bool]:
    """Count soft-deleted blobs under a prefix, including versions and snapshots.

    Snapshots are included because an account without versions keeps an overwritten blob as a
    soft-deleted snapshot.

    Returns:
        The number of blobs, their total size in bytes, and whether all pages were read.
    """
    sizes = list[int]()
    with translate_errors(location):
        include = ["deleted", "versions", "snapshots"]
        pages = container.list_blobs(name_starts_with=prefix or None, include=include, results_per_page=PAGE_KEYS).by_page()
        for page in islice(pages, max_pages):
            sizes += [blob.size or 0 for blob in page if blob.deleted]
    return len(sizes), sum(sizes), not getattr(pages, "continuation_token", None)


def _parse_page(items: list[Any], marker: str | None, versions: bool) -> ListedPage:
    blobs = [item for item in items if not isinstance(item, BlobPrefix)]
    files = [blob for blob in blobs if (blob.metadata or {}).get(_DIRECTORY, "").lower() != "true"]
    page = Page(
        [blob.name.encode() for blob in files],
        [blob.size for blob in files],
        [blob.last_modified.isoformat() for blob in files],
        [blob.etag.strip('"') for blob in files],
        [getattr(blob.blob_tier, "value", blob.blob_tier) for blob in files],
        [item.name.encode() for item in items if isinstance(item, BlobPrefix)],
        *(_version_columns(files) if versions else ([], [], [])),
    )
    return ListedPage(page, marker or None, len(blobs) - len(files))


def _version_columns(files: list[Any]) -> tuple[list[str], list[bool], list[bool]]:
    """Build the columns `version_ids`, `latest` and `markers`."""
    latest = [bool(blob.is_current_version or not blob.version_id) for blob in files]
    return [blob.version_id or "" for blob in files], latest, [False] * len(files)


def _require_progress(listed: ListedPage, last: bytes | None, marker: str | None, prefix: bytes, location: str) -> None:
    """Check that a page continues after the previous one, and that its keys have the prefix.

    Raises:
        StoreError: If the page repeats keys, goes back, or contains keys without the prefix.
    """
    names = [*listed.page.keys, *listed.page.common]
    if any(not name.startswith(prefix) for name in names):
        raise StoreError(f"{location}: a page has keys outside the requested prefix; this server does not follow the API of Azure")
    if marker is not None and listed.marker == marker:
        raise StoreError(f"{location}: two pages have the same marker, so the listing would not end")
    first = min(names, default=None)
    continues = bool(listed.page.version_ids) and first == last  # with further versions of the key
    if last is not None and first is not None and not continues and not _may_follow(first, last):
        raise StoreError(f"{location}: a page begins with {first!r}, but the last one ends with {last!r}; expected later keys")


def _may_follow(first: bytes, last: bytes) -> bool:
    """Check if a key can follow another one in a listing.

    Servers sort keys by bytes, by UTF-16 code units, or by path components.
    """
    one, other = first.decode(errors="surrogateescape"), last.decode(errors="surrogateescape")
    units = one.encode("utf-16-be", "surrogatepass") > other.encode("utf-16-be", "surrogatepass")
    return first > last or units or one.split("/") > other.split("/")
