"""Lake kind registry. A new kind is a package next to the others with an entry in `KINDS`."""

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
from gc_assets.state.schemas import EXPIRY_LOG, SHARED_TABLES, Table

if TYPE_CHECKING:
    from gc_assets.core.objects import EditableObjects
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import Lake

KINDS: Final[dict[str, LakeKind]] = {kind.name: kind for kind in (ICEBERG, ICECHUNK, LAKEFS, NESSIE)}


def kind_of(config: LakeConfig) -> LakeKind:
    """Return the kind of a configured lake."""
    return KINDS[config.kind]


def config_models() -> dict[str, type[LakeConfig]]:
    """Return the lakes.yaml entry models by kind name."""
    return {name: kind.config for name, kind in KINDS.items()}


def config_of(document: Mapping[str, Any]) -> Config:
    """Build a configuration from the parsed content of lakes.yaml, without resolving relative
    paths.

    Raises:
        pydantic.ValidationError: If the content is invalid.
    """
    return Config.of(document, config_models())


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the lakes of all installed kinds at a target."""
    for kind in KINDS.values():
        if kind.discover is not None and not missing_modules(kind):
            yield from kind.discover(target)


def missing_modules(kind: LakeKind) -> list[str]:
    """Return the names of the kind's library modules that are not installed."""
    return [name for name in kind.modules if importlib.util.find_spec(name) is None]


def uncollected_metadata() -> str:
    """Return a regular expression for the keys of metadata that no commit references, of any lake
    kind.

    It matches no key if no kind has such metadata.
    """
    return "|".join(kind.files.uncollected_metadata for kind in KINDS.values() if kind.files.uncollected_metadata is not None) or "^$"


def reversible_titles() -> str:
    """Return the titles of kinds with reversible history edits, for messages."""
    return " and ".join(kind.title for kind in KINDS.values() if kind.undoes_edits)


def all_tables() -> dict[str, Table]:
    """Return all tables by name, in run order.

    Kind tables follow their `listed_after` table.
    """
    found: dict[str, Table] = {}
    kind_tables = [kind_table for kind in KINDS.values() for kind_table in kind.kind_tables]
    for table in SHARED_TABLES:
        found[table.name] = table
        found |= {kind_table.table.name: kind_table.table for kind_table in kind_tables if kind_table.listed_after.name == table.name}
    return found


def table_with(role: TableRole) -> Table:
    """Return the table with a role. Each role has at most one table."""
    (table,) = (table for kind in KINDS.values() if (table := kind.table_with(role)) is not None)
    return table


def owners_of(config: Config, table: Table) -> list[str]:
    """Return the names of lakes or storages with the table, in configuration order."""
    if table.scope == "storage":
        return [storage.name for storage in config.storages]
    return [lake.name for lake in config.lakes if has_table(lake, table)]


def has_table(lake: LakeConfig, table: Table) -> bool:
    """Return True if a lake has the table. Lakes with edited branches have a log of edits."""
    kind = kind_of(lake)
    edits_paths = kind.table_with(TableRole.PATH_EDITS, lake) is not None
    if table == kind.table_with(TableRole.PATH_EDITS):
        return edits_paths
    return kind.has(table) or (table.name == EXPIRY_LOG.name and (edits_paths or bool(lake.idle_rules)))


def open_lake(config: LakeConfig, objects: EditableObjects, storages: Sequence[str] = ()) -> Lake:
    """Build the lake for a configuration entry.

    Args:
        config: The entry of lakes.yaml.
        objects: Object access for the lake.
        storages: Configured storage locations.

    Raises:
        UsageError: If the kind's libraries are not installed. The message contains the extra.
    """
    kind = kind_of(config)
    missing = missing_modules(kind)
    if missing:
        raise UsageError(
            f"lake {config.name} is of kind {kind.name}, which needs {', '.join(missing)}: pip install 'gc-assets[{kind.name}]'"
        )
    return kind.open(config, objects, storages)
