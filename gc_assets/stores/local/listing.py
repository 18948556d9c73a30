"""Parallel listing of a local storage.

A scan of limited size divides the storage into independent tasks. Usually a task lists complete
directories. A huge directory is divided further into shares, which are hash partitions of the file
names. Each of its tasks reads all names, but calls `stat` only for the names in its own share. This
saves time because reading a name takes 0.5 µs, but `stat` takes 3 µs.

Symbolic links are never followed.
"""

from __future__ import annotations

import errno
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

from gc_assets.core.errors import StoreError, reason_of
from gc_assets.core.printable import decode_name, is_utf8
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.local.objects import EPOCH, local_path, modified_ns
from gc_assets.stores.protocol import LISTING_SOURCE, RESERVED_PREFIX, Directory, ListingBatch, ListingTask, Problem, ProblemKind

# Larger directories are divided into shares. Listing this many entries takes a sixth of a second.
HUGE_DIRECTORY = 50_000
# Limits for planning: the names to read in total, which take half a second, and the directories to
# find for each task.
PLANNED_ENTRIES = 1_000_000
DIRECTORIES_PER_TASK = 32
# With fewer entries, starting the task takes longer than running it.
ENTRIES_PER_TASK = 20_000
BATCH_ROWS = 65_536
YEAR_NS = 3_652_425 * 86_400 * 10**5

_RESERVED_NAME = RESERVED_PREFIX.rstrip("/").encode()


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest unit of work of a listing: a directory, or a share of a huge directory.

    Attributes:
        key: The key of the directory, which ends in `/`. Empty for the root.
        recurse: Whether subdirectories are listed as well.
        share: Which share to list.
        shares: Into how many shares the directory is divided.
    """

    key: str
    recurse: bool = True
    share: int = 0
    shares: int = 1

    def split(self, shares: int) -> list[Unit]:
        return [Unit(self.key, self.recurse, share, shares) for share in range(shares)]

    def select_owned(self, names: list[bytes]) -> list[bytes]:
        if self.shares == 1:
            return names
        return [name for name in names if zlib.crc32(name) % self.shares == self.share]

    def child(self, name: bytes) -> Unit:
        return Unit(f"{self.key}{name.decode()}/")

    def is_reserved(self, name: bytes) -> bool:
        return not self.key and name == _RESERVED_NAME


@dataclass(frozen=True, slots=True)
class LocalListingTask:
    """A `ListingTask` for some units of a local storage.

    Attributes:
        root: The absolute path of the storage.
        units: The units to list.
        parallelism: Into how many shares a huge directory is divided.
        unchanged: Directories whose direct objects are skipped, because they are already known from
            an earlier listing.
        settled_ns: Directories modified at or after this time are not reused by a later listing.
            Such a directory could change again within the same tick of the file system's clock.
        root_inode: The inode of the root on the machine that planned the listing. Another machine
            may have a different directory at this path, such as an empty mount point. Without this
            check, it would find no objects and report no error.
    """

    root: str
    units: tuple[Unit, ...]
    parallelism: int
    unchanged: frozenset[str] = frozenset()
    settled_ns: int = 0
    root_inode: int | None = None

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """List the directories and shares of this task (see `ListingTask.run`).

        Even if the first directory exceeds the budget, it is listed or divided, so that every round
        makes progress. Entries that were removed in the meantime are skipped. If an entry cannot be
        read, a problem of kind `unreadable` is reported.
        """
        rows = _RowBuffer(self.unchanged)
        if (found := _inode(self.root)) != self.root_inode:
            found_root = "no directory" if found is None else "a different directory from the one at the start of the run"
            location = f"{self.root or '/'} on {socket.gethostname()}"
            rows.problem(
                b"", "unreadable", f"{found_root} at {location}: every machine must mount the storage at this path (docs/clusters.md)"
            )
            yield rows.take()
            return
        progress = _Progress(list(self.units))
        while progress.pending and (progress.scanned == 0 or progress.scanned < budget):
            unit = progress.pending.pop()
            try:
                yield from self._list_unit(unit, rows, progress)
            except FileNotFoundError as error:
                if not unit.key:
                    rows.problem(b"", "unreadable", error)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG and unit.key:
                    rows.problem(unit.key.encode(), "special", "the path is too long to be opened: kept, with everything under it")
                else:
                    rows.problem(unit.key.encode(), "unreadable", error)
        yield rows.take(leftover=self.distribute([*progress.leftover, *progress.pending], 4 * self.parallelism))

    def _list_unit(self, unit: Unit, rows: _RowBuffer, progress: _Progress) -> Iterator[ListingBatch]:
        with _open_directory(self.root, unit.key) as (directory, scan):
            status = os.fstat(directory)
            directory_ns = modified_ns(status)
            names = [entry.name for entry in islice(scan, HUGE_DIRECTORY + 1)]
            progress.scanned += len(names)
            if len(names) > HUGE_DIRECTORY and unit.shares == 1 and self.parallelism > 1:
                progress.leftover += unit.split(self.parallelism)
                return
            is_leaf, objects = bool(names), 0
            while names:
                owned = unit.select_owned(names)
                children, found = rows.add(unit, directory, owned)
                progress.pending += children
                is_leaf, objects = is_leaf and found == len(owned), objects + found
                if rows.is_full:
                    yield rows.take()
                names = [entry.name for entry in islice(scan, BATCH_ROWS)]
                progress.scanned += len(names)
            if is_leaf and unit.key and unit.shares == 1 and directory_ns < self.settled_ns:
                rows.directories.append(Directory(unit.key, directory_ns, objects, status.st_ino))

    def distribute(self, units: Sequence[Unit], tasks: int) -> tuple[LocalListingTask, ...]:
        """Distribute directories and shares to listing tasks.

        Every share of a huge directory becomes a task. All other directories are distributed to at
        most `tasks` tasks.
        """
        shares = [(unit,) for unit in units if unit.shares > 1]
        directories = [unit for unit in units if unit.shares == 1]
        parts = [tuple(directories[start :: max(tasks, 1)]) for start in range(min(len(directories), max(tasks, 1)))]
        return tuple(replace(self, units=part) for part in [*shares, *parts])


def find_unchanged_directories(location: str, directories: Iterable[Directory]) -> frozenset[str]:
    """Find directories in which no entry was added or removed since an earlier listing.

    A directory that was itself removed, or replaced by a link or a copy, counts as changed.
    """
    root = local_path(location).rstrip("/")
    return frozenset(directory.key for directory in directories if _is_unchanged(f"{root}/{directory.key.rstrip('/')}", directory))


def _is_unchanged(path: str, directory: Directory) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False  # the listing will read this directory and report the problem
    return stat.S_ISDIR(status.st_mode) and (status.st_mtime_ns, status.st_ino) == (directory.modified_ns, directory.inode)


def _inode(root: str) -> int | None:
    try:
        return Path(root or "/").stat().st_ino
    except OSError:
        return None


def plan_listing(
    location: str, parallelism: int, unchanged: frozenset[str] = frozenset(), settled_before: datetime | None = None
) -> Sequence[ListingTask]:
    """Divide the listing into tasks (see `Store.plan_listing`).

    There are at most four tasks for each worker, in addition to the shares of huge directories.
    """
    root = local_path(location).rstrip("/")
    if not Path(root or "/").is_dir():
        raise StoreError(
            f"storage {location}: expected a directory at {root or '/'}, found {_describe_path(root)}; mount it or correct `location`"
        )
    queue = deque([Unit("")])
    settled: list[Unit] = []
    scanned = 0
    while queue and len(queue) < parallelism * DIRECTORIES_PER_TASK and scanned < PLANNED_ENTRIES:
        unit = queue.popleft()
        try:
            with _open_directory(root, unit.key) as (_, scan):
                entries = list(islice(scan, HUGE_DIRECTORY + 1))
            directories = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if not unit.key:
                raise StoreError(f"storage {location}: cannot read the directory {root or '/'}: {reason_of(error)}") from error
            settled.append(unit)  # the task that lists this directory will report the problem
            continue
        scanned += len(entries)
        if len(entries) > HUGE_DIRECTORY:  # there may be more names, so the subdirectories are unknown
            settled += unit.split(parallelism)
            continue
        settled.append(Unit(unit.key, recurse=False))
        children = [unit.child(name) for name in directories if is_utf8(name) and not unit.is_reserved(name)]
        queue.extend(unit for unit in children if unit.key not in unchanged)
    tasks = 4 * parallelism if queue else -(-scanned // ENTRIES_PER_TASK)
    settled_ns = (settled_before - EPOCH) // timedelta(microseconds=1) * 1_000 if settled_before is not None else 0
    task = LocalListingTask(root, (), parallelism, unchanged, settled_ns, _inode(root))
    return task.distribute([*settled, *queue], min(tasks, 4 * parallelism))


@dataclass(slots=True)
class _Progress:
    """The progress of a task.

    Attributes:
        pending: The units that remain.
        leftover: The units to be listed in another round of the listing.
        scanned: How many names have been read.
    """

    pending: list[Unit]
    leftover: list[Unit] = field(default_factory=list[Unit])
    scanned: int = 0


@dataclass(slots=True)
class _RowBuffer:
    """Collects the objects and problems found since the last call of `take`, column by column."""

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
        self.problems.append(Problem(decode_name(key), kind, detail if isinstance(detail, str) else reason_of(detail)))

    def add(self, unit: Unit, directory: int, names: list[bytes]) -> tuple[list[Unit], int]:
        """Examine names in an open directory, and add the objects and problems that are found.

        Returns:
            The subdirectories that have to be listed, and the number of objects that were added.
        """
        prefix = unit.key.encode()
        children: list[Unit] = []
        previous = len(self.keys)
        for name in names:
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed while the directory was being read
            except OSError as error:
                self.problem(prefix + name, "unreadable", error)
                continue
            if not is_utf8(name):
                self.problem(prefix + name, "not_utf8", "the name is not UTF-8: kept, with everything under it")
            elif stat.S_ISREG(status.st_mode):
                if modified_ns(status) != status.st_mtime_ns:
                    years = 1970 + status.st_mtime_ns // YEAR_NS
                    self.problem(prefix + name, "time", f"last modified about the year {years}: kept, because its age is unknown")
                self.keys.append(prefix + name)
                self.sizes.append(status.st_size)
                self.modified.append(modified_ns(status))
                self.inodes.append(status.st_ino)
            elif stat.S_ISDIR(status.st_mode):
                if unit.recurse and not unit.is_reserved(name) and unit.child(name).key not in self.unchanged:
                    children.append(unit.child(name))
            elif stat.S_ISLNK(status.st_mode):
                self.problem(prefix + name, "symlink", "a symbolic link: kept, never followed")
            else:
                self.problem(prefix + name, "special", "a socket, FIFO or device: kept")
        return children, len(self.keys) - previous

    def take(self, leftover: tuple[ListingTask, ...] = ()) -> ListingBatch:
        listed = ListingBatch(self._batch(), tuple(self.problems), leftover, tuple(self.directories))
        self.keys, self.sizes, self.modified, self.inodes, self.problems, self.directories = [], [], [], [], [], []
        return listed

    def _batch(self) -> pa.RecordBatch:
        rows = len(self.keys)
        modified = np.asarray(self.modified, dtype=np.int64)
        numbers = (pa.array(self.sizes, pa.int64()), pa.array(modified), pa.array(self.inodes, pa.uint64()))
        texts = [number.cast(pa.string()) for number in numbers]
        columns = {
            "key": pa.array(self.keys, pa.binary()).cast(pa.string()),
            "size_bytes": numbers[0],
            "last_modified": pa.array(modified // 1000).cast(pa.timestamp("us", tz="UTC")),
            "etag": pc.call_function("binary_join_element_wise", [*texts, pa.scalar("-")]),
            "source": pa.repeat(LISTING_SOURCE, rows),
        }
        arrays = [columns.get(name, pa.nulls(rows, INVENTORY_SCHEMA.field(name).type)) for name in INVENTORY_SCHEMA.names]
        return pa.RecordBatch.from_arrays(arrays, schema=INVENTORY_SCHEMA)


@contextmanager
def _open_directory(root: str, key: str) -> Generator[tuple[int, Iterator[os.DirEntry[bytes]]]]:
    """Open a directory and yield it with its entries.

    The root of the storage may be a symbolic link, but no other directory.

    Raises:
        OSError: If the directory has been replaced by a symbolic link, or cannot be read.
    """
    path = f"{root}/{key.removesuffix('/')}".encode()
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(path) as scan:
            yield directory, scan
    finally:
        os.close(directory)


def _describe_path(root: str) -> str:
    return "something else" if os.path.lexists(root) else "nothing"
