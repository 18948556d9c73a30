"""The interface `Lake`, which all lake kinds implement, and its argument and result types.

A lake reads the formats of one system, without using Spark. `freeze` runs in the driver process and
reads all mutable state, which consists of the refs and table pointers. `commits` and `decode` also
run on Spark executors, so lakes must be picklable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar, runtime_checkable
from uuid import NAMESPACE_URL, uuid5

from gc_assets.core.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.core.findings import Finding
    from gc_assets.lakes.lineage import Lineage

_LakeT = TypeVar("_LakeT", bound="Lake")
RefType = Literal["branch", "tag"]
CommitState = Literal["retained", "expired", "dangling"]
RETAINED: CommitState = "retained"
EXPIRED: CommitState = "expired"
DANGLING: CommitState = "dangling"
_REFERENCE = "urn:prefix:"


@dataclass(frozen=True, slots=True)
class ContentRoot:
    """Metadata object to which a commit or table points directly, such as a manifest list.

    Attributes:
        address: Absolute address of the object.
        kind: File kind, one of the `file_kinds.Kind` constants.
        is_container: True if the object references other objects.
        size_bytes: Size in bytes, or None if the format does not record it.
        must_exist: False for objects that are optional in the format, e.g. `version-hint.text`.
            A missing optional object does not mean that data was lost.
    """

    address: str
    kind: str
    is_container: bool
    size_bytes: int | None = None
    must_exist: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    """Branch or tag, with its head (the commit it points to) at the start of the run.

    `properties` contains the ref's settings for retention, for example Iceberg's `max-ref-age-ms`.
    """

    ref_name: str
    ref_type: RefType
    head_commit_id: str | None
    table_uuid: str | None = None
    table_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommitSource:
    """Part of a lake's commit graph that one task reads.

    Examples are one Iceberg metadata.json, and one shard of Icechunk's `snapshots/` directory.

    Attributes:
        address: Object or prefix to read.
        shard: Zero-based shard number.
        shards: Number of shards into which the address is divided.
        properties: Values that `Lake.retain` needs later. For Iceberg, these are the table
            properties and `collect` (`true` or `false`). Tables outside the configured `tables`
            patterns have `collect=false`, because they are only read to protect their files.
        digest: Digest of the object that contains all commits of a table. If it is unchanged, so
            are the commits. None if the commits are spread over several objects.
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
    """Prefix that belongs to one lake entirely. Only files under a claim can become candidates.

    Attributes:
        address: Absolute address ending in `/`.
        collect: False if files under the prefix must never become candidates, even if another claim
            contains them. This protects tables with `gc.enabled=false` and tables outside the
            configured patterns.
    """

    address: str
    table_uuid: str | None = None
    table_name: str | None = None
    collect: bool = True

    @property
    def is_unread(self) -> bool:
        """True if the claim only protects a possible location of an unreadable table.

        Such a claim has a table name, but no table UUID.
        """
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
# Edits of branches, made by atomic requests. Every lake can undo them.
BRANCH_EDITS: frozenset[Action] = frozenset({DELETE_IDLE_BRANCH, DELETE_PATHS})
# Edits whose own plan does not delete any files. Files that only a deleted branch kept are
# collected by later plans.
WITHOUT_FILES: frozenset[Action] = PRUNING | BRANCH_EDITS
# Branch property: why the branch must not be deleted as idle.
PROTECTED = "protected"
# Branch property: why commits must not delete paths on the branch.
UNEDITABLE = "uneditable"
ExpiryVerdict = Literal["done", "absent", "changed", "denied", "failed"]


@dataclass(frozen=True, slots=True)
class ExpiryAction:
    """Planned history edit, stored as a row of `expiry_plan`.

    Attributes:
        snapshot_id: Snapshot to edit or remove. For `delete_ref`, `delete_idle_branch` and
            `delete_paths`, this is the head of the ref. For `remove_schema` and `remove_spec`, it
            is the id of the schema or partition spec.
        old_parent_id: Parent that `edit_parent` replaces. The edit requires that it is unchanged,
            and `undo` puts it back. In Icechunk, removals record the removed snapshot's parent
            here.
        details: JSON that `undo` needs. For Icechunk 2, this is the snapshot's entry in `repo`. For
            `delete_idle_branch`, these are the branch properties. For `delete_paths`, it lists the
            number of paths and bytes, the rules, and the table that contains the paths.
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
    """Staged object: written to a branch, but missing from the branch's head commit.

    `branch` and `path` are None if the lake system does not report them.
    """

    address: str
    branch: str | None
    path: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PreviousRef:
    """Ref of an earlier run that a later run found moved or missing.

    Attributes:
        ref: The ref in the earlier run.
        missed_at: Time at which a run first found that the ref no longer has this head.
        moved_to: Head of the ref at that time, or None if the ref was missing.
    """

    ref: Ref
    missed_at: datetime
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableTable:
    """Catalog table that cannot be read.

    Attributes:
        table_name: Name of the table, or None if the whole lake is unreadable.
        reason: Error message.
        address: Address of the table's metadata, or None if the catalog does not report it.
        locations: Prefixes, ending in `/`, that may contain files of the table.
        table_uuid: UUID of the table, if its metadata was readable up to that point.
        cause: Result of `cause_of` for the error, if known.
    """

    table_name: str | None
    reason: str
    address: str | None = None
    locations: tuple[str, ...] = ()
    table_uuid: str | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class NamedPrefixes:
    """Address prefixes to which containers (metadata objects) refer by name.

    Icechunk's virtual chunk containers are an example. A lake can change a prefix at any time, so a
    run reads the prefixes only once. If one has changed, the containers that use it are decoded
    again.

    Attributes:
        prefixes: Prefix for each name.
        error: Why the prefixes are unknown, or None.
    """

    prefixes: Mapping[str, str]
    error: str | None = None

    def reference(self, name: str) -> str:
        """Return a pseudo address to record that a container uses this name and prefix."""
        return f"{_REFERENCE}{name}/{self.prefixes[name]}"


def name_in_reference(address: str) -> str:
    """Extract the name from the result of `NamedPrefixes.reference`. Names never contain slashes."""
    return address.removeprefix(_REFERENCE).partition("/")[0]


@dataclass(frozen=True, slots=True)
class View:
    """View in a catalog. Only its metadata files are stored.

    `newest` is the time of its newest version in milliseconds since 1970, or None if unknown.
    """

    uuid: str
    name: str
    newest: int | None


@dataclass(frozen=True, slots=True)
class RepositoryIdentity:
    """Identity of a repository on a server.

    Attributes:
        name: Name of the repository.
        namespace: Address of its files, exactly as the server writes it.
        created: Creation time in seconds since 1970.
        server_id: Id of the server installation, if the server reports one.
        never_read: True if the repository was deleted before gc-assets first ran. Its name and
            namespace then come from the configuration.
    """

    name: str
    namespace: str
    created: int
    server_id: str | None = None
    never_read: bool = False

    @property
    def uuid(self) -> str:
        """Uuid that changes when the repository is recreated or moved."""
        return str(uuid5(NAMESPACE_URL, f"{self.namespace}#{self.name}@{self.created}"))


@dataclass(frozen=True, slots=True)
class FrozenRefs:
    """Mutable state of a lake, read once at the start of a run.

    Attributes:
        refs: All branches and tags with their head commits.
        sources: Parts of the commit graph to read.
        claims: Prefixes that belong to the lake. Claims of unreadable tables do not have a table
            UUID.
        pinned: Files of the current state, which do not belong to a commit: the current
            metadata.json with its log, version hints, `ref.json` files, tag tombstones and
            `config.yaml`. They are live even if no commit needs them.
        notes: Messages for the report, for example about a table with `gc.enabled=false`.
        wrong_names: The `notes` about a wrong name in the configuration.
        edits: History edits planned by earlier runs. Snapshots that these edits cut off are exempt
            from the rules that keep rolled-back history.
        previous: Refs that an earlier run read and that were found moved or missing within the
            grace period.
        min_age_seconds: Minimum age of candidates in this lake, on top of the grace period. The
            system may still link younger objects, such as a lakeFS physical address.
        uncommitted: Staged lakeFS objects with one address each. `pinned` contains all possible
            names of these objects.
        unreadable: Tables that cannot be read. No other attribute includes them.
        views: Views whose metadata is in `pinned`.
        named_prefixes: Prefixes of addresses that containers refer to by name, or None if this
            kind does not have such prefixes.
        repository: Identity of the repository, if the lake is a single repository on a server.
        read_at: When a run last read the repository, if it is now deleted or unreadable. Otherwise
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
    """Commit of a lake, which is a node of its commit graph. Iceberg calls it a snapshot.

    Attributes:
        parents: Parent ids in the order of the format, first parent first.
        committed_at: UTC time with microsecond precision.
        content_roots: Metadata objects to which the commit points.
        summary: Further key-value pairs, such as Iceberg's operation and summary.
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
    """Immutable metadata object to decode, with the values that its parent object records about it.

    Attributes:
        size_bytes: Expected size in bytes. Decoding verifies it.
        expected_entries: Expected number of entries. Decoding verifies it.
        snapshot_id: Snapshot that added the container. For a content root of a commit, this is the
            commit. Entries without a snapshot id inherit it.
    """

    address: str
    kind: str
    size_bytes: int | None = None
    expected_entries: int | None = None
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Decision whether each commit is retained, and the resulting history edits.

    Attributes:
        reachable: One row per commit, with the columns of `reachable_snapshots`.
        expiry: Planned edits, with the columns of `expiry_plan`.
        notes: Messages for the report.
        contents: Live contents, with the columns of `live_contents`. None if the retained commits
            alone determine the live set.
    """

    reachable: pa.Table
    expiry: pa.Table
    notes: tuple[str, ...] = ()
    contents: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """Result of one planned history edit.

    Attributes:
        verdict: `done`: this call made the edit. `absent`: the lake already was in the desired
            state. `changed`: the policy no longer requires the edit, so the lake is unchanged.
            `denied`: the edit was refused, nothing was changed and a retry cannot succeed.
            `failed`: the edit could not be made, but a retry may succeed.
        error: Reason for `changed`, `denied` or `failed`.
        damaged: True if the edit was made, but with an unexpected result that has to be repaired
            manually.
    """

    action: ExpiryAction
    verdict: ExpiryVerdict
    error: str | None = None
    damaged: bool = False


@runtime_checkable
class Lake(Protocol):
    """A catalog or repository. Instances are pickled and sent to Spark executors."""

    name: str
    kind: str

    def freeze(self, as_of: datetime) -> FrozenRefs:
        """Read the mutable state of the lake.

        A table that cannot be read is not an error. It is added to `FrozenRefs.unreadable`.

        Args:
            as_of: Time of the run.

        Raises:
            LakeUnreadable: If anything else cannot be read, such as the list of tables. The message
                identifies it.
        """
        ...

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the commits of one source, a part of the commit graph that `freeze` returned.

        Raises:
            LakeUnreadable: If the commits cannot be read completely.
        """
        ...

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Decode a container into its children.

        Args:
            container: The container, with the size and number of entries to verify.
            raw: All bytes of the object.

        Returns:
            One row per child. The columns are those of `ENTRY_SCHEMA` or `LOGICAL_ENTRY_SCHEMA`.
            All containers of a lake use the same one of these schemas.

        Raises:
            FormatError: If the bytes are damaged, or a count differs from the expected one. The
                message contains the container's address.
        """
        ...

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the retention policy to the commit graph.

        The result depends only on the arguments and the configuration.

        Args:
            refs: Refs and other mutable state, read at the start of the run.
            commits: The whole commit graph, with the columns of `commit_graph`.
            as_of: Time at which the ages of commits are computed.
            grace_cutoff: Any commit newer than this time is retained.

        Returns:
            Decisions for all commits, including unreachable ones, and the resulting edits.
        """
        ...


@runtime_checkable
class ExpiringLake(Lake, Protocol):
    """Lake whose history can be edited.

    In such a lake, the files of an expired commit become garbage only after an edit has removed the
    commit. In other lakes, files that only expired commits reference are garbage immediately.
    """

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Make the approved history edits.

        Refs and metadata are read again, and an edit is skipped if the policy no longer requires
        it. Each edit is atomic and conditional on the values just read. If the process is killed,
        the lake therefore stays valid, and a second call makes the remaining edits.

        Args:
            actions: Edits of one plan.
            as_of: Time at which the plan computed the ages of commits.
            grace_cutoff: Any commit newer than this time is retained. It is counted back from the
                time of the apply.

        Yields:
            One outcome per action, as soon as it is known. An error of the catalog or store gives
            `denied` or `failed` for the affected actions, and the other actions still run.
        """
        ...


@runtime_checkable
class ProbingLake(Lake, Protocol):
    """Lake that can check, without changing anything, whether gc-assets is allowed to edit it."""

    def probe_edits(self) -> Finding | None:
        """Check that gc-assets is allowed to edit the lake. Returns None if no run plans edits."""
        ...


@runtime_checkable
class PreflightLake(ProbingLake, ExpiringLake, Protocol):
    """Lake that can check, without changing anything, whether planned edits would succeed."""

    def find_uneditable(self, tables: Mapping[str, str]) -> Mapping[str, str]:
        """Find tables whose history cannot be edited.

        Args:
            tables: Table names, keyed by table UUID.

        Returns:
            The reason for each such table, keyed by table UUID.
        """
        ...

    def probe_edits(self) -> Finding: ...


@runtime_checkable
class ReversibleLake(ExpiringLake, Protocol):
    """Lake whose edits can be undone as long as the objects of the old history exist."""

    def undo(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Undo executed actions, as recorded in an `expiry_log`.

        As in `expire`, every change is conditional, and the call can be repeated.

        Yields:
            One outcome per action. `done` means that the lake is back in the state before the
            action. `failed` includes changes that cannot be undone in this format. For example, the
            name of a deleted tag cannot be used again.
        """
        ...


@runtime_checkable
class BranchLake(Lake, Protocol):
    """Lake whose idle (no longer used) branches can be deleted and recreated.

    `freeze` sets the `PROTECTED` property on every branch that must be kept, even if the current
    rules do not select it. Later runs of the same date reuse these refs with the rules in force at
    that time.
    """

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete branches that are not protected and still have the planned head.

        The commits are kept, so that `recreate_branches` can undo the deletion.

        Yields:
            One outcome per action, as `expire` does.
        """
        ...

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Recreate deleted branches at their old heads, unless the name is taken.

        Yields:
            One outcome per action, as `undo` does.
        """
        ...


@runtime_checkable
class PathLake(Lake, Protocol):
    """Lake that can delete paths of a branch in a single commit, and revert that commit.

    `freeze` sets the `UNEDITABLE` property on branches that must not receive such commits.
    """

    def delete_paths(
        self,
        plan_id: str,
        actions: Sequence[ExpiryAction],
        read_paths: Callable[[ExpiryAction], Sequence[str]],
        check: Callable[[], None],
    ) -> Iterator[ExpiryOutcome]:
        """Delete the planned paths on branches that still have the planned head.

        Readers of a branch see either all of its deletions or none of them.

        Args:
            plan_id: Id of the plan. The commits record it.
            actions: Approved `delete_paths` actions of the plan.
            read_paths: Returns the paths that an action deletes.
            check: Renews the lease of the apply (its exclusive right to change the storage). It is
                called before each request that changes something, and raises an error if the lease
                is lost.

        Yields:
            One outcome per action, as `expire` does.
        """
        ...

    def restore_paths(self, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Revert a plan's commits on their branches.

        Yields:
            One outcome per action, as `undo` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class HistoryPublication:
    """Result of publishing the snapshot history.

    Attributes:
        table: Name of the published table.
        written: Number of added or replaced rows.
        removed: Number of removed rows.
        pointed: UUIDs of the lake's tables whose properties refer to the published table.
        notes: One message for each table on which this property cannot be set, with the reason.
    """

    table: str
    written: int = 0
    removed: int = 0
    pointed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class HistoryPublisher(Lake, Protocol):
    """Lake that can write its snapshot history to a table, so that other engines can query it."""

    @property
    def publishes_history(self) -> bool:
        """True if the configuration enables the publication of the snapshot history."""
        ...

    def publish_history(
        self, read: Callable[[list[str] | None], Iterator[pa.RecordBatch]], unnamed: Mapping[str, str], kept_since: datetime
    ) -> HistoryPublication:
        """Update the published table with the current history.

        Args:
            read: Reads `snapshot_history` with the given columns, or with all of them.
            unnamed: Names, keyed by table UUID, of editable tables without a property that refers
                to the published table. If such a table has expired snapshots, a property with the
                published table's name is set.
            kept_since: Published records of snapshots that expired after this time are kept, even
                if the history does not contain them any more.

        Raises:
            GcError: If the table cannot be written.
        """
        ...


@runtime_checkable
class IncrementalLake(Lake, Protocol):
    """Lake with immutable commits, so that each of them has to be read only once.

    Commits that earlier runs read stay in the commit graph. New commits are read in the driver
    process, so a lake that is pickled for executors does not need credentials.
    """

    def new_commits(self, source: CommitSource, known: Collection[str], previous_heads: Collection[str] = ()) -> Iterator[Commit]:
        """Yield the commits of a source that were not read by an earlier run.

        Args:
            source: Part of the commit graph, as returned by `freeze` in the current run.
            known: Ids of commits read by earlier runs. Reading stops at these, because their
                ancestors are known as well.
            previous_heads: Head commits of refs in an earlier run, which no ref may reach any more.
                They and their ancestors are yielded too. Commits that no longer exist are skipped.

        Raises:
            LakeUnreadable: If the commits cannot be read completely.
        """
        ...


@runtime_checkable
class BatchLake(Lake, Protocol):
    """Lake that decodes many small containers faster in a single call."""

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        """Decode containers and their bytes.

        Returns:
            For each container, in the order of `containers`, its rows or the error that `decode`
            raises.
        """
        ...


@runtime_checkable
class PrefixedLake(Lake, Protocol):
    """Lake whose containers refer to address prefixes by name, such as Icechunk's `vcc://NAME/`."""

    def read_prefixes(self) -> NamedPrefixes:
        """Read the current named prefixes. If that fails, the result contains the reason instead."""
        ...

    def with_prefixes(self, named_prefixes: NamedPrefixes) -> Lake:
        """Return a copy of the lake that decodes containers with these prefixes."""
        ...


@runtime_checkable
class UpgradableLake(Lake, Protocol):
    """Lake whose format can be upgraded in place.

    After an upgrade, its commits have another source.
    """

    def has_source(self, source: CommitSource) -> bool:
        """Return True if a source from an earlier `freeze` belongs to the lake's current format.

        Raises:
            LakeUnreadable: If the current format cannot be determined.
        """
        ...


@runtime_checkable
class FilteredLake(Lake, Protocol):
    """Lake on a server that only lists refs readable by the user.

    A ref that disappears from the list may therefore only be hidden, and still exist.
    """

    def verify_deleted(self, names: Collection[str]) -> None:
        """Verify that refs no longer listed by the server do not exist.

        Raises:
            LakeUnreadable: If the server does not confirm this for each ref in `names`.
        """
        ...


@runtime_checkable
class ListingLake(Lake, Protocol):
    """Lake whose catalog can be asked for a single table by name.

    The list of tables may omit tables that the user is not allowed to see.
    """

    def find_listed(self, tables: Mapping[str, str], *, is_strict: bool = True) -> Mapping[str, str]:
        """Find tables that the catalog may still contain.

        Args:
            tables: Table names, keyed by table UUID.
            is_strict: If False, namespace properties do not have to be readable, and an object of
                another format may have the table's name.

        Returns:
            The reason for each such table, keyed by table UUID.
        """
        ...

    def find_recoverable(self, uuids: Collection[str]) -> Mapping[str, str]:
        """Find dropped tables that the catalog can restore.

        Returns:
            The reason for each such table, keyed by table UUID.

        Raises:
            GcError: If the catalog has restorable tables but does not list them.
            TimeoutError: If the catalog does not respond in time.
        """
        ...


@runtime_checkable
class PointerLake(Lake, Protocol):
    """Lake whose catalog points to one metadata file per table, which lists earlier metadata files."""

    def read_lineage(self, address: str) -> Lineage:
        """Read which files and snapshots precede a metadata file.

        Raises:
            FileNotFoundError: If the file does not exist.
            OSError, GcError: If it cannot be read.
        """
        ...


@runtime_checkable
class RepositoryLake(Lake, Protocol):
    """Lake that is a single repository on a server, which may delete the repository.

    The server never deletes a single commit, so `freeze` and `commits` return all commits that an
    earlier run read, including those that no ref reaches.
    """

    def find_repository(
        self, repository_uuid: str, namespace: str, server_id: str | None, successor: str | None = None, *, is_configured: bool = False
    ) -> str | None:
        """Find out whether a repository read by an earlier run may still exist or be needed.

        Args:
            repository_uuid: `RepositoryIdentity.uuid`.
            namespace: Address of the repository's files.
            server_id: Id of the server installation, if known.
            successor: UUID of the repository that this run read under the same name, if any. Any
                other repository with this name may need the files.
            is_configured: True if the namespace comes from the configuration and may therefore
                differ from the address on the server.

        Returns:
            The reason to keep its files, or None if the server confirms that the repository was
            deleted and no other repository has its files.
        """
        ...

    def claimed_location(self, namespace: str) -> str:
        """Return the location in a repository's namespace that the lake claims, ending in `/`."""
        ...


@runtime_checkable
class RemoteLake(Lake, Protocol):
    """Lake that is accessed through a catalog or server."""

    def check_access(self) -> None:
        """Send one small request to verify that the catalog or server responds.

        Raises:
            LakeUnreadable: If the catalog or server does not respond.
        """
        ...


def _narrow(capability: type[_LakeT]) -> Callable[[Lake], _LakeT | None]:
    """Build a function that returns a lake if it implements the protocol, otherwise None."""
    return lambda lake: lake if isinstance(lake, capability) else None


as_remote: Final = _narrow(RemoteLake)
as_expiring: Final = _narrow(ExpiringLake)
as_probing: Final = _narrow(ProbingLake)
as_preflight: Final = _narrow(PreflightLake)
as_reversible: Final = _narrow(ReversibleLake)
as_branch_lake: Final = _narrow(BranchLake)
as_path_lake: Final = _narrow(PathLake)
as_incremental: Final = _narrow(IncrementalLake)
as_filtered: Final = _narrow(FilteredLake)
as_listing: Final = _narrow(ListingLake)
as_pointer_lake: Final = _narrow(PointerLake)
as_repository: Final = _narrow(RepositoryLake)


def is_editable(source: CommitSource) -> bool:
    """Return True if history edits may be planned for the table of a commit source."""
    return source.properties.get("collect") != "false" and source.properties.get("writable") != "false"


def as_history_publisher(lake: Lake) -> HistoryPublisher | None:
    """Return the lake if it is configured to publish its snapshot history, otherwise None."""
    return lake if isinstance(lake, HistoryPublisher) and lake.publishes_history else None


def with_prefixes(lake: Lake, named_prefixes: NamedPrefixes | None) -> Lake:
    """Return a copy of the lake with these prefixes. A lake without them is returned unchanged."""
    return lake.with_prefixes(named_prefixes) if isinstance(lake, PrefixedLake) and named_prefixes is not None else lake


def decode_batch(lake: Lake, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
    """Decode containers with their bytes. Each result is either rows or the error, in input order."""
    return lake.decode_many(containers) if isinstance(lake, BatchLake) else [decode_or_error(lake.decode, *item) for item in containers]


def decode_or_error(decode: Callable[[Container, bytes], pa.RecordBatch], container: Container, raw: bytes) -> pa.RecordBatch | FormatError:
    """Decode a container. If this fails, return a `FormatError` with the container's address.

    Libraries raise all kinds of errors for damaged bytes. Because every error is caught, it makes
    only this container unreadable.
    """
    try:
        return decode(container, raw)
    except FormatError as error:
        return error
    except Exception as error:  # noqa: BLE001 - Containers are written by other programs.
        kind = container.kind.replace("_", " ")
        return FormatError(f"{kind} {container.address}: cannot decode {len(raw):,} bytes ({type(error).__name__}: {error})")
