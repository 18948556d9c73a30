"""Repository with spec version 2: the object `repo` contains the refs and lists the snapshots.

As long as `repo` lists a snapshot, its files are kept, even if no ref reaches it. A snapshot file
that `repo` does not list is a dangling commit. Either its writer has not updated `repo` yet, or the
snapshot was removed from the list.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.moments import from_micros, to_micros
from gc_assets.core.objects import Objects
from gc_assets.core.units import Cutoff
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.backup_names import BACKUP_FOLDER
from gc_assets.lakes.icechunk.graph import ENTRY, STORED
from gc_assets.lakes.icechunk.overwritten import find_needed_backups
from gc_assets.lakes.icechunk.refs import list_ref_files
from gc_assets.lakes.icechunk.repo_edits import entry_document
from gc_assets.lakes.icechunk.repo_info import RepoInfo, SnapshotInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Availability
from gc_assets.lakes.icechunk.repository import repo_address
from gc_assets.lakes.icechunk.repository_settings import RepositorySettings
from gc_assets.lakes.icechunk.repository_v1 import FOLDERS
from gc_assets.lakes.icechunk.snapshot_files import (
    SnapshotFile,
    SnapshotFolder,
    count_shards,
    describe_unknown_names,
    is_in_shard,
    snapshots_of,
)
from gc_assets.lakes.icechunk.virtual_locations import parse_chunk_containers
from gc_assets.lakes.protocol import Claim, Commit, CommitSource, ContentRoot, FrozenRefs, NamedPrefixes, Ref

_NAMES: Final = {Availability.ONLINE: "online", Availability.READ_ONLY: "read-only", Availability.OFFLINE: "offline"}


@dataclass(frozen=True, slots=True)
class RepositoryV2:
    """An Icechunk repository with spec version 2. Its address does not end in a slash.

    Attributes:
        overwritten: How long backup copies of `repo` are kept.
    """

    lake: str
    objects: Objects
    address: str
    overwritten: Cutoff

    def freeze(self, as_of: datetime) -> FrozenRefs:
        info = self.read()
        return replace(self.read_state(info, as_of), named_prefixes=self._prefixes_of(info))

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in the shard that the source describes.

        `repo` is read again, so that the result includes snapshots committed since the refs were
        read.

        Raises:
            LakeUnreadable: If the store fails, `repo` is damaged, there are no snapshots, or an
                unlisted file contains a snapshot with another id than its name.
        """
        yield from self.commits_of(self.read(), source.shard, source.shards)

    def read_prefixes(self) -> NamedPrefixes:
        try:
            return self._prefixes_of(self.read())
        except LakeUnreadable as error:
            return NamedPrefixes({}, str(error))

    def read(self) -> RepoInfo:
        """Read `repo`. Raises `LakeUnreadable` if it is missing or damaged."""
        address = repo_address(self.address)
        try:
            return parse_repo(f"lake {self.lake}: {address}", self.objects.read(address))
        except OSError as error:
            raise LakeUnreadable(f"lake {self.lake}: {address} cannot be read: {error}") from error
        except FormatError as error:
            raise LakeUnreadable(str(error)) from error

    def read_state(self, info: RepoInfo, as_of: datetime) -> FrozenRefs:
        """Build the repository's state from content of `repo`, without virtual chunk containers.

        Raises:
            LakeUnreadable: If the store fails.
        """
        files = self._snapshots.list()
        unlisted = sum(file.name not in info.snapshots for file in snapshots_of(files))
        shards = count_shards(unlisted)
        ref_files = list_ref_files(self.lake, self.objects, self.address)
        backups = find_needed_backups(self.lake, self.objects, self.address, info, self.overwritten, as_of)
        repo = ContentRoot(repo_address(self.address), Kind.REPO_INFO, is_container=False)
        config = ContentRoot(f"{self.address}/config.yaml", Kind.CONFIG, is_container=False, must_exist=False)
        # Like the library, do not collect anything while a user has restricted the repository.
        collect = info.status.availability is Availability.ONLINE
        return replace(
            self.state_without_files(info, shards),
            claims=tuple(Claim(f"{self.address}/{folder}/", collect=collect) for folder in (*FOLDERS, BACKUP_FOLDER)),
            pinned=(repo, config, *ref_files, *backups.files),
            notes=(*describe_unknown_names(self.lake, files), *backups.notes, *self._notes(info, ref_files)),
        )

    def state_without_files(self, info: RepoInfo, shards: int = 1) -> FrozenRefs:
        """Return the refs and settings in the content of `repo`, without requests to the store."""
        tags = [Ref(name, "tag", head) for name, head in info.tags.items()]
        branches = [Ref(name, "branch", head) for name, head in info.branches.items()]
        address, properties = repo_address(self.address), _properties(info)
        return FrozenRefs(
            lake=self.lake,
            kind="icechunk",
            refs=(*tags, *branches),
            sources=tuple(CommitSource(address, shard=shard, shards=shards, properties=properties) for shard in range(shards)),
            claims=(),
            pinned=(),
        )

    def listed_commits(self, info: RepoInfo) -> Iterator[Commit]:
        """Yield the snapshots that `repo` lists, without requests to the store.

        Sizes and storage times of their files are therefore unknown.
        """
        return (self._listed_commit(entry, None) for entry in info.snapshots.values())

    def commits_of(self, info: RepoInfo, shard: int = 0, shards: int = 1) -> Iterator[Commit]:
        """Yield the snapshots of a shard: those that `repo` lists, then those found only as files.

        Files of listed snapshots are not read. A missing one is later reported as a missing
        metadata object of its commit.
        """
        files = snapshots_of(self._snapshots.list())
        if not files:  # If this machine does not mount the repository's disk, all data would look lost.
            raise LakeUnreadable(
                f"lake {self.lake}: {self._snapshots.address} is empty on {socket.gethostname()}, but `repo` lists snapshots; "
                "mount the same storage on every machine (docs/clusters.md), or restore the snapshots"
            )
        by_name = {file.name: file for file in files}
        for entry in info.snapshots.values():
            if is_in_shard(entry.snapshot_id, shard, shards):
                yield self._listed_commit(entry, by_name.get(entry.snapshot_id))
        yield from self._snapshots.read(
            [file for file in files if file.name not in info.snapshots and is_in_shard(file.name, shard, shards)]
        )

    def _listed_commit(self, entry: SnapshotInfo, file: SnapshotFile | None) -> Commit:
        size_bytes = None if file is None else file.size_bytes
        stored = {} if file is None else {STORED: str(to_micros(file.last_modified))}
        snapshot = ContentRoot(f"{self._snapshots.address}{entry.snapshot_id}", Kind.SNAPSHOT, is_container=True, size_bytes=size_bytes)
        return Commit(
            commit_id=entry.snapshot_id,
            parents=() if entry.parent_id is None else (entry.parent_id,),
            committed_at=entry.flushed_at,
            content_roots=(snapshot, self._log(entry.snapshot_id), *map(self._log, entry.pruned_logs)),
            message=entry.message,
            summary={ENTRY: entry_document(entry)} | stored,
        )

    def _log(self, snapshot_id: str) -> ContentRoot:
        # If a repository was upgraded, its first snapshot has no log. Also, icechunk 2.0 deletes
        # the logs of expired ancestors. Readers do not need either of them.
        return ContentRoot(f"{self.address}/transactions/{snapshot_id}", Kind.TRANSACTION_LOG, is_container=False, must_exist=False)

    def _prefixes_of(self, info: RepoInfo) -> NamedPrefixes:
        return parse_chunk_containers(f"the configuration in {repo_address(self.address)}", info.config)

    def _notes(self, info: RepoInfo, ref_files: tuple[ContentRoot, ...]) -> Iterator[str]:
        if (status := info.status).availability is not Availability.ONLINE:
            since = from_micros(status.set_us).isoformat(timespec="seconds")
            reason = f": {status.reason}" if status.reason else ""
            yield (
                f"lake {self.lake}: the repository is {_NAMES[status.availability]} since {since}{reason}. None of its files is collected "
                "and its history is not edited until its status is online again (`set_status` of the library)"
            )
        if ref_files:
            yield (
                f"lake {self.lake}: {self.address} has {len(ref_files):,} objects in refs/ next to `repo`. A writer that opened it before "
                "its upgrade may still commit with spec version 1, and readers do not find these commits. Their snapshots are kept for "
                "retention.dangling. Restart such writers, then delete refs/"
            )
        if info.extra:
            yield f"lake {self.lake}: `repo` has {len(info.extra):,} bytes in its reserved field `extra`; they are kept and not interpreted"

    @property
    def _snapshots(self) -> SnapshotFolder:
        return SnapshotFolder(
            self.lake, self.objects, self.address, envelope.SPEC_V1_AND_V2, summary={"unlisted": "true"}, by_storage_time=True
        )


def _properties(info: RepoInfo) -> dict[str, str]:
    settings = RepositorySettings(2, _NAMES[info.status.availability], info.disabled_features)
    return settings.to_properties()
