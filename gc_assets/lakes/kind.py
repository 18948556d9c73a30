"""Description of a lake kind, such as `iceberg`. Each kind's package defines one `LakeKind`.

Stages, assets, the CLI and the report rely on these values and never check the name of a kind.
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
# Shared tables that not every kind has. A kind has to declare them.
_OPTIONAL = frozenset({EXPIRY_LOG.name, LIVE_CONTENTS.name})


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identity of a table or view, as recorded in one of its metadata files.

    Attributes:
        newest: Time of the newest snapshot or view version, in milliseconds since 1970. It is 0 if
            there is no snapshot or version, and None if an unsupported format stores it in another
            way.
        noun: Name of the object in messages, such as "table".
        location_if_empty: Location of the table if the file is the table's first metadata, does
            not reference any files, and shows that all of the table's files are in this location.
            None otherwise. pyiceberg leaves such a file behind if it tries to create a table that
            already exists.
        lineage: Earlier metadata files and snapshots that the file lists. Empty for a view.
    """

    uuid: str
    newest: int | None
    noun: str = "table"
    location_if_empty: str | None = None
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True)
class MetadataPattern:
    """Pattern that finds metadata of one lake kind in prefixes claimed by another lake.

    It is pickled and sent to Spark executors.

    Attributes:
        names: Regular expression that matches the keys of such metadata files.
        classify: Takes the content of an object. Returns the table that it describes (possibly
            a known one), a description of foreign metadata, or None for unrelated content. May
            raise any exception if the content is damaged. If None, a matching name is sufficient.
        noun: Name of such metadata in messages.
        file_kinds: File kinds of such metadata.
        is_fragment: Returns True for incomplete content that no reader can use. If such a file is
            next to a live file of `file_kinds`, a failed write left it behind.
    """

    names: str
    classify: Callable[[bytes], TableIdentity | str | None] | None = None
    noun: str = "metadata"
    file_kinds: frozenset[str] = frozenset()
    is_fragment: Callable[[bytes], bool] | None = None


class TableRole(StrEnum):
    """Purpose of a kind-specific table in the stages shared by all kinds."""

    # Files of retained commits that rules of the owner allow to be deleted. The columns are
    # `storage`, `key` and `deduplicated`, which is true if another reference still needs the file.
    RELEASED_FILES = "released_files"
    # Paths on branches that the owner's rules delete through commits. Columns include `branch` and
    # `path`. A second table with the suffix `_edits` lists the edits, with the columns of
    # `expiry_plan`.
    PATH_EDITS = "path_edits"
    # Every snapshot ever seen, including expired ones. The mark that an apply makes before it
    # deletes anything uses the same table.
    HISTORY = "history"


def _always(config: LakeConfig) -> bool:
    del config
    return True


@dataclass(frozen=True)
class KindTable:
    """Table that only some lake kinds have, and the asset step that computes it.

    Attributes:
        table: Schema and description.
        after: Lake tables that are needed to compute this one.
        rows: Computes the rows from the `after` tables of the current run, which are passed by
            name. If None, the stage with the same name as the table computes them.
        when: Returns True for lakes that have this table.
        before_live: True if the live set (all files to keep) depends on this table.
        listed_after: Table of all kinds that precedes this one in lists.
        role: How shared stages use the table.
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
    """How lakes of one kind edit their commit history (`ExpiringLake`).

    `loss` describes what an edit removes permanently, for messages. If it is None, the lakes are
    `ReversibleLake`s, and `restore --history` can undo their edits.
    """

    loss: str | None = None


@dataclass(frozen=True)
class FileTraits:
    """Properties of a lake kind's files that the sweep (comparing files with live sets) relies on.

    Attributes:
        metadata_patterns: Patterns that find this kind's metadata in claims of other lakes.
        uncollected_metadata: Regular expression for metadata keys. Unclaimed files that match are
            counted. Garbage that matches was never referenced by a commit.
        metadata_directory: Last part of the address of claims that contain only metadata. In such
            a claim, only files that match `metadata_names` are claimed, and containers of expired
            commits stay live. Nothing there is collected if a container that may reference others
            was not decoded, or if another lake has a claim in the parent directory.
        metadata_names: Regular expression for the names of containers.
        rewritten_in_place: Container kinds that this format overwrites. The new content references
            the same objects as the old one.
        never_committed: Reason recorded for orphans that no commit ever referenced. Files that any
            commit has referenced, including a dangling one, get the `expired` reason.
        named_times: Function that extracts UTC times from key names as an Arrow column. The column
            is null for names without a time. Like `spellings`, it is pickled and sent to Spark
            executors.
        own_names: Regular expression for file names that this kind's writers create. Kinds need it
            if users choose table locations, because files of other applications may be there. An
            uncommitted file counts as a leftover only if its name matches or if it is next to
            known data files.
        data_names: Like `own_names`, but for data files only.
        spellings: Function that returns all possible names of a file, given one of them, for files
            of the kind `possible_object`. At least one of the names has to exist.
        own_paths: Regular expression for the ends of all paths that the format creates in its
            claims. An uncommitted file with any other path belongs to another application.
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
        """Return True if a claim with this address contains only metadata."""
        return self.metadata_directory is not None and address.endswith(f"/{self.metadata_directory}")


def _describe_retention(config: LakeConfig, properties: Mapping[str, str], source: str = "lakes.yaml") -> str:
    del source
    return config.describe_retention(properties)


@dataclass(frozen=True)
class LakeKind:
    """Everything that the rest of gc-assets needs to know about a lake kind.

    Attributes:
        name: Value of `kind` in lakes.yaml. The extra that installs `modules` has the same name.
        title: Name of the system in messages.
        config: Model of the lake's entry in lakes.yaml.
        open: Builds a lake from its configuration, the editable objects and the configured storage
            locations. Importing the kind's libraries is left to this function.
        modules: Top-level modules that the extra installs.
        describe_decoder: Returns the library that decodes containers, for `gc-assets doctor`.
        describe_format: Describes the format of a lake, for example its version, from its
            `FrozenRefs`, for `gc-assets doctor`.
        discover: Yields the lakes of this kind at a target. Imports the kind's libraries.
        discovered_in_folders: Targets that `discover` looks for in a folder, for messages. Empty if
            it only searches servers.
        discovered_servers: Which server `discover` looks for and the path that it requests, for
            messages. Empty if it does not search servers.
        catalogs: Catalogs that list tables of this kind, for messages. Empty if it has no catalogs.
        retention_yaml: Commented `retention` section for new entries in lakes.yaml. It has the same
            effect as leaving the section out.
        describe_retention: Explains to users what a lake keeps. The arguments are the configuration
            and the `CommitSource.properties` of a table. The optional `source` is the origin of the
            configured retention.
        edits: How history is edited, or None if this kind never edits history.
        optional_tables: Optional shared tables of this kind, apart from `expiry_log`.
        kind_tables: Tables that belong to this kind and not to all kinds.
        is_one_table: True if a lake is a single repository.
        fails_alone: True if only this lake becomes unreadable when its refs or history cannot be
            read, and the run continues. If False, the run stops.
        files: File properties that the sweep relies on.
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
        """True if files of expired commits become garbage only after a history edit."""
        return self.edits is not None

    @property
    def undoes_edits(self) -> bool:
        """True if history edits can be undone."""
        return self.edits is not None and self.edits.loss is None

    @property
    def has_live_contents(self) -> bool:
        """True if the live set of a lake depends on more than its retained commits."""
        return self.has(LIVE_CONTENTS)

    @property
    def releases_files(self) -> bool:
        """True if rules can permit the deletion of files of retained commits."""
        return self.table_with(TableRole.RELEASED_FILES) is not None

    def has(self, table: Table) -> bool:
        """Return True if lakes of this kind have the table."""
        if table.name == EXPIRY_LOG.name:
            return self.edits_history
        shared = {item.name for item in SHARED_TABLES if item.scope == "lake"} - _OPTIONAL
        own = (*self.optional_tables, *(kind_table.table for kind_table in self.kind_tables))
        return table.name in shared or table.name in {item.name for item in own}

    def kind_tables_of(self, config: LakeConfig) -> tuple[KindTable, ...]:
        """Return the kind-specific tables that a lake has."""
        return tuple(kind_table for kind_table in self.kind_tables if kind_table.when(config))

    def table_with(self, role: TableRole, config: LakeConfig | None = None) -> Table | None:
        """Return the kind-specific table with a role. None if this kind or the given lake lacks it."""
        kind_tables = self.kind_tables if config is None else self.kind_tables_of(config)
        return next((kind_table.table for kind_table in kind_tables if kind_table.role == role), None)
