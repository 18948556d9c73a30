"""Lake interface and the values passed through it.

A lake reads one system's formats without using Spark. `freeze` runs in the driver and reads all
mutable state, i.e. refs and table pointers. `commits` and `decode` also run in executors, so lakes
must be picklable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable
from uuid import NAMESPACE_URL, uuid5

from gc_assets.core.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.core.findings import Finding
    from gc_assets.lakes.lineage import Lineage

RefType = Literal["branch", "tag"]
CommitState = Literal["retained", "expired", "dangling"]
RETAINED: CommitState = "retained"
EXPIRED: CommitState = "expired"
DANGLING: CommitState = "dangling"
_REFERENCE = "urn:prefix:"


@dataclass(frozen=True, slots=True)
class ContentRoot:
    """Metadata object that is directly referenced by a commit or table.

    Attributes:
        address: Absolute address of the object.
        kind: File kind, one of the `file_kinds.Kind` constants.
        is_container: True if the object references other objects.
        size_bytes: Size in bytes, or None if the format does not record it.
        must_exist: False for objects that are optional in the format, e.g. `version-hint.text`.
            Their absence does not indicate data loss.
    """

    address: str
    kind: str
    is_container: bool
    size_bytes: int | None = None
    must_exist: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    """Branch or tag with its head at freeze time.

    `properties` contains the ref settings needed for retention, e.g. Iceberg's `max-ref-age-ms`.
    """

    ref_name: str
    ref_type: RefType
    head_commit_id: str | None
    table_uuid: str | None = None
    table_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommitSource:
    """Part of the commit graph, which is read by one task.

    For example, an Iceberg metadata.json or one shard of Icechunk's `snapshots/`.

    Attributes:
        address: Address of the object or prefix to read.
        shard: Zero-based shard number.
        shards: Total number of shards for this address.
        properties: Frozen values needed later for retention. For Iceberg, these are the table
            properties and `collect` = `true` | `false`. Tables outside the `tables` patterns are
            only read to protect their files.
        digest: Digest of the object that contains all commits of a table, so that equal digests
            mean equal commits. None if the commits are spread over several objects.
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
    """Prefix that belongs entirely to one lake. Only claimed files can be candidates.

    Attributes:
        address: Absolute address ending in `/`.
        collect: If False, files under the prefix are never candidates, even inside another claim.
            Set for table locations with `gc.enabled=false` or outside the configured patterns.
    """

    address: str
    table_uuid: str | None = None
    table_name: str | None = None
    collect: bool = True

    @property
    def is_unread(self) -> bool:
        """True for a possible location of an unreadable table. Such a claim has a name but no uuid."""
        return not self.collect and self.table_uuid is None and self.table_name is not None


Action = Literal["edit_parent", "remove_snapshot", "delete_ref", "delete_idle_branch", "delete_paths", "remove_schema", "remove_spec"]
EDIT_PARENT: Action = "edit_parent"
REMOVE_SNAPSHOT: Action = "remove_snapshot"
DELETE_REF: Action = "delete_ref"
DELETE_IDLE_BRANCH: Action = "delete_idle_branch"
DELETE_PATHS: Action = "delete_paths"
REMOVE_SCHEMA: Action = "remove_schema"
REMOVE_SPEC: Action = "remove_spec"
PRUNING: frozenset[Action] = frozenset({REMOVE_SCHEMA, REMOVE_SPEC})
# Branch edits made by atomic requests. They can be undone in all lakes.
BRANCH_EDITS: frozenset[Action] = frozenset({DELETE_IDLE_BRANCH, DELETE_PATHS})
# Edits that release no files in their own plan. Later plans collect the files that only a deleted
# branch kept.
WITHOUT_FILES: frozenset[Action] = PRUNING | BRANCH_EDITS
# Property of a branch with the reason why it is never deleted as idle.
PROTECTED = "protected"
# Property of a branch with the reason why its paths are not deleted by commits.
UNEDITABLE = "uneditable"
ExpiryVerdict = Literal["done", "absent", "changed", "denied", "failed"]


@dataclass(frozen=True, slots=True)
class ExpiryAction:
    """Planned history edit, one row of `expiry_plan`.

    Attributes:
        snapshot_id: Snapshot to edit or remove. For `delete_ref`, `delete_idle_branch` and
            `delete_paths`, the head of the ref. For `remove_schema` and `remove_spec`, the id of the
            schema or partition spec.
        old_parent_id: Parent replaced by `edit_parent`. It is compared before the edit and restored
            by `undo`. In Icechunk, this is also the parent of a removed snapshot.
        details: JSON needed by `undo`. For Icechunk 2, it is the snapshot's entry in `repo`. For
            `delete_idle_branch`, it contains the properties of the branch. For `delete_paths`, it
            contains the number of paths and bytes, the rules, and the table with the paths.
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
    details: str | None = None


@dataclass(frozen=True, slots=True)
class UncommittedObject:
    """Staged object that the branch head does not reference.

    `branch` and `path` are None if the system does not report them.
    """

    address: str
    branch: str | None
    path: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PreviousRef:
    """Ref from an earlier freeze that was missing or had moved in a later one.

    Attributes:
        ref: The ref as frozen by the earlier run.
        missed_at: Time of the first freeze in which the ref no longer had this head.
        moved_to: Head of the ref in that freeze, or None if the ref was missing.
    """

    ref: Ref
    missed_at: datetime
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableTable:
    """Catalog table that cannot be read.

    Attributes:
        table_name: Table name, or None if the whole lake is unreadable.
        reason: The error message.
        address: Address of the table metadata, or None if the catalog does not report it.
        locations: Addresses, ending in `/`, under which the table's files may be.
        table_uuid: Table uuid, if it was found in metadata that cannot be read in full.
        cause: Result of `cause_of` for the error, if it is known.
    """

    table_name: str | None
    reason: str
    address: str | None = None
    locations: tuple[str, ...] = ()
    table_uuid: str | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class NamedPrefixes:
    """Address prefixes to which containers refer by name, e.g. Icechunk's virtual chunk containers.

    A lake may change them at any time, so they are frozen for a run. A container is decoded again
    if one of its prefixes has changed.

    Attributes:
        prefixes: Prefix by name.
        error: Reason why the prefixes are unknown, or None.
    """

    prefixes: Mapping[str, str]
    error: str | None = None

    def reference(self, name: str) -> str:
        """Return the address that records the use of a name, with its current prefix."""
        return f"{_REFERENCE}{name}/{self.prefixes[name]}"


def name_in_reference(address: str) -> str:
    """Return the name in the result of `NamedPrefixes.reference`. Names do not contain slashes."""
    return address.removeprefix(_REFERENCE).partition("/")[0]


@dataclass(frozen=True, slots=True)
class View:
    """A view in a catalog. It has no files except its pinned metadata.

    `newest` is the time of its newest version in milliseconds since 1970, or None if it is unknown.
    """

    uuid: str
    name: str
    newest: int | None


@dataclass(frozen=True, slots=True)
class RepositoryIdentity:
    """Identity of a repository on its server.

    Attributes:
        name: Name of the repository.
        namespace: Address of its files, as spelled by the server.
        created: Creation time, in seconds since 1970.
        server_id: Id of the server's installation, if the server provides it.
        never_read: True if the repository was deleted before the first run. Its name and namespace
            then come from the configuration.
    """

    name: str
    namespace: str
    created: int
    server_id: str | None = None
    never_read: bool = False

    @property
    def uuid(self) -> str:
        """A uuid that changes if the repository is recreated or moved."""
        return str(uuid5(NAMESPACE_URL, f"{self.namespace}#{self.name}@{self.created}"))


@dataclass(frozen=True, slots=True)
class FrozenRefs:
    """Mutable state of a lake, frozen for one run.

    Attributes:
        refs: All branches and tags with their heads.
        sources: Commit graph parts to read.
        claims: The prefixes that belong to the lake. Claims of unreadable tables have no uuid.
        pinned: Files that belong to the current state rather than to a commit: the current
            metadata.json with its log, version hints, `ref.json` files, tag tombstones and
            `config.yaml`. They are live regardless of the commits.
        notes: Messages for the report, e.g. about a table with `gc.enabled=false`.
        wrong_names: The `notes` that indicate a wrong name in the configuration.
        edits: History edits planned by earlier runs. Rules for keeping rolled-back history do not
            apply to snapshots cut off by these edits.
        previous: Refs from earlier runs that were first missing within the grace period.
        min_age_seconds: Minimum candidate age in this lake, in addition to the grace period. The
            system may still link younger objects, e.g. a lakeFS physical address.
        uncommitted: Staged objects (lakeFS), each with one address. All possible names of these
            objects are also in `pinned`.
        unreadable: Tables that cannot be read. They do not contribute to any other attribute.
        views: Views whose metadata is pinned.
        named_prefixes: Address prefixes to which containers refer by name, or None if this kind has
            no such prefixes.
        repository: Identity of the repository, if the lake is one repository of a server.
        read_at: Time of the last freeze that read a deleted or unreadable repository, otherwise
            None.
        is_deleted: True if the server has deleted the repository and a user ran `forget` for the
            lake.
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
    views: tuple[View, ...] = ()
    named_prefixes: NamedPrefixes | None = None
    wrong_names: tuple[str, ...] = ()
    repository: RepositoryIdentity | None = None
    read_at: datetime | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Node in the commit graph.

    Attributes:
        parents: Parent ids in the format's order, first parent first.
        committed_at: UTC time with microsecond precision.
        content_roots: Metadata objects referenced by the commit.
        summary: Additional key-value pairs, e.g. Iceberg's operation and summary.
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
    """Immutable metadata object to decode, with the values recorded in its parent.

    Attributes:
        size_bytes: Expected size, verified when decoding.
        expected_entries: Expected number of entries, verified when decoding.
        snapshot_id: Snapshot that added the container, which is the commit for a content root.
            Entries without a snapshot inherit it.
    """

    address: str
    kind: str
    size_bytes: int | None = None
    expected_entries: int | None = None
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Policy decision for every commit and the resulting history edits.

    Attributes:
        reachable: One row per commit, with the columns of `reachable_snapshots`.
        expiry: Planned edits, with the columns of `expiry_plan`.
        notes: Messages for the report.
        contents: Live contents, with the columns of `live_contents`. None if the live set follows
            from the retained commits alone.
    """

    reachable: pa.Table
    expiry: pa.Table
    notes: tuple[str, ...] = ()
    contents: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """Result of one action.

    Attributes:
        verdict: `done`: the edit was made by this call. `absent`: the lake was already in this
            state. `changed`: the policy no longer requires the edit, so the lake is left unchanged.
            `denied`: the edit was refused and nothing was changed; a retry cannot succeed.
            `failed`: the edit could not be made; a retry may succeed.
        error: Reason for a `changed`, `denied` or `failed` verdict.
        damaged: True if the edit was made but the result differs from the planned one and has to be
            repaired manually.
    """

    action: ExpiryAction
    verdict: ExpiryVerdict
    error: str | None = None
    damaged: bool = False


@runtime_checkable
class Lake(Protocol):
    """Catalog or repository. Instances must be picklable."""

    name: str
    kind: str

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read the mutable state of the lake.

        Tables that cannot be read are listed in `FrozenRefs.unreadable`.

        Args:
            as_of: Time of the run.

        Raises:
            LakeUnreadable: If anything else cannot be read, e.g. the table list. The message
                identifies it.
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
            One row per child, with the columns of `ENTRY_SCHEMA` or `LOGICAL_ENTRY_SCHEMA`. Each
            lake uses only one of these schemas.

        Raises:
            FormatError: If the bytes are damaged or a count differs from the expected one. The
                message contains the container's address.
        """
        ...

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the retention policy to the commit graph.

        The result depends only on the arguments and the configuration.

        Args:
            refs: Frozen state of the run.
            commits: Complete commit graph, with the columns of `commit_graph`.
            as_of: Time from which ages are counted.
            grace_cutoff: Commits newer than this time are retained.
        """
        ...


@runtime_checkable
class ExpiringLake(Lake, Protocol):
    """Lake with an editable history.

    Files of expired commits become garbage only after the commits are removed from history. In all
    other lakes, files referenced only by expired commits are garbage immediately.
    """

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Make the approved history edits.

        Refs and metadata are read again, and an edit is made only if the policy still requires it.
        Each edit is atomic and conditional on the values just read, so if the process is killed,
        the lake stays valid and a second call makes the remaining edits.

        Yields:
            One outcome per action, as soon as it is known. Catalog and store errors yield `denied`
            or `failed` for the affected actions, and the remaining actions are still executed.
        """
        ...


@runtime_checkable
class PreflightLake(ExpiringLake, Protocol):
    """Lake that can check edits before they are planned, without changing anything."""

    def find_uneditable(self, tables: Mapping[str, str]) -> Mapping[str, str]:
        """Return by uuid why a table's history cannot be edited. Editable tables are left out.

        Args:
            tables: Names of the tables by uuid.
        """
        ...

    def probe_edits(self) -> Finding:
        """Check the permission to edit histories in the lake."""
        ...


@runtime_checkable
class ReversibleLake(ExpiringLake, Protocol):
    """Lake with edits that can be undone as long as the objects of the old history exist."""

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undo executed actions from an `expiry_log`.

        As with `expire`, each change is conditional and the call can be repeated.

        Yields:
            One outcome per action. `done` means that the lake is in the state before the action.
            `failed` includes changes that cannot be undone in the format, e.g. restoring the name
            of a deleted tag.
        """
        ...


@runtime_checkable
class BranchLake(Lake, Protocol):
    """Lake with idle branches that can be deleted and created again.

    `freeze` sets the property `PROTECTED` of branches that must be kept, regardless of the current
    rules. The reason is that later runs of the date use the same freeze with the rules of their
    time.
    """

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete branches that still have the planned head and are not protected.

        Commits are kept, so that `recreate_branches` is possible.

        Yields:
            One outcome per action, as `expire` does.
        """
        ...

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Create deleted branches at their old heads, unless the name is in use.

        Yields:
            One outcome per action, as `undo` does.
        """
        ...


@runtime_checkable
class PathLake(Lake, Protocol):
    """Lake that can delete paths of a branch by a single commit, and revert this commit.

    `freeze` sets the property `UNEDITABLE` of branches that must not get such commits.
    """

    def delete_paths(
        self,
        plan_id: str,
        actions: Sequence[ExpiryAction],
        read_paths: Callable[[ExpiryAction], Sequence[str]],
        check: Callable[[], None],
    ) -> Iterator[ExpiryOutcome]:
        """Delete the planned paths of branches that still have the planned head.

        Readers of a branch see all its deletions or none.

        Args:
            plan_id: Id of the plan, which is recorded in the commits.
            read_paths: Function that returns the paths of an action.
            check: Function that renews the lease of the apply. It is called before each request
                that changes something, and raises an error if the lease is lost.

        Yields:
            One outcome per action, as `expire` does.
        """
        ...

    def restore_paths(self, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Revert the commits of a plan on their branches.

        Yields:
            One outcome per action, as `undo` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class HistoryPublication:
    """Result of a publication of the history.

    Attributes:
        table: Name of the published table.
        written: Number of rows that were added or replaced.
        removed: Number of rows that were removed.
        pointed: Uuids of the lake's tables that refer to the published table.
        notes: Tables in which the reference cannot be set, with the reasons.
    """

    table: str
    written: int = 0
    removed: int = 0
    pointed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class HistoryPublisher(Lake, Protocol):
    """Lake that can write the history of its snapshots to a table of other engines."""

    @property
    def publishes_history(self) -> bool:
        """Return True if publication is enabled in the configuration."""
        ...

    def publish_history(
        self, read: Callable[[list[str] | None], Iterator[pa.RecordBatch]], unnamed: Mapping[str, str], kept_since: datetime
    ) -> HistoryPublication:
        """Write the differences between the history and the published table.

        Args:
            read: Function that reads the rows of `snapshot_history`, with the given columns or all
                columns.
            unnamed: Names by uuid of the tables that may be edited and do not refer to the
                published table yet. Those with expired snapshots get a property with its name.
            kept_since: Published records of snapshots that expired since this time are kept, even
                if they are missing from the history.

        Raises:
            GcError: If the table cannot be written.
        """
        ...


@runtime_checkable
class IncrementalLake(Lake, Protocol):
    """Lake with immutable commits, each of which is read only once.

    Commits read by earlier runs stay in the graph. Only the driver reads commits, so pickled
    instances need no credentials.
    """

    def new_commits(self, source: CommitSource, known: Collection[str], previous_heads: Collection[str] = ()) -> Iterator[Commit]:
        """Yield the unknown commits of a source.

        Args:
            source: Source from the current freeze.
            known: Ids of commits read by earlier runs. The walk stops there because their ancestors
                are also known.
            previous_heads: Heads from an earlier run that may no longer be reachable. Their
                ancestors are yielded too. Commits that no longer exist are skipped.

        Raises:
            LakeUnreadable: If the commits cannot be read completely.
        """
        ...


@runtime_checkable
class BatchLake(Lake, Protocol):
    """Lake that can decode many small containers faster in one call."""

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        """Return the rows from `decode`, or its error, for each container."""
        ...


@runtime_checkable
class PrefixedLake(Lake, Protocol):
    """Lake whose containers refer to address prefixes by name."""

    def read_prefixes(self) -> NamedPrefixes:
        """Read the current prefixes. If they cannot be read, the result contains the reason."""
        ...

    def with_prefixes(self, named_prefixes: NamedPrefixes) -> Lake:
        """Return the lake with the frozen prefixes, which it uses to decode such containers."""
        ...


@runtime_checkable
class UpgradableLake(Lake, Protocol):
    """Lake whose format can be upgraded in place, which changes the source of its commits."""

    def has_source(self, source: CommitSource) -> bool:
        """Check if a frozen source belongs to the current format. Raises `LakeUnreadable`."""
        ...


@runtime_checkable
class FilteredLake(Lake, Protocol):
    """Lake on a server that lists only the refs that the user is allowed to read.

    A ref that disappears from the list may be hidden rather than deleted.
    """

    def verify_deleted(self, names: Collection[str]) -> None:
        """Verify that unlisted refs do not exist.

        Raises:
            LakeUnreadable: Unless the server confirms for each of `names` that it does not exist.
        """
        ...


@runtime_checkable
class ListingLake(Lake, Protocol):
    """Lake with a catalog that can be asked for a table by its name.

    Tables that the user is not allowed to see may be missing from a list of tables.
    """

    def find_listed(self, tables: Mapping[str, str], *, is_strict: bool = True) -> Mapping[str, str]:
        """Return by uuid the reason why a table may still be in the catalog.

        Tables that are not in the catalog are left out.

        Args:
            tables: Names of the tables by uuid.
            is_strict: If False, the properties of namespaces need not be readable, and a name may
                belong to an object of another format.
        """
        ...

    def find_recoverable(self, uuids: Collection[str]) -> Mapping[str, str]:
        """Return by uuid the reason why a dropped table can be restored in the catalog.

        Raises:
            GcError: If the catalog has such tables but does not list them.
            TimeoutError: If it does not respond in time.
        """
        ...


@runtime_checkable
class PointerLake(Lake, Protocol):
    """Lake whose catalog points to one metadata file per table, which states its predecessors."""

    def read_lineage(self, address: str) -> Lineage:
        """Return the origin of a metadata file.

        Raises:
            FileNotFoundError: If the file does not exist.
            OSError, GcError: If it cannot be read.
        """
        ...


@runtime_checkable
class RepositoryLake(Lake, Protocol):
    """Lake that is a single repository on a server. The server can delete it."""

    def find_repository(
        self, repository_uuid: str, namespace: str, server_id: str | None, successor: str | None = None, *, is_configured: bool = False
    ) -> str | None:
        """Return the reason why a repository read by an earlier run may still exist or be needed.

        Returns None if the server confirms that it was deleted and no other repository has its
        files.

        Args:
            repository_uuid: `RepositoryIdentity.uuid`.
            namespace: Address of its files.
            server_id: Id of the server's installation, if it is known.
            successor: Uuid of the repository with the same name that was read by this run, if any.
                Any other repository with this name may need the files.
            is_configured: True if the namespace comes from the configuration, because it can then
                differ from the server's address.
        """
        ...

    def claimed_location(self, namespace: str) -> str:
        """Return the location inside a namespace that is claimed by the lake."""
        ...


@runtime_checkable
class RemoteLake(Lake, Protocol):
    """Lake behind a catalog or server."""

    def check_access(self) -> None:
        """Check that the catalog or server responds to one small request.

        Raises:
            LakeUnreadable: If the catalog or server does not respond.
        """
        ...


def as_remote(lake: Lake) -> RemoteLake | None:
    """Return the lake if it belongs to a catalog or server, otherwise None."""
    return lake if isinstance(lake, RemoteLake) else None


def as_expiring(lake: Lake) -> ExpiringLake | None:
    """Return the lake if its history can be edited, otherwise None."""
    return lake if isinstance(lake, ExpiringLake) else None


def is_editable(source: CommitSource) -> bool:
    """Check if history edits may be planned for a table."""
    return source.properties.get("collect") != "false" and source.properties.get("writable") != "false"


def as_preflight(lake: Lake) -> PreflightLake | None:
    """Return the lake if it can check edits before they are planned, otherwise None."""
    return lake if isinstance(lake, PreflightLake) else None


def as_reversible(lake: Lake) -> ReversibleLake | None:
    """Return the lake if its history edits can be undone, otherwise None."""
    return lake if isinstance(lake, ReversibleLake) else None


def as_branch_lake(lake: Lake) -> BranchLake | None:
    """Return the lake if its idle branches can be deleted, otherwise None."""
    return lake if isinstance(lake, BranchLake) else None


def as_path_lake(lake: Lake) -> PathLake | None:
    """Return the lake if it can delete paths of its branches by commits, otherwise None."""
    return lake if isinstance(lake, PathLake) else None


def as_history_publisher(lake: Lake) -> HistoryPublisher | None:
    """Return the lake if it is configured to publish the history of its snapshots, otherwise None."""
    return lake if isinstance(lake, HistoryPublisher) and lake.publishes_history else None


def as_incremental(lake: Lake) -> IncrementalLake | None:
    """Return the lake if its commits are immutable, otherwise None."""
    return lake if isinstance(lake, IncrementalLake) else None


def as_filtered(lake: Lake) -> FilteredLake | None:
    """Return the lake if its server may hide refs from the user, otherwise None."""
    return lake if isinstance(lake, FilteredLake) else None


def as_listing(lake: Lake) -> ListingLake | None:
    """Return the lake if its catalog can be asked for single tables, otherwise None."""
    return lake if isinstance(lake, ListingLake) else None


def as_pointer_lake(lake: Lake) -> PointerLake | None:
    """Return the lake if its catalog points to metadata files, otherwise None."""
    return lake if isinstance(lake, PointerLake) else None


def as_repository(lake: Lake) -> RepositoryLake | None:
    """Return the lake if it is one repository of a server, otherwise None."""
    return lake if isinstance(lake, RepositoryLake) else None


def with_prefixes(lake: Lake, named_prefixes: NamedPrefixes | None) -> Lake:
    """Return the lake with its frozen prefixes, if it has any."""
    return lake.with_prefixes(named_prefixes) if isinstance(lake, PrefixedLake) and named_prefixes is not None else lake


def decode_batch(lake: Lake, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
    """Return the decoded rows or the error for each container."""
    return lake.decode_many(containers) if isinstance(lake, BatchLake) else [decode_or_error(lake.decode, *item) for item in containers]


def decode_or_error(decode: Callable[[Container, bytes], pa.RecordBatch], container: Container, raw: bytes) -> pa.RecordBatch | FormatError:
    """Return the result of `decode`, or its error as a `FormatError` with the container's address.

    A library's error for damaged bytes thus makes only this container unreadable.
    """
    try:
        return decode(container, raw)
    except FormatError as error:
        return error
    except Exception as error:  # noqa: BLE001 - Containers are written by other programs.
        kind = container.kind.replace("_", " ")
        return FormatError(f"{kind} {container.address}: cannot decode {len(raw):,} bytes ({type(error).__name__}: {error})")
