"""The lakes and their tables as external assets, from which the lineage of a run starts.

A code location cannot contain a key twice, so their keys (`[<lake>, catalog]`,
`[<lake>, tables, shop, orders]`) are chosen to be unlikely to collide with other assets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import dagster as dg
import pyarrow as pa

from gc_assets.assets.names import group_name, prefixed_key
from gc_assets.config.models import Config, LakeConfig
from gc_assets.core.errors import GcError
from gc_assets.core.units import count_of
from gc_assets.lakes.kinds import kind_of
from gc_assets.stages.read.browse import table_names
from gc_assets.state.journal import State

TABLES: Final = "tables"
# A larger graph is unreadable.
MAX_TABLES: Final = 100
_log: Final = logging.getLogger(__name__)


def source_key(config: Config, lake: LakeConfig) -> dg.AssetKey:
    """Return the key of the lake's repository or catalog."""
    return prefixed_key(config, lake.name, "repository" if kind_of(lake).is_one_table else "catalog")


def source_assets(config: Config, lake: LakeConfig, tables: Sequence[str]) -> list[dg.AssetSpec]:
    """Return the external assets of a lake and its tables.

    The lake depends on its tables and on the assets in `lakes.yaml` that write to it. Tables
    written by such an asset get no external asset.

    Args:
        tables: The names of the lake's tables. At most `MAX_TABLES` of them get an asset.
    """
    title = kind_of(lake).title
    writers = [_parse_key(item.key) for item in lake.assets]
    written = {item.table for item in lake.assets}
    own = [name for name in tables if name not in written]
    shown = [
        dg.AssetSpec(
            prefixed_key(config, lake.name, TABLES, *name.split(".")),
            description=f"Table {name} of lake {lake.name} ({title}). A run reads it.",
            group_name=group_name(config, lake.name),
            kinds={lake.kind},
        )
        for name in own[:MAX_TABLES]
    ]
    more = f" {count_of(len(own) - MAX_TABLES, 'table', 'are')} not shown." if len(own) > MAX_TABLES else ""
    source = dg.AssetSpec(
        source_key(config, lake),
        deps=list(dict.fromkeys([*(spec.key for spec in shown), *writers])),
        description=f"Lake {lake.name} ({title}). A run reads it, and an approved plan changes it.{more}",
        group_name=group_name(config, lake.name),
        kinds={lake.kind},
    )
    return [source, *shown]


def list_tables(config: Config, lake: LakeConfig) -> list[str]:
    """Return the lake's table names in its newest run. Empty if the state cannot be read."""
    if kind_of(lake).is_one_table:
        return []
    try:
        return table_names(State.of(config), lake.name)
    except (GcError, OSError, pa.ArrowException) as error:
        _log.warning(
            "Cannot read the state %s, so Dagster shows no tables of lake %s: %s. Run gc-assets doctor.", config.state, lake.name, error
        )
        return []


def _parse_key(path: str) -> dg.AssetKey:
    return dg.AssetKey(path.split("/"))
