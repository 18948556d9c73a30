"""Registry of lake kinds.

To add a kind, create a package next to the existing ones and add its `LakeKind` to `KINDS`.
"""

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
    """Return the model of a lakes.yaml entry for each kind name."""
    return {name: kind.config for name, kind in KINDS.items()}


def config_of(document: Mapping[str, Any]) -> Config:
    """Build a configuration from a parsed lakes.yaml, without resolving relative paths.

    Raises:
        pydantic.ValidationError: If the content is invalid.
    """
    return Config.of(document, config_models())


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the lakes that the installed kinds find at a target."""
    for kind in KINDS.values():
        if kind.discover is not None and not missing_modules(kind):
            yield from kind.discover(target)


def missing_modules(kind: LakeKind) -> list[str]:
    """List the modules required by this kind but not installed."""
    return [name for name in kind.modules if importlib.util.find_spec(name) is None]


def uncollected_metadata() -> str:
    """Return a regular expression for metadata keys that no commit references, for all kinds.

    If no kind has such metadata, the expression does not match any key.
    """
    return "|".join(kind.files.uncollected_metadata for kind in KINDS.values() if kind.files.uncollected_metadata is not None) or "^$"


def reversible_titles() -> str:
    """Return the titles of the kinds whose history edits can be undone, for messages."""
    return " and ".join(kind.title for kind in KINDS.values() if kind.undoes_edits)


def all_tables() -> dict[str, Table]:
    """Return all tables by name, in the order of a run.

    A kind-specific table follows its `listed_after` table.
    """
    found: dict[str, Table] = {}
    kind_tables = [kind_table for kind in KINDS.values() for kind_table in kind.kind_tables]
    for table in SHARED_TABLES:
        found[table.name] = table
        found |= {kind_table.table.name: kind_table.table for kind_table in kind_tables if kind_table.listed_after.name == table.name}
    return found


def table_with(role: TableRole) -> Table:
    """Return the kind-specific table with a role. Only one lake kind has a table with that role."""
    (table,) = (table for kind in KINDS.values() if (table := kind.table_with(role)) is not None)
    return table


def owners_of(config: Config, table: Table) -> list[str]:
    """Return the names of the lakes or storages that have the table, in configuration order."""
    if table.scope == "storage":
        return [storage.name for storage in config.storages]
    return [lake.name for lake in config.lakes if has_table(lake, table)]


def has_table(lake: LakeConfig, table: Table) -> bool:
    """Return True if a lake has the table.

    A lake that edits branches has an `expiry_log` even if its kind does not edit commit history.
    """
    kind = kind_of(lake)
    edits_paths = kind.table_with(TableRole.PATH_EDITS, lake) is not None
    if table == kind.table_with(TableRole.PATH_EDITS):
        return edits_paths
    return kind.has(table) or (table.name == EXPIRY_LOG.name and (edits_paths or bool(lake.idle_rules)))


def open_lake(config: LakeConfig, objects: EditableObjects, storages: Sequence[str] = ()) -> Lake:
    """Build the lake that a lakes.yaml entry configures.

    Args:
        config: The lakes.yaml entry.
        objects: Access to the lake's objects.
        storages: Locations of all configured storages.

    Raises:
        UsageError: If a required library is missing. The message shows the extra to install.
    """
    kind = kind_of(config)
    missing = missing_modules(kind)
    if missing:
        raise UsageError(
            f"lake {config.name} is of kind {kind.name}, which needs {', '.join(missing)}: pip install 'gc-assets[{kind.name}]'"
        )
    return kind.open(config, objects, storages)
