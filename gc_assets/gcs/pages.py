"""List a bucket page by page, with the method Objects: list.

The client library sends the requests. The JSON of a page is parsed here, because the library would
create an object for every key. Keys are returned byte for byte.

A page is accepted only if it continues after the previous page. If a server, cache or proxy repeats
or reorders pages, the listing stops with an error.

Source: Cloud Storage JSON API, Objects: list (lexicographic order, `startOffset`, `pageToken`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, Final

from gc_assets.buckets.protocol import Page, Role
from gc_assets.config.gcs import GcsConfig
from gc_assets.core.errors import StoreError
from gc_assets.gcs.client import call, get_client

PAGE_KEYS: Final = 1_000
_ITEM: Final = "name,generation,metageneration,size,updated,storageClass"
_FIELDS: Final = f"items({_ITEM},timeDeleted),prefixes,nextPageToken"


def list_objects(
    settings: GcsConfig,
    bucket: str,
    prefix: str,
    *,
    after: bytes = b"",
    delimiter: str = "",
    role: Role = "read",
    page_keys: int = PAGE_KEYS,
) -> Iterator[Page]:
    """List live objects in the byte order of their keys, page by page.

    Args:
        settings: How to connect to the server.
        bucket: The name of the bucket.
        prefix: List only keys that begin with this prefix.
        after: List only keys that come after this one.
        delimiter: Summarize keys that contain it after the prefix as common prefixes.
        role: The role whose credentials are used.
        page_keys: The maximum number of keys in a page.

    Raises:
        OSError: If a page cannot be read.
        StoreError: If the pages are inconsistent.
    """
    location, last, token = f"gs://{bucket}/{prefix}", after, None
    while True:
        document, token = _fetch_page(settings, bucket, prefix, after, delimiter, role, page_keys, token)
        page = parse_page(document, location)
        page = _skip_start(page, after) if last == after else page
        _require_order(page, last, location)
        page.require_prefix(prefix.encode(), location)
        yield page
        if token is None:
            return
        last = page.last if page.last is not None else last


def _fetch_page(
    settings: GcsConfig, bucket: str, prefix: str, after: bytes, delimiter: str, role: Role, page_keys: int, token: str | None
) -> tuple[dict[str, Any], str | None]:
    """Request a page. Returns its JSON, and the token of the next page."""

    def request() -> tuple[dict[str, Any], str | None]:
        found = get_client(settings, role).list_blobs(
            get_client(settings, role).bucket(bucket, user_project=settings.user_project),
            page_token=token,
            page_size=page_keys,
            prefix=prefix or None,
            delimiter=delimiter or None,
            start_offset=after.decode() or None,
            fields=_FIELDS,
            retry=None,
        )
        page = next(found.pages, None)
        return (page.raw_page if page is not None else {}), found.next_page_token

    return call(f"gs://{bucket}/{prefix}", request)


def list_generations(settings: GcsConfig, bucket: str, key: str, role: Role) -> list[tuple[str, datetime]]:
    """List the generations of a key with their creation times, oldest first."""

    def request() -> list[tuple[int, datetime]]:
        source = get_client(settings, role).bucket(bucket, user_project=settings.user_project)
        # The end offset is the next possible name, so that longer names are not listed.
        listed = get_client(settings, role).list_blobs(source, prefix=key, end_offset=f"{key}\0", versions=True, retry=None)
        return sorted((int(blob.generation), blob.time_created) for blob in listed if blob.name == key)

    return [(str(generation), created) for generation, created in call(f"gs://{bucket}/{key}", request)]


def count_soft_deleted(settings: GcsConfig, bucket: str, prefix: str, max_pages: int) -> tuple[int, int, bool]:
    """Count soft-deleted objects under a prefix.

    Returns:
        The number of objects, their total size in bytes, and whether all pages were read.
    """

    def request() -> tuple[int, int, bool]:
        source = get_client(settings, "read").bucket(bucket, user_project=settings.user_project)
        listed = get_client(settings, "read").list_blobs(
            source, prefix=prefix or None, soft_deleted=True, fields="items(size),nextPageToken", page_size=PAGE_KEYS, retry=None
        )
        sizes = [int(item["size"]) for page in islice(listed.pages, max_pages) for item in page.raw_page.get("items", [])]
        return len(sizes), sum(sizes), listed.next_page_token is None

    return call(f"gs://{bucket}/{prefix}", request)


def require_success(answer: Any) -> None:
    """Raise an error if a request of the JSON API failed."""
    if not answer.ok:
        from google.cloud.exceptions import from_http_response

        raise from_http_response(answer)


def parse_page(document: dict[str, Any], location: str) -> Page:
    """Convert the JSON of a page to columns.

    Raises:
        StoreError: If an entry cannot be parsed.
    """
    page = Page([], [], [], [], [], [], [], [], [])
    try:
        for item in document.get("items", []):
            page.keys.append(item["name"].encode())
            page.sizes.append(int(item["size"]))
            page.modified.append(item["updated"])
            page.etags.append(server_etag(item))
            page.classes.append(item.get("storageClass"))
        page.common.extend(prefix.encode() for prefix in document.get("prefixes", []))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        after = f"the entry after {page.keys[-1]!r}" if page.keys else "the first entry"
        raise StoreError(
            f"{location}: cannot parse {after} of a page ({error!r}); this server does not follow the Google Cloud Storage API"
        ) from error
    return page


def server_etag(resource: dict[str, Any]) -> str:
    """Build the token of an object, from its generation and metageneration."""
    return f"{int(resource['generation'])}.{int(resource['metageneration'])}"


def _skip_start(page: Page, after: bytes) -> Page:
    """Remove the key `after` itself, because `startOffset` includes it."""
    if not after or page.keys[:1] != [after]:
        return page
    return page.select(range(1, len(page.keys)))


def _require_order(page: Page, last: bytes, location: str) -> None:
    """Check that the keys of a page are in order and follow the previous page.

    Raises:
        StoreError: If the page repeats keys or is not in order.
    """
    for names in (page.keys, page.common):
        if names and not names[0] > last and not (names is page.common and last.startswith(names[0])):
            raise StoreError(
                f"{location}: a page starts with {names[0]!r}, but the previous page ended with {last!r}. "
                "A proxy or cache may repeat answers; connect to the server directly"
            )
        if not _is_growing(names):
            raise StoreError(
                f"{location}: the keys of a page are not in byte order; this server does not follow the Google Cloud Storage API"
            )


def _is_growing(names: Sequence[bytes]) -> bool:
    return all(one < other for one, other in pairwise(names))
