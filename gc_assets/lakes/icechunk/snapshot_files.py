"""List the objects in `snapshots/`, and read them concurrently as commits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.units import count_of
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.envelope import SpecVersionError, spec_version
from gc_assets.lakes.icechunk.graph import UNREADABLE
from gc_assets.lakes.icechunk.ids import is_object_id
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.protocol import Commit, ContentRoot

# Every shard lists the whole folder, so a shard has to be large: 47,000 snapshots have 12 shards.
SNAPSHOTS_PER_SHARD = 4096
# Reads are limited by the store rather than the processor.
READERS = 16
# Submitting a read to a thread costs more than parsing a snapshot, so a thread reads a batch.
BATCHES_PER_READER = 8


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A listed object in `snapshots/`."""

    address: str
    size_bytes: int
    last_modified: datetime

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class SnapshotFolder:
    """The folder `snapshots/` of one repository.

    Attributes:
        lake: Name of the lake, for error messages.
        objects: Objects of the store.
        repository: Address of the repository.
        spec_versions: Spec versions of the files that the repository can contain.
        hint: Reason for a file with another version, and what to do about it.
        summary: Key-value pairs added to the summary of each commit.
        by_storage_time: If True, the time of a commit is the storage time of its object if that is
            later.
    """

    lake: str
    objects: Objects
    repository: str
    spec_versions: frozenset[int]
    hint: str = "upgrade gc-assets"
    summary: Mapping[str, str] = field(default_factory=dict[str, str])
    by_storage_time: bool = False

    @property
    def address(self) -> str:
        return f"{self.repository}/snapshots/"

    def list(self) -> list[SnapshotFile]:
        """List all objects. Raises `LakeUnreadable` if the store fails."""
        try:
            return [SnapshotFile(*item) for item in self.objects.list(self.address) if "/" not in item[0].removeprefix(self.address)]
        except OSError as error:
            raise LakeUnreadable(f"lake {self.lake}: {self.address} cannot be listed: {error}") from error

    def read(self, files: Sequence[SnapshotFile]) -> Iterator[Commit]:
        """Yield the commits of snapshot files.

        Objects that were deleted after the listing are skipped, because `retain` raises an error if
        a ref needs one of them. A damaged snapshot becomes a commit with an error in its summary,
        because only `retain` can decide whether it is needed.

        Raises:
            LakeUnreadable: If the store fails, or a file has an unexpected spec version or contains
                a snapshot with a different id.
        """
        batch = 1 + len(files) // (READERS * BATCHES_PER_READER)
        with ThreadPoolExecutor(READERS) as readers:
            for commits in readers.map(self._read_batch, (files[at : at + batch] for at in range(0, len(files), batch))):
                yield from commits

    def _read_batch(self, files: Sequence[SnapshotFile]) -> list[Commit]:
        return [commit for file in files if (commit := self._read_one(file)) is not None]

    def _read_one(self, file: SnapshotFile) -> Commit | None:
        where = f"lake {self.lake}: snapshot {file.address}"
        try:
            raw = self.objects.read(file.address)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error
        try:
            snapshot = parse_snapshot(where, raw, self.spec_versions)
        except SpecVersionError as error:
            raise LakeUnreadable(f"{where} has spec version {spec_version(raw)}; {self.hint}") from error
        except FormatError as error:
            return Commit(file.name, (), file.last_modified, (), summary={UNREADABLE: str(error)})
        if snapshot.snapshot_id != file.name:
            raise LakeUnreadable(f"{where} has the content of snapshot {snapshot.snapshot_id}; restore the file from a backup")
        flushed_at = snapshot.flushed_at
        return Commit(
            commit_id=snapshot.snapshot_id,
            parents=() if snapshot.parent_id is None else (snapshot.parent_id,),
            committed_at=max(flushed_at, file.last_modified) if self.by_storage_time else flushed_at,
            content_roots=(ContentRoot(file.address, Kind.SNAPSHOT, is_container=True, size_bytes=file.size_bytes),),
            message=snapshot.message,
            summary=self.summary,
        )


def snapshots_of(files: Sequence[SnapshotFile]) -> list[SnapshotFile]:
    """Return the files with snapshot names. Nothing can refer to files with other names."""
    return [file for file in files if is_object_id(file.name)]


def is_in_shard(name: str, shard: int, shards: int) -> bool:
    return zlib.crc32(name.encode()) % shards == shard


def count_shards(snapshots: int) -> int:
    return 1 + snapshots // SNAPSHOTS_PER_SHARD


def describe_unknown_names(lake: str, files: Sequence[SnapshotFile]) -> tuple[str, ...]:
    """Describe objects that are not snapshots."""
    names = sorted(file.name for file in files if not is_object_id(file.name))
    if not names:
        return ()
    return (
        f"lake {lake}: {count_of(len(names), 'object')} in snapshots/ without the name of an object id "
        f"(for example {names[0]!r}); no snapshot or ref can name them. Unfinished writes such as ID#1 are collected, and other files are "
        "foreign",
    )
