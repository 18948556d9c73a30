"""Names of the assets in Dagster: keys, groups and steps.

`dagster` in lakes.yaml can add a prefix to keys and groups. Step names have no prefix, so that run
configurations do not depend on it.
"""

from __future__ import annotations

from functools import cache

import dagster as dg

from gc_assets.config.models import Config
from gc_assets.state.schemas import Table


def asset_key(config: Config, owner: str, table: Table) -> dg.AssetKey:
    """Return the asset key of a table of a lake or storage."""
    return prefixed_key(config, owner, table.name)


def prefixed_key(config: Config, *parts: str) -> dg.AssetKey:
    """Return the key `parts` with the configured prefix."""
    return dg.AssetKey([*config.dagster.key_prefix_parts, *parts])


def owner_and_table(key: dg.AssetKey) -> tuple[str, str]:
    """Split an asset key into the lake or storage and the table name."""
    *_, owner, table = key.path
    return owner, table


def step_name(key: dg.AssetKey) -> str:
    """Return the step name for an asset key, for example `warehouse__deletion_log`."""
    return "__".join(owner_and_table(key))


def group_name(config: Config, owner: str) -> str:
    """Return the asset group of a lake or storage.

    For Dagster before 1.13.10, `/` in the name is replaced by `_`, because it rejects `/` in group
    names.
    """
    name = f"{config.dagster.group_prefix}{owner}"
    return name if allows_separators() else name.replace("/", "_")


@cache
def allows_separators() -> bool:
    """Return True if this Dagster allows `/` in group names."""
    try:
        dg.AssetSpec("probe", group_name="a/b")
    except dg.DagsterInvalidDefinitionError:
        return False
    return True
