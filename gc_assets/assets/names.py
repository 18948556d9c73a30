"""Asset keys, groups and step names.

Users can configure a prefix for keys and groups (`dagster` in lakes.yaml). It is not used in step
names, so that changing the prefix does not invalidate run configurations.
"""

from __future__ import annotations

from functools import cache

import dagster as dg

from gc_assets.config.models import Config
from gc_assets.state.schemas import Table


def asset_key(config: Config, owner: str, table: Table) -> dg.AssetKey:
    """Return the asset key for a table of the given lake or storage."""
    return prefixed_key(config, owner, table.name)


def prefixed_key(config: Config, *parts: str) -> dg.AssetKey:
    """Build an asset key that begins with the configured prefix."""
    return dg.AssetKey([*config.dagster.key_prefix_parts, *parts])


def owner_and_table(key: dg.AssetKey) -> tuple[str, str]:
    """Split an asset key into the name of its lake or storage, and the name of the table."""
    *_, owner, table = key.path
    return owner, table


def step_name(key: dg.AssetKey) -> str:
    """Return the step name for an asset key, for example `warehouse__deletion_log`."""
    return "__".join(owner_and_table(key))


def group_name(config: Config, owner: str) -> str:
    """Return the name of the asset group of a lake or storage.

    Dagster rejects `/` in group names before 1.13.10, so it is replaced by `_` for old releases.
    """
    name = f"{config.dagster.group_prefix}{owner}"
    return name if allows_separators() else name.replace("/", "_")


@cache
def allows_separators() -> bool:
    """Return True if the installed Dagster accepts `/` in group names."""
    try:
        dg.AssetSpec("probe", group_name="a/b")
    except dg.DagsterInvalidDefinitionError:
        return False
    return True
