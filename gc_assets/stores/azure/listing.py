"""List a container in parallel, with prefixes as independent tasks.

Azure continues a listing only at its own markers, so a task cannot start at an arbitrary key. A
task lists either a complete directory tree, or only the objects directly in a directory whose
subdirectories have tasks of their own. A directory created after planning contains only new
objects, which a listing need not return. No result depends on the order of keys, because Azure
documents it only in part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gc_assets.azure.bucket import AzureBucket, is_addressable
from gc_assets.azure.pages import ListedPage
from gc_assets.buckets.protocol import Page
from gc_assets.core.errors import StoreError
from gc_assets.stores.conditional.listing import Range, RowBuffer
from gc_assets.stores.protocol import RESERVED_PREFIX, ListingBatch, ListingTask, Problem

TASKS_PER_WORKER: Final = 4
# The maximum number of requests that look for directories.
MAX_PLANNING_REQUESTS: Final = 64
# A directory whose direct entries need more pages is not divided.
_MAX_PAGES: Final = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a listing.

    Attributes:
        directory: The prefix, relative to the storage. Empty, or ends in `/`.
        is_whole: True to list everything under it, False to list only its direct objects.
        marker: The marker at which to continue an earlier listing of the part.
    """

    directory: str
    is_whole: bool
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class AzureListingTask:
    """Parts of a storage's listing.

    Versions are always requested, because only a response shows whether the account keeps them.
    Blobs written before versioning was enabled have no version.
    """

    bucket: AzureBucket
    parts: tuple[Part, ...]
    page_keys: int

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """List as `ListingTask.run` specifies.

        At least one page is listed, even if it exceeds the budget.
        A part that cannot be read is a problem of kind `unreadable`.
        """
        rows, pending, leftover, listed = RowBuffer(), list(self.parts), list[Part](), 0
        while pending and (listed == 0 or listed < budget):
            part = pending.pop()
            directories = 0
            try:
                for found in self._list(part):
                    listed += max(1, len(found.page.keys))
                    directories += found.directories
                    rows.add(self._select_addressable(found.page, rows), self.bucket.prefix, Range())
                    if rows.is_full:
                        yield rows.take()
                    if listed >= budget and found.marker is not None:
                        leftover.append(replace(part, marker=found.marker))
                        break
            except (OSError, StoreError) as error:
                text = (error.strerror if isinstance(error, OSError) else None) or str(error)
                rows.problems.append(Problem(part.directory, "unreadable", f"the keys under this prefix: {text}"))
            if directories:
                kept = f"{directories:,} directory entries without content under this prefix: kept"
                rows.problems.append(Problem(part.directory, "special", kept))
        yield rows.take(tuple(replace(self, parts=(part,)) for part in [*leftover, *pending]))

    def _list(self, part: Part) -> Iterator[ListedPage]:
        return self.bucket.list_from(
            part.directory,
            delimiter="" if part.is_whole else "/",
            versions=True,
            marker=part.marker,
            page_keys=self.page_keys,
        )

    def _select_addressable(self, page: Page, rows: RowBuffer) -> Page:
        """Return the page without the keys that cannot be used in a request.

        Such keys are reported as problems, and their objects are kept.
        """
        start = len(self.bucket.prefix.encode())
        odd = [key for key in page.keys if b"/." in key or b"\\." in key or key[start:].startswith(b".")]
        unnamed = {key for key in odd if not is_addressable(key.decode())}
        if not unnamed:
            return page
        kept = "a component of the key is `.` or `..`, so no request can name it: kept"
        rows.problems += [Problem(key[start:].decode(), "special", kept) for key in sorted(unnamed)]
        return page.select([number for number, key in enumerate(page.keys) if key not in unnamed])


def plan_listing(bucket: AzureBucket, parallelism: int, split_keys: Sequence[str] | None, page_keys: int) -> Sequence[ListingTask]:
    """Return tasks that together list the storage once, as `Store.plan_listing` specifies.

    `split_keys` only shows whether the storage was small at the last listing. A small storage is
    one task. Otherwise prefixes divide the work.
    """
    is_small = split_keys is not None and len(split_keys) <= 1
    wanted = 1 if is_small else TASKS_PER_WORKER * parallelism
    try:
        parts = _divide(bucket, wanted, page_keys)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
    task = AzureListingTask(bucket, (), page_keys)
    return [replace(task, parts=tuple(parts[start::wanted])) for start in range(min(wanted, len(parts)))]


def _divide(bucket: AzureBucket, wanted: int, page_keys: int) -> list[Part]:
    """Divide the storage into parts, level by level from the root, until there are enough.

    The root is always divided, so that the collector's own prefix is not listed.
    """
    parts, level, requests = list[Part](), [""], 0
    while level:
        children: list[str] = []
        for number, directory in enumerate(level):
            is_enough = directory != "" and (
                len(parts) + len(children) + len(level) - number >= wanted or requests >= MAX_PLANNING_REQUESTS
            )
            found = None if is_enough else _list_directories(bucket, directory, page_keys)
            requests += 0 if is_enough else 1
            if not found:  # not divided, or no subdirectories
                parts.append(Part(directory, is_whole=found is None))
                continue
            parts.append(Part(directory, is_whole=False))
            children += [child for child in found if child != RESERVED_PREFIX]
        level = children
    return parts


def _list_directories(bucket: AzureBucket, directory: str, page_keys: int) -> list[str] | None:
    """Return the direct subdirectories, or None if the directory has too many direct entries."""
    found: list[str] = []
    for number, listed in enumerate(bucket.list_from(directory, delimiter="/", page_keys=page_keys), 1):
        found += [key.decode()[len(bucket.prefix) :] for key in listed.page.common]
        if listed.marker is not None and number >= _MAX_PAGES:
            return None
    return found
