"""Lake kind descriptions, each defined in its kind's package.

Stages, assets, the CLI and the report only use these values, and never compare kind names.
`lakes/kinds.py` lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gc_assets.config.models import LakeConfig
from gc_assets.lakes.lineage import NO_LINEAGE, Lineage
from gc_assets.state.schemas import EXPIRY_LOG, LIVE_CONTENTS, REACHABLE_SNAPSHOTS, SHARED_TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.core.objects import EditableObjects
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import FrozenRefs, Lake

Spellings = Callable[[str], Collection[str]]
# Shared tables that a kind has to declare.
_OPTIONAL = frozenset({EXPIRY_LOG.name, LIVE_CONTENTS.name})


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Table identity as recorded in a metadata file.

    Attributes:
        newest: Time of the newest snapshot in milliseconds since 1970, or None if it is unknown.
        noun: The term for the object in messages.
        location_if_empty: The location of the table if the file is the first metadata of a table,
            references no other file, and all files of the table are in this location. Otherwise
            None.
        lineage: The earlier files and the snapshots recorded in the file.
    """

    uuid: str
    newest: int | None
    noun: str = "table"
    location_if_empty: str | None = None
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True)
class MetadataPattern:
    """Picklable pattern that recognizes this kind's metadata under a prefix claimed by another
    lake.

    Attributes:
        names: Regular expression for the keys of this metadata.
        classify: Function that reads an object's bytes and returns a (possibly known) table, a
            description of foreign metadata, or None for other content. Raises any exception for
            damaged bytes. If None, a matching name is sufficient.
        noun: The term for such metadata in messages.
        file_kinds: File kinds of such metadata.
        is_fragment: Function that returns True for bytes that no reader can use as metadata. Such a
            file next to a live file of `file_kinds` is the leftover of a failed write.
    """

    names: str
    classify: Callable[[bytes], TableIdentity | str | None] | None = None
    noun: str = "metadata"
    file_kinds: frozenset[str] = frozenset()
    is_fragment: Callable[[bytes], bool] | None = None


class TableRole(StrEnum):
    """Role of a kind table in stages shared by all kinds."""

    # Files of retained commits released by the owner's rules, with the columns `storage`, `key`,
    # and `deduplicated`, which is true if another reference keeps the file.
    RELEASED_FILES = "released_files"
    # Paths deleted on branches by commits under the owner's rules, with columns such as `branch`
    # and `path`. An additional table with the suffix `_edits` contains the edits, with the columns
    # of `expiry_plan`.
    PATH_EDITS = "path_edits"
    # All snapshots ever seen, including expired ones. It is shared with verification marks.
    HISTORY = "history"


def _always(config: LakeConfig) -> bool:
    del config
    return True


@dataclass(frozen=True)
class KindTable:
    """Kind-specific table with its asset step.

    Attributes:
        table: The schema and the description.
        after: Lake tables from which this table is computed.
        rows: Function that computes the rows from the `after` tables published in the current run,
            by name. If None, they are computed by the stage with the table's name.
        when: Function that returns True for lakes with this table.
        before_live: True if the live set depends on this table.
        listed_after: Shared table after which this table is listed.
        role: Role of the table in shared stages.
    """

    table: Table
    after: tuple[Table, ...]
    rows: Callable[[Mapping[str, pa.Table]], pa.Table] | None = None
    when: Callable[[LakeConfig], bool] = _always
    before_live: bool = False
    listed_after: Table = REACHABLE_SNAPSHOTS
    role: TableRole | None = None


@dataclass(frozen=True)
class HistoryEdits:
    """History edits of a kind with `ExpiringLake`s.

    `loss` describes what an edit removes permanently, for messages. If None, the lakes are
    `ReversibleLake`s and their edits can be undone with `restore --history`.
    """

    loss: str | None = None


@dataclass(frozen=True)
class FileTraits:
    """File properties needed by the sweep.

    Attributes:
        metadata_patterns: Patterns that recognize this kind's metadata in claims of other lakes.
        uncollected_metadata: Regular expression for keys of metadata. Matching files are counted if
            they are unclaimed. Garbage matched by it was never referenced by a commit.
        metadata_directory: Suffix of the address of a claim on metadata. In such a claim, only
            files that match `metadata_names` are claimed, and containers of expired commits are
            live. Nothing in it is collected if a container that may reference others was not
            decoded, or if another lake has a claim in its parent directory.
        metadata_names: Regular expression for the names of containers.
        rewritten_in_place: Kinds of container files that are overwritten in this format. The new
            content references the same objects.
        never_committed: Reason for orphans never referenced by a commit. Files ever referenced by a
            commit, even a dangling one, have the reason `expired`.
        named_times: Picklable function that returns an Arrow column with the UTC times in key
            names. The value is missing if a name has no time.
        own_names: Regular expression for the file names used by this kind's writers. It is needed
            if users choose the table locations, because these may contain files of other
            applications. A file that no commit referenced is then a leftover if it has such a name,
            or if it is next to known data files.
        data_names: The same for data files only.
        spellings: Picklable function that returns all names of the file that has a given possible
            name (kind `possible_object`). One of them has to exist.
        own_paths: Regular expression for the ends of all paths that this kind's format produces in
            its claims. A file with any other path that no commit referenced belongs to other
            applications.
    """

    metadata_patterns: tuple[MetadataPattern, ...] = ()
    uncollected_metadata: str | None = None
    metadata_directory: str | None = None
    metadata_names: str = ""
    rewritten_in_place: frozenset[str] = frozenset()
    never_committed: str | None = None
    named_times: Callable[[pa.Array], pa.Array] | None = None
    own_names: str | None = None
    data_names: str | None = None
    own_paths: str | None = None
    spellings: Spellings | None = None

    def is_metadata_claim(self, address: str) -> bool:
        """Return True for the address of a claim on metadata."""
        return self.metadata_directory is not None and address.endswith(f"/{self.metadata_directory}")


def _describe_retention(config: LakeConfig, properties: Mapping[str, str], source: str = "lakes.yaml") -> str:
    del source
    return config.describe_retention(properties)


@dataclass(frozen=True)
class LakeKind:
    """Lake kind.

    Attributes:
        name: Value of `kind` in lakes.yaml, and the name of the extra that installs `modules`.
        title: System name for messages.
        config: Model for entries in lakes.yaml.
        open: Builds a lake from its configuration, editable objects and the configured storage
            locations. This imports the kind's libraries.
        modules: Top-level modules installed by the extra.
        describe_decoder: Returns the name of the library that decodes containers, for `gc-assets
            doctor`.
        describe_format: Describes the format of a frozen lake, such as its version, for
            `gc-assets doctor`.
        discover: Yields this kind's lakes at a target. This imports the kind's libraries.
        discovered_in_folders: Targets that `discover` finds in a folder, for messages. It is empty
            if only servers are searched.
        discovered_servers: The server that `discover` finds, with the path that it asks for, for
            messages. It is empty if no servers are searched.
        catalogs: The catalogs that list this kind's tables, for messages. It is empty if the kind
            has no catalogs.
        retention_yaml: The key `retention` of a new entry in lakes.yaml, with comments. It has the
            same effect as omitting the key.
        describe_retention: Describes in words what a lake keeps, given its configuration and the
            frozen properties of a table (`CommitSource.properties`). An optional `source` names
            the origin of the configured retention.
        edits: History edits, or None if the kind never edits history.
        optional_tables: Optional shared tables of this kind, besides `expiry_log`.
        kind_tables: Tables specific to this kind.
        is_one_table: True if a lake is a single repository.
        fails_alone: True if a lake whose refs or history cannot be read is unreadable as a whole.
            Otherwise it stops the run.
        files: File properties.
    """

    name: str
    title: str
    config: type[LakeConfig]
    open: Callable[[Any, EditableObjects, Sequence[str]], Lake]
    modules: tuple[str, ...] = ()
    describe_decoder: Callable[[], str] | None = None
    describe_format: Callable[[FrozenRefs], str] | None = None
    discover: Callable[[DiscoveryTarget], Iterator[DiscoveredLake]] | None = None
    discovered_in_folders: str = ""
    discovered_servers: str = ""
    catalogs: str = ""
    retention_yaml: str = ""
    describe_retention: Callable[..., str] = _describe_retention
    edits: HistoryEdits | None = None
    optional_tables: tuple[Table, ...] = ()
    kind_tables: tuple[KindTable, ...] = ()
    is_one_table: bool = False
    fails_alone: bool = False
    files: FileTraits = field(default_factory=FileTraits)

    @property
    def edits_history(self) -> bool:
        """True if files of expired commits only become garbage after a history edit."""
        return self.edits is not None

    @property
    def undoes_edits(self) -> bool:
        """True if history edits can be undone."""
        return self.edits is not None and self.edits.loss is None

    @property
    def has_live_contents(self) -> bool:
        """True if the live set does not follow from the retained commits alone."""
        return self.has(LIVE_CONTENTS)

    @property
    def releases_files(self) -> bool:
        """True if rules can permanently release files of retained commits."""
        return self.table_with(TableRole.RELEASED_FILES) is not None

    def has(self, table: Table) -> bool:
        """Return True if any lake of this kind has the table."""
        if table.name == EXPIRY_LOG.name:
            return self.edits_history
        shared = {item.name for item in SHARED_TABLES if item.scope == "lake"} - _OPTIONAL
        own = (*self.optional_tables, *(kind_table.table for kind_table in self.kind_tables))
        return table.name in shared or table.name in {item.name for item in own}

    def kind_tables_of(self, config: LakeConfig) -> tuple[KindTable, ...]:
        """Return the kind tables of one lake."""
        return tuple(kind_table for kind_table in self.kind_tables if kind_table.when(config))

    def table_with(self, role: TableRole, config: LakeConfig | None = None) -> Table | None:
        """Return the table with a role, or None if the kind or the given lake has no such table."""
        kind_tables = self.kind_tables if config is None else self.kind_tables_of(config)
        return next((kind_table.table for kind_table in kind_tables if kind_table.role == role), None)
