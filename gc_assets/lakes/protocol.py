"""The interface of a lake, and the values that it returns.

A lake reads the formats of one system, without Spark. `freeze` runs in the driver and reads what
can change: refs and table pointers. `commits` and `decode` also run in executors, so lakes pickle.
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
CommitState = Literal["retained", "expired", "dangling"]
RETAINED: CommitState = "retained"
EXPIRED: CommitState = "expired"
DANGLING: CommitState = "dangling"


@dataclass(frozen=True, slots=True)
class ContentRoot:
    """A metadata object that a commit or a table points to directly.

    Attributes:
        address: Absolute address of the object.
        kind: File kind, a constant of `file_kinds.Kind`.
        is_container: True if the object names other objects.
        size_bytes: Size in bytes, None if the format does not record it.
        must_exist: False for objects that the format allows to be absent, such as
            `version-hint.text`. Their absence is no sign of loss.
    """

    address: str
    kind: str
    is_container: bool
    size_bytes: int | None = None
    must_exist: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag and its head at the time of the freeze.

    `properties` contains settings of the ref that retention needs, such as an Iceberg ref's
    `max-ref-age-ms`.
    """

    ref_name: str
    ref_type: RefType
    head_commit_id: str | None
    table_uuid: str | None = None
    table_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A part of the commit graph that one task reads.

    Examples are an Iceberg metadata.json and one shard of Icechunk's `snapshots/`.

    Attributes:
        address: Address of the object or prefix to read.
        shard: Number of this shard, from 0 to `shards` - 1.
        shards: Number of shards of the same address.
        properties: Frozen values that retention needs later. For Iceberg: the table's properties,
            and `collect` = `true` | `false`. Tables outside the `tables` patterns are read for
            protection only.
        digest: Digest of the bytes that contain all commits of a table. An equal digest means
            equal commits. None if more than one object contains the commits.
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
    """A prefix that belongs to a lake as a whole. Only claimed files can be candidates.

    Attributes:
        address: Absolute address that ends in `/`.
        collect: If false, nothing under the prefix is ever a candidate, even inside another
            claim. This applies to the location of a table with `gc.enabled=false` or outside the
            configured patterns.
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
    """A planned edit of history: a row of `expiry_plan`.

    Attributes:
        snapshot_id: The edited or removed snapshot. For `delete_ref`, the head of the ref.
        old_parent_id: The parent that `edit_parent` replaces. It is compared before the edit, and
            restored by an undo.
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
class UncommittedObject:
    """An object in the staging area of a branch that the branch's head does not name.

    `branch` and `path` are None if the system does not report them.
    """

    address: str
    branch: str | None
    path: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PreviousRef:
    """A ref of an earlier freeze that was missing or moved in a later one.

    Attributes:
        ref: The ref as the earlier run froze it.
        missed_at: Time of the first freeze without the ref at this head.
        moved_to: Head of the ref in that freeze, None if the ref was missing.
    """

    ref: Ref
    missed_at: datetime
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableTable:
    """A table in a catalog that cannot be read.

    Attributes:
        table_name: Name of the table, None if the whole lake is unreadable.
        reason: The error message.
        address: Address of the table's metadata, None if the catalog does not report it.
    """

    table_name: str | None
    reason: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenRefs:
    """State of a lake that can change, as one run froze it.

    Attributes:
        refs: All branches and tags with their heads.
        sources: The parts of the commit graph to read.
        claims: The prefixes that belong to the lake.
        pinned: Files that belong to the current state and not to a commit: the current
            metadata.json with its log, version hints, `ref.json` files, tag tombstones and
            `config.yaml`. They are live, regardless of the commits.
        notes: Sentences for the report, such as a table with `gc.enabled=false`.
        edits: Edits of history by plans of earlier runs. Rules that keep rolled-back history do
            not apply to history that these edits cut off.
        previous: Refs of earlier runs that a run within the grace period missed.
        min_age_seconds: Minimum age of a candidate in this lake, in addition to the grace period.
            The system may still link a younger object (a physical address of lakeFS).
        uncommitted: The staged objects (lakeFS), each with one address. All possible names of
            these objects are also in `pinned`.
        unreadable: The tables that cannot be read. No other attribute contains anything of them.
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
    uncommitted: tuple[UncommittedObject, ...] = ()
    unreadable: tuple[UnreadableTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A node of the commit graph.

    Attributes:
        parents: Ids of the parents in the order of the format, first parent first.
        committed_at: Time in UTC, with microseconds.
        content_roots: The metadata objects that the commit points to.
        summary: Further key-value pairs of the commit, such as Iceberg's operation and summary.
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
    """An immutable metadata object to decode, with the values that its parent records.

    Attributes:
        size_bytes: Expected size. Decoding verifies it.
        expected_entries: Expected number of entries. Decoding verifies it.
        snapshot_id: The snapshot id that entries without one inherit.
    """

    address: str
    kind: str
    size_bytes: int | None = None
    expected_entries: int | None = None
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Decision of the policy on every commit, and the edits of history that follow.

    Attributes:
        reachable: One row per commit of the graph, with the columns of `reachable_snapshots`.
        expiry: The planned edits, with the columns of `expiry_plan`.
        notes: Sentences for the report.
        contents: The live contents, with the columns of `live_contents`. None if the retained
            commits alone determine the live set.
    """

    reachable: pa.Table
    expiry: pa.Table
    notes: tuple[str, ...] = ()
    contents: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """Result of one action.

    Attributes:
        verdict: `done`: this call made the edit. `absent`: the lake was already in this state.
            `changed`: the policy no longer requires the edit, and the lake is left unchanged.
            `failed`: the edit could not be made.
        error: The reason if the verdict is `changed` or `failed`.
        damaged: True if the edit was made and the result differs from the planned one. It has to
            be repaired manually.
    """

    action: ExpiryAction
    verdict: ExpiryVerdict
    error: str | None = None
    damaged: bool = False


@runtime_checkable
class Lake(Protocol):
    """One catalog or repository. Instances pickle."""

    name: str
    kind: str

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read all refs, their heads and the other values of `FrozenRefs`.

        A table that cannot be read is listed in `FrozenRefs.unreadable`.

        Args:
            as_of: Time of the run.

        Raises:
            LakeUnreadable: If anything else cannot be read, such as the list of tables. The message
                names it.
        """
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the commits of one source.

        Raises:
            LakeUnreadable: If the commits cannot be read completely.
        """
        ...

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Return the children of a container.

        Returns:
            One row per child, with the columns of `ENTRY_SCHEMA` or `LOGICAL_ENTRY_SCHEMA`. A
            lake always uses the same schema.

        Raises:
            FormatError: If the bytes are damaged, or a count differs from the expected one. The
                message names the container.
        """
        ...

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the retention policy to the commit graph.

        The function is pure: it depends only on its arguments and the configuration.

        Args:
            refs: The frozen values of the run.
            commits: The whole graph, with the columns of `commit_graph`.
            as_of: Time from which ages are counted.
            grace_cutoff: Commits after this time are retained.
        """
        ...


@runtime_checkable
class ExpiringLake(Lake, Protocol):
    """A lake with an editable history.

    Files of its expired commits are free only after the commits are removed from history. In all
    other lakes, files that only expired commits name are free immediately.
    """

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Make the approved edits of history.

        The call reads refs and metadata again, and makes an edit only if the policy still
        requires it. Each edit is atomic and conditional on the values that were read. If the
        process is killed, the lake is valid and a second call makes the remaining edits.

        Yields:
            One outcome per action, as soon as it is known. An error of a catalog or store is
            `failed` for the actions that it concerns. The other actions continue.
        """
        ...


@runtime_checkable
class ReversibleLake(ExpiringLake, Protocol):
    """A lake whose edits can be undone as long as the objects of the old history exist."""

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undo executed actions of an `expiry_log`.

        Each change is conditional, and a call can be repeated, as with `expire`.

        Yields:
            One outcome per action. `done`: the lake is in the state before the action. `failed`
            includes changes that the format cannot undo, such as the name of a deleted tag.
        """
        ...


@runtime_checkable
class IncrementalLake(Lake, Protocol):
    """A lake whose commits never change, so that each commit is read only once.

    Commits of earlier runs stay in the graph. Only the driver reads commits, so pickled instances
    need no credentials.
    """

    def new_commits(self, source: CommitSource, known: Collection[str], previous_heads: Collection[str] = ()) -> Iterator[Commit]:
        """Yield the commits of a source that are not known.

        Args:
            source: A source of the current freeze.
            known: Ids of commits that were read before. The walk stops there, because their
                ancestors are also known.
            previous_heads: Commits of an earlier run that a ref may no longer reach. Their
                ancestors are yielded too. Commits that the lake no longer has are left out.

        Raises:
            LakeUnreadable: If the commits cannot be read completely.
        """
        ...


@runtime_checkable
class BatchLake(Lake, Protocol):
    """A lake that decodes many small containers faster in one call."""

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        """Return the result or the error of `decode` for each container."""
        ...


@runtime_checkable
class FilteredLake(Lake, Protocol):
    """A lake whose server lists only the refs that the user may read.

    A ref that disappears from the list may be hidden and not deleted.
    """

    def verify_deleted(self, names: Collection[str]) -> None:
        """Verify that refs that are missing from the list do not exist.

        Raises:
            LakeUnreadable: If the server does not confirm for each of `names` that it does not exist.
        """
        ...


def as_expiring(lake: Lake) -> ExpiringLake | None:
    """Return the lake if its history can be edited."""
    return lake if isinstance(lake, ExpiringLake) else None


def as_reversible(lake: Lake) -> ReversibleLake | None:
    """Return the lake if edits of its history can be undone."""
    return lake if isinstance(lake, ReversibleLake) else None


def as_incremental(lake: Lake) -> IncrementalLake | None:
    """Return the lake if its commits never change."""
    return lake if isinstance(lake, IncrementalLake) else None


def as_filtered(lake: Lake) -> FilteredLake | None:
    """Return the lake if its server may hide refs from the user."""
    return lake if isinstance(lake, FilteredLake) else None


def decode_batch(lake: Lake, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
    """Return the children, or the error, of each container."""
    return lake.decode_many(containers) if isinstance(lake, BatchLake) else [decode_or_error(lake.decode, *item) for item in containers]


def decode_or_error(decode: Callable[[Container, bytes], pa.RecordBatch], container: Container, raw: bytes) -> pa.RecordBatch | FormatError:
    """Return the result of `decode`, or the `FormatError` that it raises."""
    try:
        return decode(container, raw)
    except FormatError as error:
        return error
