"""Lake for an Icechunk repository with spec version 1.

A commit is a snapshot, and its content root is the snapshot object itself. All objects in
`snapshots/` are commits, even if no ref reaches them. They are listed and read concurrently instead
of following parents one request at a time.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from gc_assets.core.errors import FormatError, LakeUnreadable, StoreError
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import entries
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.current_state import CurrentState, RequestedEdits
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.envelope import SpecVersionError
from gc_assets.lakes.icechunk.execution import execute
from gc_assets.lakes.icechunk.graph import UNREADABLE, commit_table
from gc_assets.lakes.icechunk.ids import is_object_id
from gc_assets.lakes.icechunk.refs import read_refs
from gc_assets.lakes.icechunk.restore import restore
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.icechunk.snapshots import Snapshot, parse_snapshot
from gc_assets.lakes.icechunk.virtual_locations import read_chunk_containers
from gc_assets.lakes.protocol import (
    Claim,
    Commit,
    CommitSource,
    Container,
    ContentRoot,
    ExpiryAction,
    ExpiryOutcome,
    FrozenRefs,
    NamedPrefixes,
    Retention,
)

# Every shard lists the whole folder, so a shard has to be large: 47,000 snapshots have 12 shards.
SNAPSHOTS_PER_SHARD = 4096
# Reads are limited by the store and not by the processor.
READERS = 16
# Submitting a read to a thread costs more than parsing a snapshot, so a thread reads a batch.
BATCHES_PER_READER = 8


class IcechunkLake:
    """Lake for one repository, picklable if `objects` is."""

    kind = "icechunk"

    def __init__(self, config: IcechunkLakeConfig, objects: EditableObjects, chunk_containers: NamedPrefixes | None = None) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._chunk_containers = chunk_containers
        self._repository = config.location.rstrip("/")

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - part of the protocol; refs of Icechunk have no time
        """Read all branches and tags. Deleted tags are not refs, but their files are pinned.

        Raises:
            LakeUnreadable: If a ref cannot be read, or the repository has no refs or spec version 2.
        """
        refs, containers = self._freeze(), self.read_prefixes()
        if containers.error is None:
            return replace(refs, named_prefixes=containers)
        note = f"lake {self.name}: {containers.error}; a commit with locations that name virtual chunk containers would be unreadable"
        return replace(refs, named_prefixes=containers, notes=(*refs.notes, note))

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the snapshots in the source's shard.

        Objects whose names are not object ids are skipped, because nothing can refer to them. A
        damaged snapshot is a commit with an error in its summary, because only `retain` can decide
        whether it is needed.

        Raises:
            LakeUnreadable: If the store fails, there is no snapshot, or a snapshot has the name of
                another one.
        """
        listed = self._snapshot_objects()
        if not listed:  # on a machine without the repository's disk, the whole history would look deleted
            raise LakeUnreadable(
                f"lake {self.name}: {self._repository}/snapshots/ is empty on {socket.gethostname()}, but the repository has refs; "
                "mount the same storage on every machine (docs/clusters.md), or restore the snapshots"
            )
        own = [
            item
            for item in listed
            if is_object_id(name := item[0].rpartition("/")[2]) and zlib.crc32(name.encode()) % source.shards == source.shard
        ]
        batch = 1 + len(own) // (READERS * BATCHES_PER_READER)
        with ThreadPoolExecutor(READERS) as readers:
            for commits in readers.map(self._read_commits, (own[at : at + batch] for at in range(0, len(own), batch))):
                yield from commits

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Return the children of a snapshot or a chunk manifest."""
        return entries.decode(container, raw, self._chunk_containers)

    def read_prefixes(self) -> NamedPrefixes:
        return read_chunk_containers(self._objects, self._repository)

    def with_prefixes(self, named_prefixes: NamedPrefixes) -> IcechunkLake:
        return IcechunkLake(self._config, self._objects, named_prefixes)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the configured cut-offs and semantics."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Make the approved history edits.

        If anything cannot be read, every action fails, because each of them may depend on it.
        """
        try:
            refs, commits = self._read_current()
            policy = self.retain(refs, commit_table(commits), as_of, grace_cutoff)
            if (now := self._freeze()).refs != refs.refs:  # refs may have moved while many snapshots were read
                refs, commits = now, [*commits, *self._read_new_commits(commits)]
                policy = self.retain(refs, commit_table(commits), as_of, grace_cutoff)
        except (LakeUnreadable, StoreError) as error:
            yield from _fail_all(actions, error)
            return
        requested = RequestedEdits.of([ExpiryAction(**row) for row in policy.expiry.to_pylist()])
        yield from execute(actions, requested, CurrentState.of(refs, commits), self._editor)

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undo actions if the repository is in the state after them and the old history exists."""
        try:
            refs, commits = self._read_current()
        except (LakeUnreadable, StoreError) as error:
            yield from _fail_all(actions, error)
            return
        yield from restore(actions, CurrentState.of(refs, commits), self._editor)

    @property
    def _editor(self) -> Editor:
        return Editor(self._objects, self._repository)

    def _read_current(self) -> tuple[FrozenRefs, list[Commit]]:
        refs = self._freeze()
        return refs, [commit for source in refs.sources for commit in self.commits(source)]

    def _read_new_commits(self, commits: Sequence[Commit]) -> list[Commit]:
        known = {commit.commit_id for commit in commits}
        return self._read_commits(
            [item for item in self._snapshot_objects() if is_object_id(name := item[0].rpartition("/")[2]) and name not in known]
        )

    def _freeze(self) -> FrozenRefs:
        at = self._repository
        if self._exists(f"{at}/repo"):
            raise LakeUnreadable(
                f"lake {self.name}: {at} is an Icechunk repository of spec version 2 (it has the object `repo`); "
                "this release collects only spec version 1, and nothing was changed"
            )
        read = read_refs(self.name, self._objects, at)
        if not read.refs:
            raise LakeUnreadable(
                f"lake {self.name}: {at}/refs/ contains no branch and no tag, so this is no Icechunk repository or its refs are lost; "
                "correct the location, or restore the refs"
            )
        names = [address.rpartition("/")[2] for address, _, _ in self._snapshot_objects()]
        shards = 1 + len(names) // SNAPSHOTS_PER_SHARD
        unknown_names = [name for name in names if not is_object_id(name)]
        config = ContentRoot(f"{at}/config.yaml", Kind.CONFIG, is_container=False, must_exist=False)
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=read.refs,
            sources=tuple(CommitSource(f"{at}/snapshots/", shard=shard, shards=shards) for shard in range(shards)),
            claims=tuple(Claim(f"{at}/{folder}/") for folder in ("snapshots", "manifests", "transactions", "chunks")),
            pinned=(*read.files, config),
            notes=_notes(self.name, unknown_names),
        )

    def _exists(self, address: str) -> bool:
        try:
            self._objects.size(address)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LakeUnreadable(f"lake {self.name}: cannot determine whether {address} exists: {error}") from error
        return True

    def _snapshot_objects(self) -> list[tuple[str, int, datetime]]:
        prefix = f"{self._repository}/snapshots/"
        try:
            return [item for item in self._objects.list(prefix) if "/" not in item[0].removeprefix(prefix)]
        except OSError as error:
            raise LakeUnreadable(f"lake {self.name}: {prefix} cannot be listed: {error}") from error

    def _read_commits(self, objects: Sequence[tuple[str, int, datetime]]) -> list[Commit]:
        return [commit for item in objects if (commit := self._read_commit(*item)) is not None]

    def _read_commit(self, address: str, size_bytes: int, last_modified: datetime) -> Commit | None:
        where = f"lake {self.name}: snapshot {address}"
        try:
            raw = self._objects.read(address)
        except FileNotFoundError:
            return None  # deleted after the listing; if a ref needs it, `retain` raises
        except OSError as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error
        name = address.rpartition("/")[2]
        try:
            snapshot = parse_snapshot(where, raw)
        except SpecVersionError as error:
            raise LakeUnreadable(str(error)) from error
        except FormatError as error:
            return Commit(name, (), last_modified, (), summary={UNREADABLE: str(error)})
        if snapshot.snapshot_id != name:
            raise LakeUnreadable(f"{where} has the content of snapshot {snapshot.snapshot_id}; restore the file from a backup")
        return _build_commit(snapshot, address, size_bytes)


def _build_commit(snapshot: Snapshot, address: str, size_bytes: int) -> Commit:
    return Commit(
        commit_id=snapshot.snapshot_id,
        parents=() if snapshot.parent_id is None else (snapshot.parent_id,),
        committed_at=snapshot.flushed_at,
        content_roots=(ContentRoot(address, Kind.SNAPSHOT, is_container=True, size_bytes=size_bytes),),
        message=snapshot.message,
    )


def _fail_all(actions: Sequence[ExpiryAction], error: Exception) -> Iterator[ExpiryOutcome]:
    for action in actions:
        yield ExpiryOutcome(action, "failed", str(error))


def _notes(lake: str, unknown_names: list[str]) -> tuple[str, ...]:
    if not unknown_names:
        return ()
    return (
        f"lake {lake}: {len(unknown_names):,} objects in snapshots/ have names that are not object ids "
        f"(for example {sorted(unknown_names)[0]!r}); no snapshot or ref can name them, so they are collected like other orphans",
    )
