"""The lakes themselves as assets that somebody else makes: a lake's repository or catalog, and its
tables. With them the lineage of a night begins where that of the user's own assets ends.

Their keys (`[<lake>, catalog]`, `[<lake>, tables, shop, orders]`) are of a form that no asset of a
user's project is likely to have, since one code location cannot hold a key twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import dagster as dg
import pyarrow as pa

from gc_assets.config.models import Config, LakeConfig
from gc_assets.core.errors import GcError
from gc_assets.lakes.kinds import kind_of
from gc_assets.stages.read.browse import table_names
from gc_assets.state.journal import State

TABLES: Final = "tables"
# A graph of more than so many tables shows nothing.
MAX_TABLES: Final = 100
_log: Final = logging.getLogger(__name__)


def source_key(lake: LakeConfig) -> dg.AssetKey:
    """Returns the key of the lake's repository or catalog."""
    return dg.AssetKey([lake.name, "repository" if kind_of(lake).is_one_table else "catalog"])


def source_assets(lake: LakeConfig, tables: Sequence[str]) -> list[dg.AssetSpec]:
    """Returns the lake, made from its tables and from the assets that `lakes.yaml` says write to
    it. A table that such an asset writes is that asset, and has none here. `tables` are the names
    of the lake's tables, of which `MOST_TABLES` are shown.
    """
    title = kind_of(lake).title
    writers = [_parse_key(item.key) for item in lake.assets]
    written = {item.table for item in lake.assets}
    own = [name for name in tables if name not in written]
    shown = [
        dg.AssetSpec(
            [lake.name, TABLES, *name.split(".")],
            description=f"Table {name} of lake {lake.name} ({title}), which others write. A night reads it.",
            group_name=lake.name,
            kinds={lake.kind},
        )
        for name in own[:MAX_TABLES]
    ]
    more = f" {len(own) - MAX_TABLES:,} of its tables are not shown." if len(own) > MAX_TABLES else ""
    whole = dg.AssetSpec(
        source_key(lake),
        deps=list(dict.fromkeys([*(spec.key for spec in shown), *writers])),
        description=f"Lake {lake.name} ({title}) itself, which others write. A night reads it, and an approved plan changes it.{more}",
        group_name=lake.name,
        kinds={lake.kind},
    )
    return [whole, *shown]


def list_tables(config: Config, lake: LakeConfig) -> list[str]:
    """Returns the names of the lake's tables as its newest night saw them. A state that cannot be
    read now names none: the page opens all the same.
    """
    if kind_of(lake).is_one_table:
        return []
    try:
        return table_names(State.of(config), lake.name)
    except (GcError, OSError, pa.ArrowException) as error:
        _log.warning("the state %s cannot be read, so Dagster shows no table of lake %s: %s", config.state, lake.name, error)
        return []


def _parse_key(path: str) -> dg.AssetKey:
    return dg.AssetKey(path.split("/"))
