"""The lake kinds that exist. A new one is a package beside the others, and a line here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gc_assets.config.models import Config, LakeConfig
from gc_assets.core.errors import UsageError
from gc_assets.lakes.iceberg.kind import KIND as ICEBERG
from gc_assets.lakes.icechunk.kind import KIND as ICECHUNK
from gc_assets.lakes.kind import LakeKind, TableRole
from gc_assets.lakes.lakefs.kind import KIND as LAKEFS
from gc_assets.lakes.nessie.kind import KIND as NESSIE
from gc_assets.state.schemas import SHARED_TABLES, Table

if TYPE_CHECKING:
    from gc_assets.core.objects import EditableObjects
    from gc_assets.lakes.discovery import Found, Place
    from gc_assets.lakes.protocol import Lake

KINDS: Final[dict[str, LakeKind]] = {kind.name: kind for kind in (ICEBERG, ICECHUNK, LAKEFS, NESSIE)}


def kind_of(config: LakeConfig) -> LakeKind:
    """The kind of a configured lake."""
    return KINDS[config.kind]


def config_models() -> dict[str, type[LakeConfig]]:
    """The model of each kind's entry in lakes.yaml, by the name of the kind."""
    return {name: kind.config for name, kind in KINDS.items()}


def config_of(document: Mapping[str, Any]) -> Config:
    """A configuration from what a lakes.yaml holds, paths as they stand there. Raises pydantic's
    `ValidationError`.
    """
    return Config.of(document, config_models())


def discover(place: Place) -> Iterator[Found]:
    """The lakes of every installed kind that stand at a place."""
    for kind in KINDS.values():
        if kind.discover is not None and not missing_modules(kind):
            yield from kind.discover(place)


def missing_modules(kind: LakeKind) -> list[str]:
    """The modules of the kind's libraries that are not installed here."""
    return [name for name in kind.modules if importlib.util.find_spec(name) is None]


def undoing_titles() -> str:
    """The kinds whose edits of history can be taken back, as messages name them."""
    return " and ".join(kind.title for kind in KINDS.values() if kind.undoes_edits)


def all_tables() -> dict[str, Table]:
    """Every table by name, in the order of the flow; a kind's own stand behind the shared table
    that they name.
    """
    found: dict[str, Table] = {}
    kind_tables = [kind_table for kind in KINDS.values() for kind_table in kind.kind_tables]
    for table in SHARED_TABLES:
        found[table.name] = table
        found |= {kind_table.table.name: kind_table.table for kind_table in kind_tables if kind_table.behind.name == table.name}
    return found


def table_with(role: TableRole) -> Table:
    """Return the table that has a role. At most one kind has a table with each role."""
    (table,) = (table for kind in KINDS.values() if (table := kind.table_with(role)) is not None)
    return table


def owners_of(config: Config, table: Table) -> list[str]:
    """Returns the names of the lakes or storages that have this table, in the order of the
    configuration.
    """
    if table.scope == "storage":
        return [storage.name for storage in config.storages]
    return [lake.name for lake in config.lakes if kind_of(lake).has(table)]


def open_lake(config: LakeConfig, objects: EditableObjects, storages: Sequence[str] = ()) -> Lake:
    """The lake of a configuration entry. `storages` are the locations of the configured storages.

    Raises `UsageError` where the kind's libraries are not installed, naming the extra that brings
    them.
    """
    kind = kind_of(config)
    missing = missing_modules(kind)
    if missing:
        raise UsageError(
            f"lake {config.name} is of kind {kind.name}, which needs {', '.join(missing)}: pip install 'gc-assets[{kind.name}]'"
        )
    return kind.open(config, objects, storages)
