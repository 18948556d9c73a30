"""Lists a local storage in parallel: planned with a bounded look at names, run as independent tasks.

A task owns directories whole, or one share of a single huge directory. Reading a name costs 0.5 µs
and looking at its file 3 µs, so every share reads all names and looks at those that hash to it.
Symbolic links are never followed. Knows nothing of Spark.
"""

from __future__ import annotations

import os
import socket
import stat
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StoreError
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.local.objects import EPOCH, is_utf8, local_path, modified_ns, printable
from gc_assets.stores.protocol import LISTING_SOURCE, RESERVED_PREFIX, Directory, ListingBatch, ListingTask, Problem, ProblemKind

# A directory with more entries is split into shares: a sixth of a second of work.
HUGE_DIRECTORY = 50_000
# The planner looks at no more names than this (half a second), nor holds more directories than this
# many per task.
PLANNED_ENTRIES = 1_000_000
DIRECTORIES_PER_TASK = 32
# A task below this many entries costs more to start than to run.
ENTRIES_PER_TASK = 20_000
BATCH_ROWS = 65_536
YEAR_NS = 3_652_425 * 86_400 * 10**5

_RESERVED_NAME = RESERVED_PREFIX.rstrip("/").encode()


@dataclass(frozen=True, slots=True)
class Unit:
    """A directory to list. `key` is empty for the root, else ends in `/`. With `recurse` the
    directories below belong to the unit too.

    With `shares` > 1 only the entries whose name hashes to `share` belong to this unit.
    """

    key: str
    recurse: bool = True
    share: int = 0
    shares: int = 1

    def split(self, shares: int) -> list[Unit]:
        return [Unit(self.key, self.recurse, share, shares) for share in range(shares)]

    def owned(self, names: list[bytes]) -> list[bytes]:
        if self.shares == 1:
            return names
        return [name for name in names if zlib.crc32(name) % self.shares == self.share]

    def below(self, name: bytes) -> Unit:
        return Unit(f"{self.key}{name.decode()}/")

    def is_reserved(self, name: bytes) -> bool:
        return not self.key and name == _RESERVED_NAME


@dataclass(frozen=True, slots=True)
class LocalListingTask:
    """Units of the storage at the absolute path `root`. `parallelism` bounds the shares of a huge
    directory met on the way.

    Directories whose keys are in `unchanged` are passed over: an earlier listing knows what they
    hold. Only directories last modified before `settled_ns` may be carried by a later listing: a
    directory changed just now may change again within the same tick of the file system's clock.

    `root_inode` is that of the root where the work was planned. A machine that has another directory
    there, such as the empty one that a disk is mounted on, would list nothing and find no fault.
    """

    root: str
    units: tuple[Unit, ...]
    parallelism: int
    unchanged: frozenset[str] = frozenset()
    settled_ns: int = 0
    root_inode: int | None = None

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Lists as `ListingTask.run` says. One directory is listed or split whatever the budget, so
        every round gets closer to the end.

        What vanishes while listing is skipped. What cannot be read is a problem of kind
        `unreadable`.
        """
        rows = _Rows(self.unchanged)
        if (found := _inode(self.root)) != self.root_inode:
            seen = "no directory" if found is None else "another directory than where the run began"
            where = f"{self.root or '/'} on {socket.gethostname()}"
            rows.problem(b"", "unreadable", f"{seen} at {where}: every machine must mount the storage there (docs/clusters.md)")
            yield rows.take()
            return
        pending = list(self.units)
        leftover: list[Unit] = []
        met = 0
        while pending and (met == 0 or met < budget):
            unit = pending.pop()
            try:
                with _opened(self.root, unit.key) as (directory, scan):
                    directory_ns = modified_ns(os.fstat(directory))
                    names = [entry.name for entry in islice(scan, HUGE_DIRECTORY + 1)]
                    met += len(names)
                    if len(names) > HUGE_DIRECTORY and unit.shares == 1 and self.parallelism > 1:
                        leftover += unit.split(self.parallelism)
                        continue
                    is_leaf, objects = bool(names), 0
                    while names:
                        owned = unit.owned(names)
                        below, found = rows.add(unit, directory, owned)
                        pending += below
                        is_leaf, objects = is_leaf and found == len(owned), objects + found
                        if rows.is_full:
                            yield rows.take()
                        names = [entry.name for entry in islice(scan, BATCH_ROWS)]
                        met += len(names)
                    if is_leaf and unit.key and unit.shares == 1 and directory_ns < self.settled_ns:
                        rows.directories.append(Directory(unit.key, directory_ns, objects))
            except FileNotFoundError as error:
                if not unit.key:
                    rows.problem(b"", "unreadable", error)
            except OSError as error:
                rows.problem(unit.key.encode(), "unreadable", error)
        leftover += pending
        yield rows.take(leftover=self.dealt(leftover, 4 * self.parallelism))

    def dealt(self, units: Sequence[Unit], wanted: int) -> tuple[LocalListingTask, ...]:
        """Returns a task for every share, and `wanted` tasks among which the directories are dealt
        out.
        """
        shares = [(unit,) for unit in units if unit.shares > 1]
        whole = [unit for unit in units if unit.shares == 1]
        parts = [tuple(whole[start :: max(wanted, 1)]) for start in range(min(len(whole), max(wanted, 1)))]
        return tuple(replace(self, units=part) for part in [*shares, *parts])


def find_unchanged_directories(location: str, known: Iterable[Directory]) -> frozenset[str]:
    """Returns the keys of the directories that are as they were when they were listed. A directory
    that is gone, or a link by now, is not among them.
    """
    root = local_path(location).rstrip("/")
    return frozenset(directory.key for directory in known if _modified_ns(f"{root}/{directory.key.rstrip('/')}") == directory.modified_ns)


def select_unchanged_objects(objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
    """Returns the rows of an earlier listing whose objects lie directly in the directories with the
    keys `unchanged`.
    """
    return objects.filter(pc.is_in(pc.replace_substring_regex(objects.column("key"), "[^/]*$", ""), unchanged))


def _modified_ns(path: str) -> int | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None  # the listing meets the same directory, and says what is wrong with it
    return status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else None


def _inode(root: str) -> int | None:
    try:
        return Path(root or "/").stat().st_ino
    except OSError:
        return None


def plan_listing(
    location: str, parallelism: int, unchanged: frozenset[str] = frozenset(), settled_before: datetime | None = None
) -> Sequence[ListingTask]:
    """Returns tasks that together list the storage once, without the directories in `unchanged`, as
    `Store.plan_listing` says.

    There are at most four tasks for each of `parallelism` workers, besides shares of huge
    directories. Raises `StoreError` where the location is no directory or cannot be read: an
    inventory that is empty for that reason would make all live files look lost.
    """
    root = local_path(location).rstrip("/")
    if not Path(root or "/").is_dir():
        raise StoreError(f"storage {location}: expected a directory at {root or '/'}, found {_found(root)}; mount it or mend `location`")
    queue = deque([Unit("")])
    settled: list[Unit] = []
    seen = 0
    while queue and len(queue) < parallelism * DIRECTORIES_PER_TASK and seen < PLANNED_ENTRIES:
        unit = queue.popleft()
        try:
            with _opened(root, unit.key) as (_, scan):
                entries = list(islice(scan, HUGE_DIRECTORY + 1))
            directories = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if not unit.key:
                raise StoreError(f"storage {location}: the directory {root or '/'} cannot be read: {_why(error)}") from error
            settled.append(unit)  # the task that lists it records why
            continue
        seen += len(entries)
        if len(entries) > HUGE_DIRECTORY:  # not all its names were read
            settled += unit.split(parallelism)
            continue
        settled.append(Unit(unit.key, recurse=False))
        below = [unit.below(name) for name in directories if is_utf8(name) and not unit.is_reserved(name)]
        queue.extend(unit for unit in below if unit.key not in unchanged)
    wanted = 4 * parallelism if queue else -(-seen // ENTRIES_PER_TASK)
    settled_ns = (settled_before - EPOCH) // timedelta(microseconds=1) * 1_000 if settled_before is not None else 0
    whole = LocalListingTask(root, (), parallelism, unchanged, settled_ns, _inode(root))
    return whole.dealt([*settled, *queue], min(wanted, 4 * parallelism))


@dataclass(slots=True)
class _Rows:
    """Columns of the objects met since the last `take`, and the directories read to their end."""

    unchanged: frozenset[str] = frozenset()
    keys: list[bytes] = field(default_factory=list[bytes])
    sizes: list[int] = field(default_factory=list[int])
    modified: list[int] = field(default_factory=list[int])
    inodes: list[int] = field(default_factory=list[int])
    problems: list[Problem] = field(default_factory=list[Problem])
    directories: list[Directory] = field(default_factory=list[Directory])

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= BATCH_ROWS

    def problem(self, key: bytes, kind: ProblemKind, detail: str | OSError) -> None:
        self.problems.append(Problem(printable(key), kind, detail if isinstance(detail, str) else _why(detail)))

    def add(self, unit: Unit, directory: int, names: list[bytes]) -> tuple[list[Unit], int]:
        """Takes the objects and problems among the names in an open directory. Returns the
        directories to follow, and how many of the names were objects.
        """
        prefix = unit.key.encode()
        below: list[Unit] = []
        before = len(self.keys)
        for name in names:
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since the directory was read: as if it had been gone before
            except OSError as error:
                self.problem(prefix + name, "unreadable", error)
                continue
            if not is_utf8(name):
                self.problem(prefix + name, "not_utf8", "the name is not UTF-8: kept, with everything below it")
            elif stat.S_ISREG(status.st_mode):
                if modified_ns(status) != status.st_mtime_ns:
                    years = 1970 + status.st_mtime_ns // YEAR_NS
                    self.problem(prefix + name, "time", f"last modified about the year {years}: kept, because nobody can tell its age")
                self.keys.append(prefix + name)
                self.sizes.append(status.st_size)
                self.modified.append(modified_ns(status))
                self.inodes.append(status.st_ino)
            elif stat.S_ISDIR(status.st_mode):
                if unit.recurse and not unit.is_reserved(name) and unit.below(name).key not in self.unchanged:
                    below.append(unit.below(name))
            elif stat.S_ISLNK(status.st_mode):
                self.problem(prefix + name, "symlink", "a symbolic link: kept, never followed")
            else:
                self.problem(prefix + name, "special", "a socket, fifo or device: kept")
        return below, len(self.keys) - before

    def take(self, leftover: tuple[ListingTask, ...] = ()) -> ListingBatch:
        listed = ListingBatch(self._batch(), tuple(self.problems), leftover, tuple(self.directories))
        self.keys, self.sizes, self.modified, self.inodes, self.problems, self.directories = [], [], [], [], [], []
        return listed

    def _batch(self) -> pa.RecordBatch:
        rows = len(self.keys)
        modified = np.asarray(self.modified, dtype=np.int64)
        numbers = (pa.array(self.sizes, pa.int64()), pa.array(modified), pa.array(self.inodes, pa.uint64()))
        words = [number.cast(pa.string()) for number in numbers]
        columns = {
            "key": pa.array(self.keys, pa.binary()).cast(pa.string()),
            "size_bytes": numbers[0],
            "last_modified": pa.array(modified // 1000).cast(pa.timestamp("us", tz="UTC")),
            "etag": pc.call_function("binary_join_element_wise", [*words, pa.scalar("-")]),
            "source": pa.repeat(LISTING_SOURCE, rows),
        }
        arrays = [columns.get(name, pa.nulls(rows, INVENTORY_SCHEMA.field(name).type)) for name in INVENTORY_SCHEMA.names]
        return pa.RecordBatch.from_arrays(arrays, schema=INVENTORY_SCHEMA)


@contextmanager
def _opened(root: str, key: str) -> Generator[tuple[int, Iterator[os.DirEntry[bytes]]]]:
    """Opens a directory below the root and yields it with its entries. The root itself may be a
    link. Raises `OSError` where a directory became a link.
    """
    path = f"{root}/{key.removesuffix('/')}".encode()
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(path) as scan:
            yield directory, scan
    finally:
        os.close(directory)


def _found(root: str) -> str:
    return "something else" if os.path.lexists(root) else "nothing"


def _why(error: OSError) -> str:
    return error.strerror or str(error)
