"""Parallel listing of a bucket, in which each task lists some ranges of keys.

A range consists of the keys between two given keys, in byte order. Ranges are split at keys that an
earlier listing has returned. Before the first listing, a few requests find directories, at which
the ranges are split instead. Every object is always in exactly one range, even if other programs
write to the bucket during the listing.

In a bucket with versions, the newest version of each key is listed, with its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, overload

import numpy as np
import pyarrow as pa

from gc_assets.buckets.identity import build_identities
from gc_assets.buckets.protocol import ConditionalBucket, Page
from gc_assets.core.errors import StoreError, reason_of
from gc_assets.core.printable import decode_name, is_utf8
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.protocol import LISTING_SOURCE, RESERVED_PREFIX, ListingBatch, ListingTask, Problem

TASKS_PER_WORKER: Final = 4
# At most this many requests are sent in order to find directories.
MAX_PLANNING_REQUESTS: Final = 64
BATCH_ROWS: Final = 65_536
# After this number of keys, one is kept as a split key for the next listing. With fewer keys,
# starting a task would take longer than running it.
SPLIT_KEY_EVERY: Final = 10_000
_RESERVED: Final = RESERVED_PREFIX.encode()
# Most keys under the reserved prefix sort before this one and need not be listed. The others are
# skipped one by one.
_AFTER_RESERVED: Final = _RESERVED + b"~"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of keys in byte order. Keys are relative to the storage.

    Attributes:
        after: The range begins after this key.
        end: The last key of the range, or None if the range has no end.
    """

    after: bytes = b""
    end: bytes | None = None

    def split(self, keys: Sequence[bytes]) -> list[Range]:
        """Split the range after each of the `keys`. Keys outside of the range are ignored."""
        inside = sorted({key for key in keys if key > self.after and (self.end is None or key < self.end)})
        return [Range(after, end) for after, end in pairwise([self.after, *inside, self.end]) if after is not None]


@dataclass(frozen=True, slots=True)
class BucketListingTask:
    """Lists ranges of keys in a bucket (a `ListingTask`).

    Attributes:
        bucket: The storage.
        ranges: The ranges to list.
        parallelism: Maximum number of parts into which the rest of a range is split.
        versions: Whether the bucket has versions.
    """

    bucket: ConditionalBucket
    ranges: tuple[Range, ...]
    parallelism: int
    versions: bool

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """List the ranges of keys (see `ListingTask.run`).

        Even if the first page exceeds the budget, it is listed, so that every round makes progress.
        If a range cannot be read, a problem of kind `unreadable` is reported.
        """
        rows = RowBuffer()
        pending, leftover, listed = list(self.ranges), list[Range](), 0
        while pending and (listed == 0 or listed < budget):
            key_range = pending.pop()
            read_to = key_range.after
            try:
                for page in _list_pages(self.bucket, key_range, self.versions):
                    listed += len(page.keys)
                    split_key = self._find_split(page, key_range) if listed >= budget else None
                    rows.add(page, self.bucket.prefix, key_range if split_key is None else replace(key_range, end=split_key))
                    if rows.is_full:
                        yield rows.take()
                    if split_key is not None:
                        leftover += self._split_rest(Range(split_key, key_range.end))
                        break
                    last = _relative_key(page.last, self.bucket.prefix)
                    if last is None or (key_range.end is not None and last > key_range.end):
                        break
                    read_to = last
            except (OSError, StoreError, UnicodeDecodeError) as error:
                rows.problems.append(Problem(decode_name(read_to), "unreadable", f"the keys after this one: {reason_of(error)}"))
        yield rows.take(_distribute(self, [*leftover, *pending], TASKS_PER_WORKER * self.parallelism))

    def _find_split(self, page: Page, key_range: Range) -> bytes | None:
        """Find a key at which a range of keys can be split.

        The result is the last key in the range whose versions are all on the page.
        """
        complete = [key for key in page.keys if key != page.last] if page.version_ids else page.keys
        split_key = _relative_key(complete[-1], self.bucket.prefix) if complete else None
        # The key must be after the start of the range, because Ceph 16 lists the versions of the
        # marker key again.
        return (
            split_key
            if split_key is not None and split_key > key_range.after and (key_range.end is None or split_key < key_range.end)
            else None
        )

    def _split_rest(self, rest: Range) -> list[Range]:
        """Split the rest of a range at the directories that follow its first key on each level.

        If the directories cannot be listed, the range is not split. If the keys of the range are
        unreadable too, the task that lists the range reports the problem.
        """
        split_keys: list[bytes] = []
        parents = rest.after.split(b"/")[:-1]
        try:
            for depth in range(len(parents) + 1):
                directory = b"".join(name + b"/" for name in parents[:depth])
                # In byte order, "0" follows "/". Therefore this key follows everything in the
                # directory that leads to the first key.
                after = directory + parents[depth] + b"0" if depth < len(parents) else rest.after
                split_keys += [
                    _relative_key(key, self.bucket.prefix) for key in next(_list_directories(self.bucket, directory, after)).common
                ]
        except (OSError, StoreError, UnicodeDecodeError):
            return [rest]
        return rest.split(_pick_evenly(sorted(set(split_keys)), self.parallelism))


def plan_listing(bucket: ConditionalBucket, parallelism: int, split_keys: Sequence[str] | None = None) -> Sequence[ListingTask]:
    """Divide the listing into tasks (see `Store.plan_listing`).

    If the storage was small when it was last listed, there is a single task.
    """
    try:
        versions = bucket.versioning("read").has_versions
        keys = _find_directories(bucket, parallelism) if split_keys is None else sorted(cut.encode() for cut in split_keys)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
    split_at = _pick_evenly(keys, TASKS_PER_WORKER * parallelism)
    ranges = [*Range(end=_RESERVED).split(split_at), *Range(after=_AFTER_RESERVED).split(split_at)]
    task = BucketListingTask(bucket, (), parallelism, versions)
    return _distribute(task, ranges, len(ranges) if len(keys) > (0 if split_keys is None else 1) else 1)


def _find_directories(bucket: ConditionalBucket, parallelism: int) -> list[bytes]:
    """Find directories at which the listing can be split, in order.

    Further levels of directories are listed until there are enough directories for all workers.
    Only the first page of each directory is requested.
    """
    level, found, requests = [b""], list[bytes](), 0
    while level and len(found) < TASKS_PER_WORKER * parallelism and requests < MAX_PLANNING_REQUESTS:
        children: list[bytes] = []
        for directory in level[: MAX_PLANNING_REQUESTS - requests]:
            requests += 1
            page = next(_list_directories(bucket, directory, b""))
            children += [_relative_key(key, bucket.prefix) for key in page.common]
        children = [key for key in children if key != _RESERVED]
        found += children
        level = _pick_evenly(children, MAX_PLANNING_REQUESTS)
    return sorted(found)


def _pick_evenly(keys: Sequence[bytes], limit: int) -> list[bytes]:
    """Select at most `limit` keys that are evenly spread."""
    if len(keys) <= limit:
        return list(keys)
    return [keys[number] for number in np.linspace(0, len(keys) - 1, limit).astype(int)]


def _list_directories(bucket: ConditionalBucket, directory: bytes, after: bytes) -> Iterator[Page]:
    return bucket.list_pages(directory.decode(), after, delimiter="/")


def _list_pages(bucket: ConditionalBucket, key_range: Range, versions: bool) -> Iterator[Page]:
    """Request the pages of a range of keys.

    Requests cannot contain an end key. To avoid listing many keys after the end of the range, they
    contain the prefix that all keys of the range have in common.
    """
    common = common_prefix(key_range.after, key_range.end) if key_range.end is not None else ""
    return bucket.list_pages(common, key_range.after, versions=versions)


def common_prefix(one: bytes, other: bytes) -> str:
    """Return the longest common prefix of two keys that does not end inside a UTF-8 character."""
    length = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
    try:
        return one[:length].decode()
    except UnicodeDecodeError as error:
        return one[: error.start].decode()


def _distribute(task: BucketListingTask, ranges: Sequence[Range], tasks: int) -> tuple[BucketListingTask, ...]:
    parts = [tuple(ranges[start :: max(tasks, 1)]) for start in range(min(len(ranges), max(tasks, 1)))]
    return tuple(replace(task, ranges=part) for part in parts)


@overload
def _relative_key(key: bytes, prefix: str) -> bytes: ...
@overload
def _relative_key(key: bytes | None, prefix: str) -> bytes | None: ...
def _relative_key(key: bytes | None, prefix: str) -> bytes | None:
    return None if key is None else key[len(prefix.encode()) :]


@dataclass(slots=True)
class RowBuffer:
    """Collects the listed objects and problems that were found since the last call of `take`."""

    batches: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    rows: int = 0
    split_keys: list[str] = field(default_factory=list[str])
    listed: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def is_full(self) -> bool:
        return self.rows >= BATCH_ROWS

    def add(self, page: Page, prefix: str, key_range: Range) -> None:
        """Add those objects of a page that are in the range."""
        start = len(prefix.encode())
        relative = [key[start:] for key in page.keys]
        own = [
            number
            for number, key in enumerate(relative)
            if (not key_range.after or key > key_range.after)
            and (key_range.end is None or key <= key_range.end)
            and not key.startswith(_RESERVED)
            and (not page.latest or (page.latest[number] and not page.markers[number]))
            and self._is_addressable(key)
        ]
        if own:
            self.batches.append(_build_batch(page, relative, own))
            self.rows += len(own)
            # Split keys come from the middle of each group, so that a short last group has one.
            middle = (SPLIT_KEY_EVERY // 2 - self.listed) % SPLIT_KEY_EVERY
            self.split_keys += [relative[number].decode() for number in own[middle::SPLIT_KEY_EVERY]]
            self.listed += len(own)

    def _is_addressable(self, key: bytes) -> bool:
        """Return True if an address can contain the key. If not, the object is reported and kept."""
        if not key:
            self.problems.append(Problem("", "special", "the key equals the storage's prefix: kept"))
            return False
        if not is_utf8(key):
            self.problems.append(Problem(decode_name(key), "not_utf8", "the key is not UTF-8: kept"))
            return False
        return True

    def take(self, leftover: tuple[ListingTask, ...] = ()) -> ListingBatch:
        """Return everything that was added since the last call, and start again."""
        batches = pa.Table.from_batches(self.batches, schema=INVENTORY_SCHEMA).combine_chunks().to_batches()
        listed = ListingBatch(
            batches[0] if batches else pa.RecordBatch.from_pylist([], schema=INVENTORY_SCHEMA),
            tuple(self.problems),
            leftover,
            split_keys=tuple(self.split_keys),
        )
        self.batches, self.rows, self.problems, self.split_keys = [], 0, [], []
        return listed


def _build_batch(page: Page, relative: Sequence[bytes], own: Sequence[int]) -> pa.RecordBatch:
    """Convert entries of a page to rows of `storage_inventory`. `own` selects the entries."""
    modified = pa.array([page.modified[number] for number in own]).cast(pa.timestamp("us", tz="UTC"))
    sizes = pa.array([page.sizes[number] for number in own], pa.int64())
    columns = {
        "key": pa.array([relative[number] for number in own], pa.binary()).cast(pa.string()),
        "size_bytes": sizes,
        "last_modified": modified,
        "etag": build_identities(pa.array([page.etags[number] for number in own], pa.string()), sizes, modified),
        "source": pa.repeat(LISTING_SOURCE, len(own)),
        "storage_class": pa.array([page.classes[number] for number in own], pa.string()),
    }
    if page.version_ids:
        columns["version_id"] = pa.array([page.version_ids[number] or None for number in own], pa.string())
    arrays = [columns.get(name, pa.nulls(len(own), INVENTORY_SCHEMA.field(name).type)) for name in INVENTORY_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=INVENTORY_SCHEMA)
