"""Bind tables of the lakes to assets of the user's own Dagster project.

`assets` in lakes.yaml names assets. Others are found if the name of the table that they write is
known: `dagster/table_name` in their metadata, as dbt assets have it, or the rule of the IO managers
of dagster-iceberg.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from gc_assets.assets.asset_step import SCOPE_TAG
from gc_assets.config.models import Config, LakeConfig

TABLE_NAME: Final = "dagster/table_name"
# Kinds of assets whose engine can write tables of an Iceberg catalog. A table of another database,
# such as Snowflake, can have the same name.
ENGINES: Final = frozenset({"iceberg", "spark", "trino", "starburst", "athena", "glue", "dremio", "duckdb"})
_ICEBERG_MANAGERS: Final = "dagster_iceberg"
# The namespace of dagster's IO managers for databases, if nothing names one.
_DEFAULT_NAMESPACE: Final = "public"
Names = Mapping[dg.AssetKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Binding:
    """An asset of the user, and the table or lake that it writes.

    Attributes:
        table: The name of the table. None for the whole lake.
    """

    key: dg.AssetKey
    lake: str
    table: str | None


def configured_bindings(config: Config) -> list[Binding]:
    """Return the bindings of `assets` in lakes.yaml."""
    return [Binding(dg.AssetKey(item.key.split("/")), lake.name, item.table) for lake in config.lakes for item in lake.assets]


def find_bindings(config: Config, tables: Iterable[tuple[str, str]], written: Names) -> list[Binding]:
    """Return the configured bindings, and those that the names of tables imply.

    An asset whose name fits tables of two lakes is ambiguous and not bound.

    Args:
        config: The configuration.
        tables: Pairs of lake and table.
        written: The names of tables that assets write (`written_tables`).
    """
    bound = configured_bindings(config)
    named = {binding.key for binding in bound}
    known = [(lake, table, tuple(table.split("."))) for lake, table in tables]
    for key, parts in written.items():
        fitting = [(lake, table) for lake, table, name in known if parts[-len(name) :] == name]
        if len(fitting) == 1 and key not in named:
            bound.append(Binding(key, *fitting[0]))
    return bound


def max_garbage_share(lake: LakeConfig, binding: Binding) -> float | None:
    """Return the limit of the asset check of a binding, or None without a check."""
    own = (item.max_garbage_share for item in lake.assets if item.key == "/".join(binding.key.path) and item.table == binding.table)
    return next((share for share in own if share is not None), lake.max_garbage_share)


def written_tables(assets: Collection[dg.AssetsDefinition]) -> dict[dg.AssetKey, tuple[str, ...]]:
    """Return the parts of the name of the table that each asset writes, as far as it is known.

    The assets of gc-assets itself are left out.
    """
    found: dict[dg.AssetKey, tuple[str, ...]] = {}
    for asset in assets:
        for spec in asset.specs if asset.is_executable else ():
            name = None if SCOPE_TAG in spec.tags else _declared_name(spec) or _iceberg_name(asset, spec)
            if name is not None:
                found[spec.key] = name
    return found


def _declared_name(spec: dg.AssetSpec) -> tuple[str, ...] | None:
    name = spec.metadata.get(TABLE_NAME)
    text = getattr(name, "value", name)
    return tuple(text.split(".")) if isinstance(text, str) and spec.kinds & ENGINES else None


def _iceberg_name(asset: dg.AssetsDefinition, spec: dg.AssetSpec) -> tuple[str, ...] | None:
    """Return the name that an IO manager of dagster-iceberg gives to the table of an asset."""
    manager = asset.resource_defs.get(asset.get_io_manager_key_for_asset_key(spec.key))
    made_by = getattr(manager, "configurable_resource_cls", None)
    if made_by is None or not any(base.__module__.partition(".")[0] == _ICEBERG_MANAGERS for base in made_by.__mro__):
        return None
    schema = spec.metadata.get("schema")
    namespace = getattr(schema, "value", schema) or _configured_namespace(manager)
    if namespace is None:
        namespace = spec.key.path[-2] if len(spec.key.path) > 1 else _DEFAULT_NAMESPACE
    return (*str(namespace).split("."), spec.key.path[-1])


def _configured_namespace(manager: Any) -> str | None:
    schema = manager.config_schema
    values: Any = schema.default_value if schema.default_provided else None
    value: Any = (values.get("namespace") or values.get("schema")) if isinstance(values, Mapping) else None
    if isinstance(value, Mapping):  # a variable of the environment
        return os.environ.get(str(value.get("env")))
    return str(value) if value else None
