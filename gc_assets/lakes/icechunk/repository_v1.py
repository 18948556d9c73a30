"""Repository with spec version 1: refs are in `refs/`, and all objects in `snapshots/` are commits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.refs import read_refs
from gc_assets.lakes.icechunk.snapshot_files import SnapshotFolder, count_shards, describe_unknown_names, is_in_shard, snapshots_of
from gc_assets.lakes.icechunk.virtual_locations import read_chunk_containers
from gc_assets.lakes.protocol import Claim, Commit, CommitSource, ContentRoot, FrozenRefs, NamedPrefixes

_UPGRADED = (
    "if the repository was upgraded during this run, run again; otherwise its object `repo` is missing: restore it from the newest "
    "copy in overwritten/"
)
FOLDERS = ("snapshots", "manifests", "transactions", "chunks")


@dataclass(frozen=True, slots=True)
class RepositoryV1:
    """An Icechunk repository with spec version 1. Its address does not end in a slash."""

    lake: str
    objects: Objects
    address: str

    def freeze(self, as_of: datetime) -> FrozenRefs:
        del as_of  # The state does not depend on the time in this version.
        return replace(self.read_state(), named_prefixes=self.read_prefixes())

    def read_state(self) -> FrozenRefs:
        """Read the mutable state, except for virtual chunk containers.

        Files of deleted tags stay live.

        Raises:
            LakeUnreadable: If a ref cannot be read, or the repository does not have any refs.
        """
        read = read_refs(self.lake, self.objects, self.address)
        if not read.refs:
            raise LakeUnreadable(
                f"lake {self.lake}: {self.address}/refs/ contains no branch and no tag, so this is not an Icechunk repository, or its refs "
                "are lost; correct the location, or restore the refs"
            )
        files = self._snapshots.list()
        shards = count_shards(len(files))
        config = ContentRoot(f"{self.address}/config.yaml", Kind.CONFIG, is_container=False, must_exist=False)
        return FrozenRefs(
            lake=self.lake,
            kind="icechunk",
            refs=read.refs,
            sources=tuple(CommitSource(self._snapshots.address, shard=shard, shards=shards) for shard in range(shards)),
            claims=tuple(Claim(f"{self.address}/{folder}/") for folder in FOLDERS),
            pinned=(*read.files, config),
            notes=describe_unknown_names(self.lake, files),
        )

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in the shard of `snapshots/` that the source describes.

        Objects whose names are not object ids are skipped. A damaged snapshot becomes a commit with
        the error in its summary.

        Raises:
            LakeUnreadable: If the store fails, there are no snapshots, or a file contains a
                snapshot with another id than its name.
        """
        files = self._snapshots.list()
        if not files:  # If this machine does not mount the repository's disk, all history would look deleted.
            raise LakeUnreadable(
                f"lake {self.lake}: {self._snapshots.address} is empty on {socket.gethostname()}, but the repository has refs; "
                "mount the same storage on every machine (docs/clusters.md), or restore the snapshots"
            )
        yield from self._snapshots.read([file for file in snapshots_of(files) if is_in_shard(file.name, source.shard, source.shards)])

    def read_new_commits(self, known: set[str]) -> list[Commit]:
        """Read the snapshots that are not in `known`."""
        return list(self._snapshots.read([file for file in snapshots_of(self._snapshots.list()) if file.name not in known]))

    def read_prefixes(self) -> NamedPrefixes:
        return read_chunk_containers(self.objects, self.address)

    @property
    def _snapshots(self) -> SnapshotFolder:
        return SnapshotFolder(self.lake, self.objects, self.address, envelope.SPEC_V1, _UPGRADED)
