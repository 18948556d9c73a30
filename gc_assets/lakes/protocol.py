"""The questions a lake kind answers, and the values it answers with.

A lake kind knows formats and nothing of Spark. `freeze` runs in the driver and reads what can change (refs, table
pointers); `commits` and `decode` run in executors, on values that pickle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

RefType = Literal["branch", "tag"]
State = Literal["retained", "expired", "dangling"]
RETAINED: State = "retained"
EXPIRED: State = "expired"
DANGLING: State = "dangling"


class Kind:
    """The closed list of file kinds. A format that meets another one stops (`FormatError`)."""

    METADATA_JSON = "metadata_json"
    VERSION_HINT = "version_hint"
    MANIFEST_LIST = "manifest_list"
    MANIFEST = "manifest"
    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"
    DELETION_VECTOR = "deletion_vector"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition_statistics"
    SNAPSHOT = "snapshot"
    TRANSACTION_LOG = "transaction_log"
    CHUNK_MANIFEST = "chunk_manifest"
    CHUNK = "chunk"
    VIRTUAL_CHUNK = "virtual_chunk"
    METARANGE = "metarange"
    RANGE = "range"
    OBJECT = "object"
    # A name that an object may have here (lakeFS): kept, and not counted as one more file.
    POSSIBLE_OBJECT = "possible_object"
    REF = "ref"
    CONFIG = "config"
    VIEW_METADATA = "view_metadata"
    # No files, but what a container or commit says of places: everything below a table's or view's location is its own;
    # below the other nothing can be told; and which table or view a metadata file is of (a `urn:uuid:`).
    TABLE_LOCATION = "table_location"
    UNLISTED_LOCATION = "unlisted_location"
    TABLE_UUID = "table_uuid"


# Kinds that are no files: they stand beside `manifest_entries` and content roots, never in a live set.
PLACE_KINDS = (Kind.TABLE_LOCATION, Kind.UNLISTED_LOCATION, Kind.TABLE_UUID)


KINDS: tuple[str, ...] = tuple(sorted(value for name, value in vars(Kind).items() if name.isupper()))

# What names others stands before what it names. A transaction log names nothing, and only its snapshot leads to it.
_BY_REFERENCE: tuple[tuple[str, ...], ...] = (
    (Kind.REF, Kind.CONFIG, Kind.VERSION_HINT),
    (Kind.METADATA_JSON, Kind.VIEW_METADATA, Kind.SNAPSHOT),
    (Kind.MANIFEST_LIST, Kind.METARANGE, Kind.TRANSACTION_LOG),
    (Kind.MANIFEST, Kind.RANGE, Kind.CHUNK_MANIFEST),
)
RANKS: Mapping[str, int] = {kind: rank for rank, kinds in enumerate(_BY_REFERENCE) for kind in kinds}
# Where reading a lake starts: no container names these.
ROOT_KINDS = _BY_REFERENCE[0]
# Data, and files that no metadata names.
LEAF_RANK = len(_BY_REFERENCE)


@dataclass(frozen=True, slots=True)
class ContentRoot:
    """A metadata object that a commit (or a table) points at directly.

    `size_bytes` is null where the format does not record it. `must_exist` is false for objects that a
    format allows to be absent (`version-hint.text`), so that their absence is no sign of loss.
    """

    address: str
    kind: str
    is_container: bool
    size_bytes: int | None = None
    must_exist: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag and its head, as frozen. `properties` carries what retention needs (for Iceberg the ref's own settings)."""

    ref_name: str
    ref_type: RefType
    head_commit_id: str | None
    table_uuid: str | None = None
    table_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A piece of the commit graph that one executor task reads: an Iceberg metadata.json, a share of Icechunk's `snapshots/`.

    `properties` are frozen facts of that piece that retention needs later (for Iceberg the table's properties,
    and `collect` = `true` | `false`: tables outside the `tables` patterns are read for protection only).
    """

    address: str
    table_uuid: str | None = None
    table_name: str | None = None
    shard: int = 0
    shards: int = 1
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Claim:
    """A prefix (an address ending in `/`) that a lake says is wholly its own. Only claimed files can be candidates.

    With `collect` false nothing below it is ever a candidate, also where it lies inside another claim: the location of a
    table with `gc.enabled=false`, or outside the configured patterns.
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

    `snapshot_id` is the head that a deleted ref had. `old_parent_id` is what `edit_parent` replaces, for the same-object check and
    for undoing.
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
    """An object that a branch's staging area names and its head does not. `branch` and `path` are null where the system does not say."""

    address: str
    branch: str | None
    path: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class FormerRef:
    """A ref as an earlier night froze it. The one that read `missed_at` found it gone (`moved_to` null) or at another head."""

    ref: Ref
    missed_at: datetime
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenRefs:
    """All that a run believes of a lake: refs, where its commits are read, what it claims, and files live whatever commits say.

    `pinned` holds files that belong to the present state and not to a commit: the current metadata.json with its log,
    version hints, `ref.json` files, tag tombstones, `config.yaml`.
    `notes` are sentences for the report (a table with `gc.enabled=false`, an empty repository).
    `edits` are those that plans of ours made in earlier nights: what they let go of is no rolled-back history, which a rule may keep.
    `former` are refs that earlier nights saw where they are no more, if that was missed within the grace period.
    `uncommitted` is what is staged (lakeFS), each under one address; all its names are `pinned` too.
    `min_age_seconds`: nothing younger is ever a candidate here, whatever the storage's grace, because the system itself may still
    take the file up (a lakeFS address that may yet be linked).
    """

    lake: str
    kind: str
    refs: tuple[Ref, ...]
    sources: tuple[CommitSource, ...]
    claims: tuple[Claim, ...]
    pinned: tuple[ContentRoot, ...]
    notes: tuple[str, ...] = ()
    edits: tuple[ExpiryAction, ...] = ()
    former: tuple[FormerRef, ...] = ()
    min_age_seconds: int = 0
    uncommitted: tuple[Uncommitted, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A node of the commit graph. `committed_at` is UTC with microseconds; `parents` oldest rule of the format first.

    `summary` keeps what the format says of the commit beyond its message (Iceberg's operation and summary map).
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
    """An immutable metadata object to decode, with what its parent says of it, to verify against.

    `expected_entries` is the number of entries its parent promises, `snapshot_id` the one that entries inherit.
    """

    address: str
    kind: str
    size_bytes: int | None = None
    expected_entries: int | None = None
    snapshot_id: str | None = None


# One row per child of a container, as a decoder yields it. `address` is absolute, as the writer spelled it.
# `size_bytes` and `expected_entries` describe the child where the container says so; `entry_status` is
# `added` | `existing` | `deleted` where the format has it, else null; `must_exist` as in `ContentRoot`.
ENTRY_SCHEMA = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("is_container", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("expected_entries", pa.int64()),
        pa.field("snapshot_id", pa.string()),
        pa.field("entry_status", pa.string()),
        pa.field("must_exist", pa.bool_(), nullable=False),
    ]
)

# Where a lake names its objects by paths of its own (lakeFS): the logical path, and the time the entry was written.
LOGICAL_ENTRY_SCHEMA = pa.schema([*ENTRY_SCHEMA, pa.field("path", pa.string()), pa.field("written_at", pa.timestamp("us", tz="UTC"))])


class Objects(Protocol):
    """Reads whole objects by address, in driver and executors. Implementations pickle and are safe to use from threads.

    Raises `FileNotFoundError` where there is no such object and `OSError` for everything else.
    """

    def read(self, address: str) -> bytes: ...
    def size(self, address: str) -> int: ...
    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Every object below a prefix that ends in `/`, recursively: (address, size in bytes, last modified).

        A prefix without objects is empty.
        """
        ...


class EditableObjects(Objects, Protocol):
    """Objects that a lake may change: each change is atomic, durable when the call returns, and conditional.

    Besides the errors of `Objects`, `ObjectChanged` says that the condition did not hold, so nothing was changed.
    """

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        """The object's bytes, and the identity that a later change is conditional on."""
        ...

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """The object has other bytes, if it is still the one of that identity. Readers meet the old or the new ones, nothing else."""
        ...

    def create(self, address: str, content: bytes) -> None:
        """There is an object of these bytes. Raises `FileExistsError` where there was one already, whatever its bytes."""
        ...

    def remove(self, address: str, etag: str) -> None:
        """There is no object, if it was still the one of that identity."""
        ...


@dataclass(frozen=True, slots=True)
class Retention:
    """What the policy says of every commit, and the edits of history that would make it so.

    `reachable` has the columns of `reachable_snapshots`, one row per commit of the graph; `expiry` those of `expiry_plan`;
    `contents` those of `live_contents`, where the lake's live set is more than what its retained commits put.
    """

    reachable: pa.Table
    expiry: pa.Table
    notes: tuple[str, ...] = ()
    contents: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """What became of an action, and for all but the first two why.

    `done` by this call, `absent` (the lake was so already), `changed` (the lake no longer asks for it: left alone), or `failed`.
    `spoilt`: it was made, and the lake is not as it was to be afterwards; only a person can mend that.
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
        """Every ref and its head. Raises `LakeUnreadable` naming the one that could not be read."""
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """The part of the graph behind one source. Raises `LakeUnreadable`."""
        ...

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """A container's bytes as rows of `ENTRY_SCHEMA` or `LOGICAL_ENTRY_SCHEMA`, always the same of one lake, counts verified.

        Raises `FormatError` naming the container.
        """
        ...

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """The policy over the whole graph (columns of `commit_graph`), pure."""
        ...


@runtime_checkable
class ExpiringLake(Lake, Protocol):
    """A lake whose history is edited: files of its expired commits are free only once history has let go of them.

    In all other lakes the files that only expired commits name are free at once.
    """

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Makes the edits, one outcome per action as it is known.

        Refs and metadata are read afresh; only what the policy asks for now too is done, the rest is `changed`. Each edit is atomic and
        conditional on what was read; a killed call leaves a valid lake, and calling again does the rest. Whatever a catalog or store
        raises becomes `failed` for the actions it concerns, and the others go on.
        """
        ...


@runtime_checkable
class UndoingLake(ExpiringLake, Protocol):
    """A lake whose edits of history can be taken back while what they let go of is still there."""

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Puts back what these actions of an `expiry_log` changed, one outcome per action: `done` where it is again as it was before.

        Conditional and resumable as `expire`; what the format never gives back (the name of a deleted tag) is `failed`.
        """
        ...


@runtime_checkable
class GrowingLake(Lake, Protocol):
    """A lake whose commits never change, so that one that an earlier night read is not read again, and not forgotten."""

    def new_commits(self, source: CommitSource, known: Collection[str], former: Collection[str] = ()) -> Iterator[Commit]:
        """`commits` without those whose id is `known` and what lies behind them, and with what lies behind `former`: commits that an
        earlier night read and that no ref need reach. One that the lake no longer has is left out. Raises `LakeUnreadable`.
        """
        ...


@runtime_checkable
class WatchedLake(Lake, Protocol):
    """A lake that lists only those refs that it lets us see, so that one which an earlier night saw is asked for by its name."""

    def refuse_hidden(self, names: Collection[str]) -> None:
        """Returns if the lake says of every one of these refs, which its list lacks, that there is none. Raises `LakeUnreadable`."""
        ...
