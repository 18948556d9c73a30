"""External assets for the lakes and their tables, so that Dagster's lineage starts with them.

An asset key must be unique in a code location. The assets therefore have keys such as `[<lake>,
catalog]` and `[<lake>, tables, shop, orders]`, which the user's assets are unlikely to have.
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
# With more tables, the graph becomes unreadable.
MAX_TABLES: Final = 100
_log: Final = logging.getLogger(__name__)


def source_key(config: Config, lake: LakeConfig) -> dg.AssetKey:
    """Return the key of the asset that represents the lake as a whole."""
    return prefixed_key(config, lake.name, "repository" if kind_of(lake).is_one_table else "catalog")


def source_assets(config: Config, lake: LakeConfig, tables: Sequence[str]) -> list[dg.AssetSpec]:
    """Describe a lake and its tables as external assets.

    The lake's asset depends on the assets of its tables. If `lakes.yaml` lists the user's asset
    that writes a table, the lake depends on that asset, and the table does not get an external
    asset.

    Args:
        config: The configuration.
        lake: The lake.
        tables: The tables of the lake. Only the first `MAX_TABLES` are shown.
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
    """List a lake's tables in the newest run. If the state is unreadable, the list is empty."""
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
