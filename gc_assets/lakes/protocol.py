"""What a lake kind must answer, and the values in which it answers.

A lake kind knows formats and nothing of Spark. `freeze` runs in the driver and reads what can
change (refs, table pointers). `commits` and `decode` run in executors where there is much to read,
so lakes pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from gc_assets.core.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

RefType = Literal["branch", "tag"]
State = Literal["retained", "expired", "dangling"]
RETAINED: State = "retained"
EXPIRED: State = "expired"
DANGLING: State = "dangling"


@dataclass(frozen=True, slots=True)
class ContentRoot:
    """A metadata object that a commit (or a table) points at directly.

    `size_bytes` is null where the format does not record it. `must_exist` is false for objects that
    a format allows to be absent (`version-hint.text`): their absence is no sign of loss.
    """

    address: str
    kind: str
    is_container: bool
    size_bytes: int | None = None
    must_exist: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag and its head, as frozen.

    `properties` holds what retention needs (for Iceberg the ref's own settings).
    """

    ref_name: str
    ref_type: RefType
    head_commit_id: str | None
    table_uuid: str | None = None
    table_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A piece of the commit graph that is read by one task: an Iceberg metadata.json, or a
    share of Icechunk's `snapshots/`.

    `properties` are frozen facts of the piece that retention needs later. For Iceberg these are the
    table's properties, and `collect` = `true` | `false`: tables outside the `tables` patterns are
    read for protection only.

    `digest` is that of the bytes from which a table's commits are read, where one object holds all
    of them. While it stays as it is, so do the commits.
    """

    address: str
    table_uuid: str | None = None
    table_name: str | None = None
    shard: int = 0
    shards: int = 1
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A prefix (an address ending in `/`) that a lake says is wholly its own. Only claimed files
    can be candidates.

    With `collect` false nothing below the prefix is ever a candidate, even inside another claim.
    This holds for the location of a table with `gc.enabled=false`, or outside the configured
    patterns.
    """

    address: str
    table_uuid: str | None = None
    table_name: str | None = None
    collect: bool = True


Action = Literal["edit_parent", "remove_snapshot", "delete_ref"]
EDIT_PARENT: Action = "edit_parent"
REMOVE_SNAPSHOT: Action = "remove_snapshot"
DELETE_REF: Action = "delete_ref"
ExpiryVerdict = Literal["done", "absent", "changed", "failed"]


@dataclass(frozen=True, slots=True)
class ExpiryAction:
    """One edit of history, as planned: a row of `expiry_plan`.

    For `delete_ref`, `snapshot_id` is the head that the ref had. `old_parent_id` is the parent that
    `edit_parent` replaces. The check that the object is still the same needs it, and so does
    undoing.
    """

    action: Action
    snapshot_id: str
    reason: str
    ref_type: RefType | None = None
    ref_name: str | None = None
    old_parent_id: str | None = None
    new_parent_id: str | None = None
    table_uuid: str | None = None
    table_name: str | None = None


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """An object that a branch's staging area names and the branch's head does not.

    `branch` and `path` are null where the system does not say.
    """

    address: str
    branch: str | None
    path: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PreviousRef:
    """A ref as an earlier night froze it, which a later night missed.

    The freeze at `missed_at` no longer showed the ref (`moved_to` is null), or showed it at the
    head `moved_to`.
    """

    ref: Ref
    missed_at: datetime
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A table that a catalog names and that could not be read, with why. `table_name` is null where
    it is the whole lake. `address` is that of its metadata, where the catalog says it.
    """

    table_name: str | None
    why: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenRefs:
    """All that a run knows of the changeable part of a lake: its refs, where its commits are read,
    what it claims, and which files are live whatever the commits say.

    `pinned` holds files that belong to the present state and not to a commit: the current
    metadata.json with its log, version hints, `ref.json` files, tag tombstones, `config.yaml`.

    `notes` are sentences for the report (a table with `gc.enabled=false`, an empty repository).

    `edits` are the edits of history that our plans made in earlier nights. What they let go of is
    no rolled-back history, so a rule that keeps rolled-back history does not keep it.

    `previous` are refs that an earlier night saw, and that a night within the grace period missed.

    `unread` names the tables that could not be read. Nothing else here speaks of them.

    `uncommitted` holds the staged objects (lakeFS), each under one address. All names of these
    objects are `pinned` too.

    No object younger than `min_age_seconds` is ever a candidate here, whatever the storage's grace.
    The system itself may still take it up (a lakeFS address that may yet be linked).
    """

    lake: str
    kind: str
    refs: tuple[Ref, ...]
    sources: tuple[CommitSource, ...]
    claims: tuple[Claim, ...]
    pinned: tuple[ContentRoot, ...]
    notes: tuple[str, ...] = ()
    edits: tuple[ExpiryAction, ...] = ()
    previous: tuple[PreviousRef, ...] = ()
    min_age_seconds: int = 0
    uncommitted: tuple[Uncommitted, ...] = ()
    unread: tuple[Unread, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A node of the commit graph.

    `committed_at` is UTC with microseconds. `parents` stand in the order of the format, first
    parent first. `summary` holds what the format says of the commit beyond its message (Iceberg's
    operation and summary map).
    """

    commit_id: str
    parents: tuple[str, ...]
    committed_at: datetime
    content_roots: tuple[ContentRoot, ...]
    message: str | None = None
    table_uuid: str | None = None
    table_name: str | None = None
    summary: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Container:
    """An immutable metadata object to decode, with what its parent says of it.

    Decoding verifies the object against `size_bytes` and `expected_entries`, the number of entries
    that the parent promises. Entries without a snapshot id inherit `snapshot_id`.
    """

    address: str
    kind: str
    size_bytes: int | None = None
    expected_entries: int | None = None
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """The policy's verdict on every commit, and the edits of history that carry it out.

    `reachable` has the columns of `reachable_snapshots`, one row per commit of the graph. `expiry`
    has the columns of `expiry_plan`. `contents` has the columns of `live_contents`. It is null
    unless the lake's live set is more than what its retained commits put. `notes` are sentences for
    the report.
    """

    reachable: pa.Table
    expiry: pa.Table
    notes: tuple[str, ...] = ()
    contents: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """What became of an action. `error` says why wherever the verdict is neither `done` nor
    `absent`.

    `done`: this call made the edit. `absent`: the lake was so already. `changed`: the lake no
    longer asks for the edit, which is left alone. `failed`: the edit could not be made.

    `spoilt` is true where the edit was made and left the lake other than it was to be. Only a
    person can mend that.
    """

    action: ExpiryAction
    verdict: ExpiryVerdict
    error: str | None = None
    spoilt: bool = False


@runtime_checkable
class Lake(Protocol):
    """One catalog or repository. Instances pickle."""

    name: str
    kind: str

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Returns every ref and its head, with the rest of `FrozenRefs`.

        A table that cannot be read is named in `unread`. Raises `LakeUnreadable` naming what else
        could not be read, such as the list of tables.
        """
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yields the commits behind one source. Raises `LakeUnreadable`."""
        ...

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Returns a container's children as rows of `ENTRY_SCHEMA` or `LOGICAL_ENTRY_SCHEMA`. One
        lake always uses the same schema.

        Raises `FormatError` naming the container, also where a count is not the promised one.
        """
        ...

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Applies the policy to the whole graph (columns of `commit_graph`). Pure: it reads nothing
        but its arguments and the configuration.
        """
        ...


@runtime_checkable
class ExpiringLake(Lake, Protocol):
    """A lake whose history can be edited.

    The files of its expired commits are free only once history has let go of these commits. In all
    other lakes, files that only expired commits name are free at once.
    """

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Makes the edits, and yields one outcome per action as soon as it is known.

        Refs and metadata are read afresh. An edit is made only if the policy still asks for it;
        otherwise its outcome is `changed`. Each edit is atomic, and conditional on what was read. A
        killed call leaves a valid lake, and a second call does the rest. An error of a catalog or
        store becomes `failed` for the actions it concerns; the others go on.
        """
        ...


@runtime_checkable
class UndoingLake(ExpiringLake, Protocol):
    """A lake whose edits of history can be undone, as long as what they let go of is still there."""

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Puts back what these actions of an `expiry_log` changed, and yields one outcome per
        action.

        `done` says that the lake is again as it was before the action. As with `expire`, each
        change is conditional, and a killed call can be repeated. What the format never gives back
        (the name of a deleted tag) is `failed`.
        """
        ...


@runtime_checkable
class GrowingLake(Lake, Protocol):
    """A lake whose commits never change. A commit that an earlier night read is neither read again
    nor forgotten. Only the driver asks for commits, so what is pickled need not log in.
    """

    def new_commits(self, source: CommitSource, known: Collection[str], former: Collection[str] = ()) -> Iterator[Commit]:
        """Yields the commits of a source that are not `known`, and the commits behind `former`.

        A known commit ends the walk: what lies behind it is known too. `former` are commits that an
        earlier night read; no ref need reach them any more. A former commit that the lake no longer
        has is left out. Raises `LakeUnreadable`.
        """
        ...


@runtime_checkable
class BatchLake(Lake, Protocol):
    """A lake to which many small containers together cost less than one by one."""

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        """Returns for each container what `decode` returns or raises."""
        ...


@runtime_checkable
class WatchedLake(Lake, Protocol):
    """A lake that lists only the refs that it lets us see.

    A ref that an earlier night saw and the list now lacks is therefore asked for by its name.
    """

    def refuse_hidden(self, names: Collection[str]) -> None:
        """Returns only if the lake says of each of these refs, which its list lacks, that it does
        not exist. Raises `LakeUnreadable` otherwise.
        """
        ...


def expiring(lake: Lake) -> ExpiringLake | None:
    """Returns the lake if its history can be edited, else None."""
    return lake if isinstance(lake, ExpiringLake) else None


def undoing(lake: Lake) -> UndoingLake | None:
    """Returns the lake if edits of its history can be undone, else None."""
    return lake if isinstance(lake, UndoingLake) else None


def growing(lake: Lake) -> GrowingLake | None:
    """Returns the lake if its commits never change, else None."""
    return lake if isinstance(lake, GrowingLake) else None


def decoded(lake: Lake, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
    """Returns the children of many containers, each as `decode` says, or its error."""
    return lake.decode_many(containers) if isinstance(lake, BatchLake) else [decoded_alone(lake.decode, *item) for item in containers]


def decoded_alone(decode: Callable[[Container, bytes], pa.RecordBatch], container: Container, raw: bytes) -> pa.RecordBatch | FormatError:
    """Returns what `decode` returns or raises."""
    try:
        return decode(container, raw)
    except FormatError as error:
        return error


def watched(lake: Lake) -> WatchedLake | None:
    """Returns the lake if its list may hide refs from us, else None."""
    return lake if isinstance(lake, WatchedLake) else None
