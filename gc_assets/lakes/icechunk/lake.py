"""The Icechunk lake kind: one repository of spec v1, behind `lakes.protocol.Lake`.

A commit is a snapshot, and its content root is the snapshot object itself. All snapshots below
`snapshots/` are commits, whether a ref reaches them or not. They are listed and read side by side,
never by following parents one request at a time.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pyarrow as pa

from gc_assets.core.errors import FormatError, LakeUnreadable, StoreError
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import entries
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.current_state import Asked, Present
from gc_assets.lakes.icechunk.editor import Editor
from gc_assets.lakes.icechunk.envelope import SpecVersionError
from gc_assets.lakes.icechunk.execution import execute
from gc_assets.lakes.icechunk.graph import UNREADABLE, commit_table
from gc_assets.lakes.icechunk.ids import is_object_id
from gc_assets.lakes.icechunk.refs import read_refs
from gc_assets.lakes.icechunk.restore import restore
from gc_assets.lakes.icechunk.retention import retain
from gc_assets.lakes.icechunk.snapshots import Snapshot, parse_snapshot
from gc_assets.lakes.protocol import Claim, Commit, CommitSource, Container, ContentRoot, ExpiryAction, ExpiryOutcome, FrozenRefs, Retention

# Every shard lists the whole folder, so a shard must read many times what it lists: at 47,000
# snapshots twelve shards.
SNAPSHOTS_A_SHARD = 4096
# Reads wait for the store and not for the processor.
_READERS = 16
# Handing a read to a thread costs more than parsing what it brings, so that a reader takes a
# handful at a time.
_HANDFULS_A_READER = 8


class IcechunkLake:
    """One repository. `objects` reads and changes everything, so instances pickle as it does."""

    kind = "icechunk"

    def __init__(self, config: IcechunkLakeConfig, objects: EditableObjects) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._repository = config.location.rstrip("/")

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - of the protocol; Icechunk's refs carry no time of their own
        """Returns every branch and tag. Deleted tags are no refs, but their files stay.

        Raises `LakeUnreadable` for a ref that cannot be read, a repository without refs, and one of
        spec version 2.
        """
        return self._frozen()

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yields the snapshots whose name falls to the source's shard.

        A name that is no object id is no snapshot: nothing can refer to it. A damaged snapshot is a
        commit that says so in its summary, because only `retain` can tell whether anything needs
        it. Raises `LakeUnreadable` where the store does not answer or shows no snapshot at all, and
        for a snapshot under another one's name.
        """
        listed = self._snapshot_objects()
        if not listed:  # a machine without the repository's disk would take all history for gone
            raise LakeUnreadable(
                f"lake {self.name}: {self._repository}/snapshots/ holds no snapshot on {socket.gethostname()}, and refs were read of the "
                "repository: every machine must reach the same place (docs/clusters.md); otherwise restore the snapshots"
            )
        own = [
            item
            for item in listed
            if is_object_id(name := item[0].rpartition("/")[2]) and zlib.crc32(name.encode()) % source.shards == source.shard
        ]
        handful = 1 + len(own) // (_READERS * _HANDFULS_A_READER)
        with ThreadPoolExecutor(_READERS) as readers:
            for commits in readers.map(self._commits, (own[at : at + handful] for at in range(0, len(own), handful))):
                yield from commits

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Returns the children of a snapshot or a chunk manifest. Raises `FormatError` naming it."""
        return entries.decode(container, raw)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Returns what the configured semantics and cut-offs keep at `as_of`, and the edits of
        history that they ask for.
        """
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Makes the edits as `ExpiringLake.expire` says. Where anything cannot be read every action
        fails, because any of them may depend on it.
        """
        try:
            refs, commits = self._read_afresh()
            policy = self.retain(refs, commit_table(commits), as_of, grace_cutoff)
            if (now := self._frozen()).refs != refs.refs:  # a repository of many snapshots takes a while to read
                refs, commits = now, [*commits, *self._made_since(commits)]
                policy = self.retain(refs, commit_table(commits), as_of, grace_cutoff)
        except (LakeUnreadable, StoreError) as error:
            yield from _failed(actions, error)
            return
        asked = Asked.of([ExpiryAction(**row) for row in policy.expiry.to_pylist()])
        yield from execute(actions, asked, Present.of(refs, commits), self._editor)

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undoes the actions as `ReversibleLake.undo` says, on condition that the repository is as
        they left it and that what they let go of is still there.
        """
        try:
            refs, commits = self._read_afresh()
        except (LakeUnreadable, StoreError) as error:
            yield from _failed(actions, error)
            return
        yield from restore(actions, Present.of(refs, commits), self._editor)

    @property
    def _editor(self) -> Editor:
        return Editor(self._objects, self._repository)

    def _read_afresh(self) -> tuple[FrozenRefs, list[Commit]]:
        refs = self._frozen()
        return refs, [commit for source in refs.sources for commit in self.commits(source)]

    def _made_since(self, commits: Sequence[Commit]) -> list[Commit]:
        known = {commit.commit_id for commit in commits}
        return self._commits(
            [item for item in self._snapshot_objects() if is_object_id(name := item[0].rpartition("/")[2]) and name not in known]
        )

    def _frozen(self) -> FrozenRefs:
        at = self._repository
        if self._exists(f"{at}/repo"):
            raise LakeUnreadable(
                f"lake {self.name}: {at} is an Icechunk repository of spec version 2 (it has the object `repo`); "
                "this release collects spec version 1 only, and nothing of it was changed"
            )
        read = read_refs(self.name, self._objects, at)
        if not read.refs:
            raise LakeUnreadable(
                f"lake {self.name}: {at}/refs/ holds no branch and no tag, so this is no Icechunk repository or its refs are lost; "
                "correct the location, or restore the refs"
            )
        names = [address.rpartition("/")[2] for address, _, _ in self._snapshot_objects()]
        shards = 1 + len(names) // SNAPSHOTS_A_SHARD
        strangers = [name for name in names if not is_object_id(name)]
        config = ContentRoot(f"{at}/config.yaml", Kind.CONFIG, is_container=False, must_exist=False)
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=read.refs,
            sources=tuple(CommitSource(f"{at}/snapshots/", shard=shard, shards=shards) for shard in range(shards)),
            claims=tuple(Claim(f"{at}/{folder}/") for folder in ("snapshots", "manifests", "transactions", "chunks")),
            pinned=(*read.files, config),
            notes=_notes(self.name, strangers),
        )

    def _exists(self, address: str) -> bool:
        try:
            self._objects.size(address)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LakeUnreadable(f"lake {self.name}: cannot tell whether {address} exists: {error}") from error
        return True

    def _snapshot_objects(self) -> list[tuple[str, int, datetime]]:
        prefix = f"{self._repository}/snapshots/"
        try:
            return [item for item in self._objects.list(prefix) if "/" not in item[0].removeprefix(prefix)]
        except OSError as error:
            raise LakeUnreadable(f"lake {self.name}: {prefix} cannot be listed: {error}") from error

    def _commits(self, objects: Sequence[tuple[str, int, datetime]]) -> list[Commit]:
        return [commit for item in objects if (commit := self._commit(*item)) is not None]

    def _commit(self, address: str, size_bytes: int, last_modified: datetime) -> Commit | None:
        where = f"lake {self.name}: snapshot {address}"
        try:
            raw = self._objects.read(address)
        except FileNotFoundError:
            return None  # gone since it was listed, as if it had been gone before; a ref that needs it stops the run in `retain`
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
            raise LakeUnreadable(f"{where} holds the bytes of snapshot {snapshot.snapshot_id}; restore the file from a backup")
        return _commit(snapshot, address, size_bytes)


def _commit(snapshot: Snapshot, address: str, size_bytes: int) -> Commit:
    return Commit(
        commit_id=snapshot.snapshot_id,
        parents=() if snapshot.parent_id is None else (snapshot.parent_id,),
        committed_at=snapshot.flushed_at,
        content_roots=(ContentRoot(address, Kind.SNAPSHOT, is_container=True, size_bytes=size_bytes),),
        message=snapshot.message,
    )


def _failed(actions: Sequence[ExpiryAction], error: Exception) -> Iterator[ExpiryOutcome]:
    for action in actions:
        yield ExpiryOutcome(action, "failed", str(error))


def _notes(lake: str, strangers: list[str]) -> tuple[str, ...]:
    if not strangers:
        return ()
    return (
        f"lake {lake}: {len(strangers):,} objects in snapshots/ have names that are no object ids (for example {sorted(strangers)[0]!r}); "
        "no snapshot or ref can name them, so they are collected like other leftovers",
    )
