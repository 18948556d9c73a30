"""Parallel listing of an Azure container, in which each task lists some prefixes.

On Azure, a task cannot start at an arbitrary key, because a listing only continues at markers that
Azure itself has returned. A task therefore lists a complete directory tree. If the subdirectories
have tasks of their own, it only lists the objects directly in a directory.

The listing may miss a directory that is created after the tasks were planned. This is safe, because
such a directory contains only new objects, which a listing need not return. The tasks do not rely
on the order of keys, since Azure documents it only in part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gc_assets.azure.bucket import AzureBucket
from gc_assets.azure.pages import ListedPage
from gc_assets.buckets.protocol import Page
from gc_assets.core.errors import StoreError, reason_of
from gc_assets.core.urls import is_addressable
from gc_assets.stores.conditional.listing import Range, RowBuffer
from gc_assets.stores.listing import NOT_IN_URLS
from gc_assets.stores.protocol import RESERVED_PREFIX, ListingBatch, ListingTask, Problem

TASKS_PER_WORKER: Final = 4
# At most this many requests are sent in order to find directories.
MAX_PLANNING_REQUESTS: Final = 64
# A directory is not divided if listing its direct entries takes more pages.
_MAX_PAGES: Final = 4


@dataclass(frozen=True, slots=True)
class ListingPart:
    """A part of a listing.

    Attributes:
        directory: The prefix, relative to the storage. It is empty or ends in `/`.
        is_whole: Whether to list everything under the prefix, or only objects directly in it.
        marker: Azure's marker at which to continue, if the beginning of this part was already
            listed.
    """

    directory: str
    is_whole: bool
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class AzureListingTask:
    """A `ListingTask` for some parts of a container.

    Versions are always requested, because only the response shows if the account has them. Blobs
    that are older than its versioning do not have a version.
    """

    bucket: AzureBucket
    parts: tuple[ListingPart, ...]
    page_keys: int

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """List the parts of the container (see `ListingTask.run`).

        Even if the first page exceeds the budget, it is listed, so that every round makes progress.
        If a part cannot be read, a problem of kind `unreadable` is reported.
        """
        rows, pending, leftover, listed = RowBuffer(), list(self.parts), list[ListingPart](), 0
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
                rows.problems.append(Problem(part.directory, "unreadable", f"the keys under this prefix: {reason_of(error)}"))
            if directories:
                kept = f"{directories:,} directory entries without content under this prefix: kept"
                rows.problems.append(Problem(part.directory, "special", kept))
        yield rows.take(tuple(replace(self, parts=(part,)) for part in [*leftover, *pending]))

    def _list(self, part: ListingPart) -> Iterator[ListedPage]:
        return self.bucket.list_from(
            part.directory,
            delimiter="" if part.is_whole else "/",
            versions=True,
            marker=part.marker,
            page_keys=self.page_keys,
        )

    def _select_addressable(self, page: Page, rows: RowBuffer) -> Page:
        """Report objects with keys that URLs cannot contain, and remove them from the page."""
        start = len(self.bucket.prefix.encode())
        odd = [key for key in page.keys if b"/." in key or b"\\." in key or key[start:].startswith(b".")]
        unnamed = {key for key in odd if not is_addressable(key.decode())}
        if not unnamed:
            return page
        rows.problems += [Problem(key[start:].decode(), "special", NOT_IN_URLS) for key in sorted(unnamed)]
        return page.select([number for number, key in enumerate(page.keys) if key not in unnamed])


def plan_listing(bucket: AzureBucket, parallelism: int, split_keys: Sequence[str] | None, page_keys: int) -> Sequence[ListingTask]:
    """Divide the listing into tasks (see `Store.plan_listing`).

    If the storage was small when it was last listed, there is a single task. `split_keys` are only
    used to detect this, because the work is divided by prefix.
    """
    is_small = split_keys is not None and len(split_keys) <= 1
    wanted = 1 if is_small else TASKS_PER_WORKER * parallelism
    try:
        parts = _divide(bucket, wanted, page_keys)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
    task = AzureListingTask(bucket, (), page_keys)
    return [replace(task, parts=tuple(parts[start::wanted])) for start in range(min(wanted, len(parts)))]


def _divide(bucket: AzureBucket, wanted: int, page_keys: int) -> list[ListingPart]:
    """Divide the storage into parts, level by level, until there are enough of them.

    The root is always divided, because the prefix in it that gc-assets reserves for its own objects
    must not be listed.
    """
    parts, level, requests = list[ListingPart](), [""], 0
    while level:
        children: list[str] = []
        for number, directory in enumerate(level):
            is_enough = directory != "" and (
                len(parts) + len(children) + len(level) - number >= wanted or requests >= MAX_PLANNING_REQUESTS
            )
            found = None if is_enough else _list_directories(bucket, directory, page_keys)
            requests += 0 if is_enough else 1
            if not found:  # not divided, or no subdirectories
                parts.append(ListingPart(directory, is_whole=found is None))
                continue
            parts.append(ListingPart(directory, is_whole=False))
            children += [child for child in found if child != RESERVED_PREFIX]
        level = children
    return parts


def _list_directories(bucket: AzureBucket, directory: str, page_keys: int) -> list[str] | None:
    """List a directory's subdirectories. Returns None if it has too many entries."""
    found: list[str] = []
    for number, listed in enumerate(bucket.list_from(directory, delimiter="/", page_keys=page_keys), 1):
        found += [key.decode()[len(bucket.prefix) :] for key in listed.page.common]
        if listed.marker is not None and number >= _MAX_PAGES:
            return None
    return found
