"""What a lake kind tells the rest of the collector about itself: one value, which the kind's
package makes.

Stages, assets, the command line and the report ask this value. They never ask which kind a lake is.
`lakes/kinds.py` lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gc_assets.config.models import LakeConfig
from gc_assets.state.schemas import EXPIRY_LOG, LIVE_CONTENTS, REACHABLE_SNAPSHOTS, SHARED_TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.core.objects import EditableObjects
    from gc_assets.lakes.discovery import Found, Place
    from gc_assets.lakes.protocol import Lake


@dataclass(frozen=True, slots=True)
class TableFound:
    """What a metadata file says of its table: the uuid, and the time of the newest snapshot in
    milliseconds since 1970.
    """

    uuid: str
    newest: int


@dataclass(frozen=True)
class ForeignSign:
    """How to recognise metadata of the kind below a prefix that some lake claims. Pickles.

    `names` is a regular expression; the keys of such metadata match it. `judge` reads an object's
    bytes. It returns a table, which may be a known one, or words for something foreign. It returns
    None for bytes that are nothing of the kind, and raises `ValueError`, `KeyError` or `TypeError`
    for bytes it cannot read. Without `judge` the name alone is proof. Messages call the metadata by
    `noun`.
    """

    names: str
    judge: Callable[[bytes], TableFound | str | None] | None = None
    noun: str = "metadata"


class TableRole(StrEnum):
    """What the stages that serve all kinds use a kind table for."""

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
    """A table that only lakes of one kind have, and the box that makes it.

    `after` are the lake's tables from which it is made. `rows` makes it from these tables, given by
    name as tonight's run published them. Where `rows` is null, the stage of the table's name makes
    it. `when` says which lakes of the kind have the table. With `before_live` the live set needs
    the table. Lists of all tables name it behind `behind`.
    """

    table: Table
    after: tuple[Table, ...]
    rows: Callable[[Mapping[str, pa.Table]], pa.Table] | None = None
    when: Callable[[LakeConfig], bool] = _always
    before_live: bool = False
    behind: Table = REACHABLE_SNAPSHOTS
    role: TableRole | None = None


@dataclass(frozen=True)
class LakeKind:
    """One kind of lake.

    `name` is the word for `kind` in lakes.yaml. The extra of this distribution that brings
    `modules` has the same name. `title` is the spelling of the kind's makers, for messages. `open`
    makes a lake from its configuration, from objects that may be changed, and from the locations of
    the configured storages. The kind's libraries are imported when `open` is called, not before.
    """

    name: str
    title: str
    config: type[LakeConfig]
    open: Callable[[Any, EditableObjects, Sequence[str]], Lake]
    # Top-level modules that the extra brings.
    modules: tuple[str, ...] = ()
    # Its lakes are `ExpiringLake`s: files of expired commits are free only once history has let go
    # of these commits.
    edits_history: bool = False
    # Its lakes are `UndoingLake`s too: `restore --history` takes the edits back.
    undoes_edits: bool = False
    # What an edit loses for good, as a clause for messages.
    edits_lose: str | None = None
    # Its live set is more than what its retained commits put, so retention answers with
    # `live_contents`.
    shows_contents: bool = False
    # A lake of it is one repository. Where it cannot be read it is sick as a whole; there is no list
    # of tables that could be unreadable instead.
    is_one_table: bool = False
    # Its rules release files for good while the commits that name them stay.
    releases_by_rule: bool = False
    # Containers that the format rewrites under their names, and that name the same others afterwards.
    rewritten_in_place: frozenset[str] = frozenset()
    kind_tables: tuple[KindTable, ...] = ()
    # The reason of a file that no commit ever named. A file that any commit named, even a dangling
    # one, has the reason `expired`.
    never_committed: str | None = None
    foreign_signs: tuple[ForeignSign, ...] = ()
    # A regular expression. It matches keys of the kind's metadata below no claim. Nobody deletes
    # such metadata, so at least it is counted.
    uncollected_metadata: str | None = None
    # Returns the UTC times at which the names of the keys were handed out, null for a name that
    # tells none. Pickles.
    named_times: Callable[[pa.Array], pa.Array] | None = None
    # Yields the lakes of the kind that stand at a place. The kind's libraries are imported when it
    # is called.
    discover: Callable[[Place], Iterator[Found]] | None = None

    def has(self, table: Table) -> bool:
        """Decides whether some lake of the kind has this table."""
        if table.name == EXPIRY_LOG.name:
            return self.edits_history
        if table.name == LIVE_CONTENTS.name:
            return self.shows_contents
        of_lakes = [item.name for item in SHARED_TABLES if item.scope == "lake"]
        return table.name in {*of_lakes, *(kind_table.table.name for kind_table in self.kind_tables)}

    def kind_tables_of(self, config: LakeConfig) -> tuple[KindTable, ...]:
        """Returns the kind's own boxes that one lake has."""
        return tuple(kind_table for kind_table in self.kind_tables if kind_table.when(config))

    def table_with(self, role: TableRole, config: LakeConfig | None = None) -> Table | None:
        """Return the kind's table with a role, or None if the kind, or the lake of `config`, has none."""
        kind_tables = self.kind_tables if config is None else self.kind_tables_of(config)
        return next((kind_table.table for kind_table in kind_tables if kind_table.role == role), None)
