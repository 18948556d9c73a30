"""The description of a lake kind: one value per kind, which the kind's package defines.

Stages, assets, the command line and the report use only these values. They never compare names of
kinds. `lakes/kinds.py` lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gc_assets.config.models import LakeConfig
from gc_assets.state.schemas import EXPIRY_LOG, LIVE_CONTENTS, REACHABLE_SNAPSHOTS, SHARED_TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.core.objects import EditableObjects
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import Lake

# Shared tables that a kind has only if it declares so.
_OPTIONAL = frozenset({EXPIRY_LOG.name, LIVE_CONTENTS.name})


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identity of a table, as its metadata file records it.

    `newest` is the time of its newest snapshot in milliseconds since 1970.
    """

    uuid: str
    newest: int


@dataclass(frozen=True)
class MetadataPattern:
    """Recognizes metadata of the kind under a prefix that another lake claims. Pickles.

    Attributes:
        names: Regular expression that matches the keys of such metadata.
        classify: Reads the bytes of an object. It returns a table, which may be a known one, a
            description of foreign metadata, or None for other content. It raises `ValueError`,
            `KeyError` or `TypeError` for damaged bytes. If it is None, a matching name is enough.
        noun: The term for such metadata in messages.
    """

    names: str
    classify: Callable[[bytes], TableIdentity | str | None] | None = None
    noun: str = "metadata"


class TableRole(StrEnum):
    """Use of a kind table by the stages that serve all kinds."""

    # Lists files that retained commits name and that the owner's rules release: `storage`, `key`,
    # and `deduplicated`, which is true for a file that another reference keeps.
    RELEASED_FILES = "released_files"
    # Records every snapshot that was seen, including expired ones. A verification mark shares it.
    HISTORY = "history"


def _always(config: LakeConfig) -> bool:
    del config
    return True


@dataclass(frozen=True)
class KindTable:
    """A table that only lakes of one kind have, and its asset step.

    Attributes:
        table: The schema and the description.
        after: Tables of the lake from which the table is computed.
        rows: Computes the rows from the tables in `after`, by name, as the current run published
            them. If it is None, the stage with the name of the table computes them.
        when: Returns true for the lakes of the kind that have the table.
        before_live: True if the live set depends on the table.
        listed_after: The shared table that the table follows in lists of all tables.
        role: The use of the table by shared stages.
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
    """Edits of history by a kind whose lakes are `ExpiringLake`s.

    `loss` is a clause for messages that states what an edit removes permanently. If it is None, the
    lakes are `ReversibleLake`s, and `restore --history` undoes the edits.
    """

    loss: str | None = None


@dataclass(frozen=True)
class FileTraits:
    """Properties of the kind's files that the sweep needs.

    Attributes:
        metadata_patterns: Recognize metadata of the kind in the claim of another lake.
        uncollected_metadata: Regular expression for keys of metadata that is under no claim. Such
            metadata is counted and never deleted.
        rewritten_in_place: File kinds of containers that the format overwrites. The new content
            names the same objects.
        never_committed: Reason of an orphan that no commit ever named. A file that any commit
            named, even a dangling one, has the reason `expired`.
        named_times: Returns a column with the UTC times in the names of the keys, null without a time.
            Pickles.
    """

    metadata_patterns: tuple[MetadataPattern, ...] = ()
    uncollected_metadata: str | None = None
    rewritten_in_place: frozenset[str] = frozenset()
    never_committed: str | None = None
    named_times: Callable[[pa.Array], pa.Array] | None = None


@dataclass(frozen=True)
class LakeKind:
    """One kind of lake.

    Attributes:
        name: The value of `kind` in lakes.yaml, and the name of the extra that installs `modules`.
        title: The name of the system, for messages.
        config: The model of the entry in lakes.yaml.
        open: Builds a lake from its configuration, from editable objects, and from the locations of
            the configured storages. It imports the kind's libraries.
        modules: Top-level modules that the extra installs.
        discover: Yields the lakes of the kind at a target. It imports the kind's libraries.
        edits: How the kind edits history, None if it never does.
        optional_tables: Shared tables that not every kind has, besides `expiry_log`.
        kind_tables: Tables that only this kind has.
        is_one_table: True if a lake is a single repository. If it cannot be read, the whole lake
            is unreadable, because no list names tables that could be unreadable instead.
        files: Properties of the kind's files.
    """

    name: str
    title: str
    config: type[LakeConfig]
    open: Callable[[Any, EditableObjects, Sequence[str]], Lake]
    modules: tuple[str, ...] = ()
    discover: Callable[[DiscoveryTarget], Iterator[DiscoveredLake]] | None = None
    edits: HistoryEdits | None = None
    optional_tables: tuple[Table, ...] = ()
    kind_tables: tuple[KindTable, ...] = ()
    is_one_table: bool = False
    files: FileTraits = field(default_factory=FileTraits)

    @property
    def edits_history(self) -> bool:
        """True if files of expired commits are free only after an edit of history."""
        return self.edits is not None

    @property
    def undoes_edits(self) -> bool:
        """True if edits of history can be undone."""
        return self.edits is not None and self.edits.loss is None

    @property
    def has_live_contents(self) -> bool:
        """True if retained commits alone do not determine the live set."""
        return self.has(LIVE_CONTENTS)

    @property
    def releases_files(self) -> bool:
        """True if rules release files permanently while the commits that name them stay."""
        return self.table_with(TableRole.RELEASED_FILES) is not None

    def has(self, table: Table) -> bool:
        """Return whether any lake of the kind has this table."""
        if table.name == EXPIRY_LOG.name:
            return self.edits_history
        shared = {item.name for item in SHARED_TABLES if item.scope == "lake"} - _OPTIONAL
        own = (*self.optional_tables, *(kind_table.table for kind_table in self.kind_tables))
        return table.name in shared or table.name in {item.name for item in own}

    def kind_tables_of(self, config: LakeConfig) -> tuple[KindTable, ...]:
        """Return the kind tables that one lake has."""
        return tuple(kind_table for kind_table in self.kind_tables if kind_table.when(config))

    def table_with(self, role: TableRole, config: LakeConfig | None = None) -> Table | None:
        """Return the table with a role, or None if the kind, or the lake of `config`, has none."""
        kind_tables = self.kind_tables if config is None else self.kind_tables_of(config)
        return next((kind_table.table for kind_table in kind_tables if kind_table.role == role), None)
