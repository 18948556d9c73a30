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

# Each shard lists the whole folder, so shards have to be large: 47,000 snapshots form 12 shards.
SNAPSHOTS_PER_SHARD = 4096
# Reads have to wait for the store, not for the processor.
READERS = 16
# Submitting a task to a thread costs more than parsing a snapshot, so each task reads a batch.
BATCHES_PER_READER = 8


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """An object listed in `snapshots/`."""

    address: str
    size_bytes: int
    last_modified: datetime

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class SnapshotFolder:
    """The folder `snapshots/` of a repository.

    Attributes:
        lake: Name of the lake for error messages.
        objects: Access to the store.
        repository: Address of the repository.
        spec_versions: Spec versions that files in this repository can have.
        hint: Explanation for error messages: why a file may have another spec version, and how to
            fix this.
        summary: Key-value pairs to add to the summary of each commit.
        by_storage_time: True if a commit gets the time at which its object was stored, if that is
            later than the commit time in the file.
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
        """List all objects in the folder. Raises `LakeUnreadable` if the store fails."""
        try:
            return [SnapshotFile(*item) for item in self.objects.list(self.address) if "/" not in item[0].removeprefix(self.address)]
        except OSError as error:
            raise LakeUnreadable(f"lake {self.lake}: {self.address} cannot be listed: {error}") from error

    def read(self, files: Sequence[SnapshotFile]) -> Iterator[Commit]:
        """Read snapshot files as commits.

        Objects that were deleted since they were listed are skipped. If a ref needs one of them,
        `retain` raises an error. A damaged snapshot becomes a commit with the error in its summary,
        because only `retain` can determine if it is needed.

        Raises:
            LakeUnreadable: If the store fails, or a file has an unexpected spec version or contains
                a snapshot with another id than its name.
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
    """Return the files whose names are object ids. No snapshot or ref can refer to any other file."""
    return [file for file in files if is_object_id(file.name)]


def is_in_shard(name: str, shard: int, shards: int) -> bool:
    return zlib.crc32(name.encode()) % shards == shard


def count_shards(snapshots: int) -> int:
    return 1 + snapshots // SNAPSHOTS_PER_SHARD


def describe_unknown_names(lake: str, files: Sequence[SnapshotFile]) -> tuple[str, ...]:
    """Describe objects whose names are not object ids."""
    names = sorted(file.name for file in files if not is_object_id(file.name))
    if not names:
        return ()
    return (
        f"lake {lake}: {count_of(len(names), 'object')} in snapshots/ without an object id as name (for example {names[0]!r}). "
        "No snapshot or ref can refer to them. Unfinished writes such as ID#1 are collected, but no other files",
    )
