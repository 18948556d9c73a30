"""Lists a bucket in parallel: ranges of keys as independent tasks.

A range is everything after one key up to another, in the order of their bytes. Ranges are cut at
keys that an earlier listing met, or at directories, found by a few requests with a delimiter. Every
object lies in exactly one range, whatever is written meanwhile and wherever the cuts are. In a
bucket that keeps versions the newest version of each key is listed, with its id. Knows nothing of
Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, overload

import numpy as np
import pyarrow as pa

from gc_assets.core.errors import StoreError
from gc_assets.s3 import pages
from gc_assets.s3.pages import Page
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.protocol import LISTING_SOURCE, RESERVED_PREFIX, ListingBatch, ListingTask, Problem
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.objects import identities

TASKS_PER_WORKER: Final = 4
# Requests with which the planner looks for directories.
MAX_PLANNING_REQUESTS: Final = 64
BATCH_ROWS: Final = 65_536
# One of so many keys is told for the next listing. A task with fewer costs more to start than to
# run.
SPLIT_KEY_EVERY: Final = 10_000
_RESERVED: Final = RESERVED_PREFIX.encode()
# A key that comes after most of what lies below the reserved prefix. The rest is passed over key by
# key.
_AFTER_RESERVED: Final = _RESERVED + b"~"


@dataclass(frozen=True, slots=True)
class Range:
    """Keys after `after` up to `end`, that key included, relative to the storage. Null: to the
    end.
    """

    after: bytes = b""
    end: bytes | None = None

    def cut(self, at: Sequence[bytes]) -> list[Range]:
        """Returns the parts of the range, cut behind each key that lies within it."""
        inside = sorted({key for key in at if key > self.after and (self.end is None or key < self.end)})
        return [Range(after, end) for after, end in pairwise([self.after, *inside, self.end]) if after is not None]


@dataclass(frozen=True, slots=True)
class S3ListingTask:
    """Ranges of a storage's keys. `parallelism` bounds the parts into which the rest of a range is
    cut.
    """

    bucket: Bucket
    ranges: tuple[Range, ...]
    parallelism: int
    versions: bool

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Lists as `ListingTask.run` says. One page is listed whatever the budget. A range that
        cannot be read is a problem of kind `unreadable`.
        """
        rows = _Rows()
        pending, leftover, met = list(self.ranges), list[Range](), 0
        while pending and (met == 0 or met < budget):
            span = pending.pop()
            read_to = span.after
            try:
                for page in _pages(self.bucket, span, self.versions):
                    met += len(page.keys)
                    stop = self._stop(page, span) if met >= budget else None
                    rows.add(page, self.bucket.prefix, span if stop is None else replace(span, end=stop))
                    if rows.is_full:
                        yield rows.take()
                    if stop is not None:
                        leftover += self._rest(Range(stop, span.end))
                        break
                    last = _relative(page.last, self.bucket.prefix)
                    if last is None or (span.end is not None and last > span.end):
                        break
                    read_to = last
            except (OSError, StoreError, UnicodeDecodeError) as error:
                rows.problems.append(Problem(_printable(read_to), "unreadable", f"the keys after this one: {_why(error)}"))
        yield rows.take(_dealt(self, [*leftover, *pending], TASKS_PER_WORKER * self.parallelism))

    def _stop(self, page: Page, span: Range) -> bytes | None:
        """Returns the last key within the range of which nothing can follow on the next page, or
        null. Versions of the page's last key may.
        """
        whole = [key for key in page.keys if key != page.last] if page.version_ids else page.keys
        stop = _relative(whole[-1], self.bucket.prefix) if whole else None
        # Ceph 16 begins with the versions of the key after which it was asked.
        return stop if stop is not None and stop > span.after and (span.end is None or stop < span.end) else None

    def _rest(self, rest: Range) -> list[Range]:
        """Cuts what is left of a range at the directories that follow its first key: the next ones
        in each directory that holds that key. It stays whole where they cannot be listed: whether
        its keys can is seen by the task that lists them.
        """
        split_keys: list[bytes] = []
        inside = rest.after.split(b"/")[:-1]
        try:
            for depth in range(len(inside) + 1):
                directory = b"".join(name + b"/" for name in inside[:depth])
                # "0" is the character after "/", so this comes after all that the next directory
                # on the way to the key holds.
                behind = directory + inside[depth] + b"0" if depth < len(inside) else rest.after
                split_keys += [_relative(key, self.bucket.prefix) for key in next(_directories(self.bucket, directory, behind)).common]
        except (OSError, StoreError, UnicodeDecodeError):
            return [rest]
        return rest.cut(_spread(sorted(set(split_keys)), self.parallelism))


def plan_listing(bucket: Bucket, parallelism: int, split_keys: Sequence[str] | None = None) -> Sequence[ListingTask]:
    """Returns tasks that together list the storage once, as `Store.plan_listing` says. A storage
    that was small is one task.

    Raises `StoreError` where the bucket is not there or may not be listed: an inventory that is
    empty for that reason would make all live files look lost.
    """
    try:
        versions = bucket.versioning("read").has_versions
        found = _found(bucket, parallelism) if split_keys is None else sorted(cut.encode() for cut in split_keys)
    except OSError as error:
        raise StoreError(f"storage {bucket.location} cannot be listed: {error.strerror or error}") from error
    at = _spread(found, TASKS_PER_WORKER * parallelism)
    ranges = [*Range(end=_RESERVED).cut(at), *Range(after=_AFTER_RESERVED).cut(at)]
    whole = S3ListingTask(bucket, (), parallelism, versions)
    return _dealt(whole, ranges, len(ranges) if len(found) > (0 if split_keys is None else 1) else 1)


def _found(bucket: Bucket, parallelism: int) -> list[bytes]:
    """Returns directories of the storage in order: those of its top, and those of the levels below
    while they are too few for `parallelism` workers. Of a directory with many the first page
    counts. Empty where all keys lie side by side.
    """
    level, found, asked = [b""], list[bytes](), 0
    while level and len(found) < TASKS_PER_WORKER * parallelism and asked < MAX_PLANNING_REQUESTS:
        below: list[bytes] = []
        for directory in level[: MAX_PLANNING_REQUESTS - asked]:
            asked += 1
            page = next(_directories(bucket, directory, b""))
            below += [_relative(key, bucket.prefix) for key in page.common]
        below = [key for key in below if key != _RESERVED]
        found += below
        level = _spread(below, MAX_PLANNING_REQUESTS)
    return sorted(found)


def _spread(keys: Sequence[bytes], at_most: int) -> list[bytes]:
    """Returns at most so many of the keys, evenly spread."""
    if len(keys) <= at_most:
        return list(keys)
    return [keys[number] for number in np.linspace(0, len(keys) - 1, at_most).astype(int)]


def _directories(bucket: Bucket, below: bytes, after: bytes) -> Iterator[Page]:
    prefix = bucket.prefix.encode()
    return pages.list_objects(
        bucket.settings, bucket.name, (prefix + below).decode(), after=prefix + after if after else b"", delimiter="/"
    )


def _pages(bucket: Bucket, span: Range, versions: bool) -> Iterator[Page]:
    """Yields the pages of a range. What the keys of a range all begin with is asked for as their
    prefix, so that fewer keys beyond its end are listed.
    """
    prefix = bucket.prefix.encode()
    after = prefix + span.after if span.after else b""
    shared = _common(span.after, span.end) if span.end is not None else ""
    list_pages = pages.list_versions if versions else pages.list_objects
    return list_pages(bucket.settings, bucket.name, bucket.prefix + shared, after=after)


def _common(one: bytes, other: bytes) -> str:
    """Returns what both keys begin with, in whole characters."""
    length = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
    try:
        return one[:length].decode()
    except UnicodeDecodeError as error:
        return one[: error.start].decode()


def _dealt(task: S3ListingTask, ranges: Sequence[Range], wanted: int) -> tuple[S3ListingTask, ...]:
    parts = [tuple(ranges[start :: max(wanted, 1)]) for start in range(min(len(ranges), max(wanted, 1)))]
    return tuple(replace(task, ranges=part) for part in parts)


@overload
def _relative(key: bytes, prefix: str) -> bytes: ...
@overload
def _relative(key: bytes | None, prefix: str) -> bytes | None: ...
def _relative(key: bytes | None, prefix: str) -> bytes | None:
    return None if key is None else key[len(prefix.encode()) :]


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _printable(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class _Rows:
    """Objects and problems met since the last `take`."""

    batches: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    rows: int = 0
    split_keys: list[str] = field(default_factory=list[str])
    listed: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def is_full(self) -> bool:
        return self.rows >= BATCH_ROWS

    def add(self, page: Page, prefix: str, span: Range) -> None:
        """Takes the objects of a page that lie in a range."""
        start = len(prefix.encode())
        relative = [key[start:] for key in page.keys]
        mine = [
            number
            for number, key in enumerate(relative)
            if (not span.after or key > span.after)
            and (span.end is None or key <= span.end)
            and not key.startswith(_RESERVED)
            and (not page.latest or (page.latest[number] and not page.markers[number]))
            and self._is_name(key)
        ]
        if mine:
            self.batches.append(_batch(page, relative, mine))
            self.rows += len(mine)
            # In the middle of each stretch, so that a short stretch is told of too.
            middle = (SPLIT_KEY_EVERY // 2 - self.listed) % SPLIT_KEY_EVERY
            self.split_keys += [relative[number].decode() for number in mine[middle::SPLIT_KEY_EVERY]]
            self.listed += len(mine)

    def _is_name(self, key: bytes) -> bool:
        """Says whether an address can name the key. What none can name is kept, and told."""
        if not key:
            self.problems.append(Problem("", "special", "an object that is named as the storage's own prefix: kept"))
            return False
        try:
            key.decode()
        except UnicodeDecodeError:
            self.problems.append(Problem(_printable(key), "not_utf8", "the key is not UTF-8: kept"))
            return False
        return True

    def take(self, leftover: tuple[ListingTask, ...] = ()) -> ListingBatch:
        """Returns what was added since the last call, as one step of the listing."""
        whole = pa.Table.from_batches(self.batches, schema=INVENTORY_SCHEMA).combine_chunks().to_batches()
        listed = ListingBatch(
            whole[0] if whole else pa.RecordBatch.from_pylist([], schema=INVENTORY_SCHEMA),
            tuple(self.problems),
            leftover,
            split_keys=tuple(self.split_keys),
        )
        self.batches, self.rows, self.problems, self.split_keys = [], 0, [], []
        return listed


def _batch(page: Page, relative: Sequence[bytes], mine: Sequence[int]) -> pa.RecordBatch:
    """Returns rows of `storage_inventory`."""
    modified = pa.array([page.modified[number] for number in mine]).cast(pa.timestamp("us", tz="UTC"))
    sizes = pa.array([page.sizes[number] for number in mine], pa.int64())
    columns = {
        "key": pa.array([relative[number] for number in mine], pa.binary()).cast(pa.string()),
        "size_bytes": sizes,
        "last_modified": modified,
        "etag": identities(pa.array([page.etags[number] for number in mine], pa.string()), sizes, modified),
        "source": pa.repeat(LISTING_SOURCE, len(mine)),
        "storage_class": pa.array([page.classes[number] for number in mine], pa.string()),
    }
    if page.version_ids:
        columns["version_id"] = pa.array([page.version_ids[number] for number in mine], pa.string())
    arrays = [columns.get(name, pa.nulls(len(mine), INVENTORY_SCHEMA.field(name).type)) for name in INVENTORY_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=INVENTORY_SCHEMA)
