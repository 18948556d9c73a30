"""Bind tables of the lakes to assets of the user's own Dagster project.

Assets can be listed under `assets` in lakes.yaml. Other assets are found if the name of the table
that they write is known. It is known from `dagster/table_name` in their metadata (dbt assets have
it), or from the naming rule of dagster-iceberg's IO managers.
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
# Kinds of assets whose engine can write to an Iceberg catalog. Other kinds are excluded, because a
# table in another database, such as Snowflake, can have the same name.
ENGINES: Final = frozenset({"iceberg", "spark", "trino", "starburst", "athena", "glue", "dremio", "duckdb"})
_ICEBERG_MANAGERS: Final = "dagster_iceberg"
# The default namespace of Dagster's database IO managers.
_DEFAULT_NAMESPACE: Final = "public"
Names = Mapping[dg.AssetKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Binding:
    """A user's asset, and the table or lake that it writes.

    Attributes:
        table: The name of the table, or None for the whole lake.
    """

    key: dg.AssetKey
    lake: str
    table: str | None


def configured_bindings(config: Config) -> list[Binding]:
    """Return the bindings of `assets` in lakes.yaml."""
    return [Binding(dg.AssetKey(item.key.split("/")), lake.name, item.table) for lake in config.lakes for item in lake.assets]


def find_bindings(config: Config, tables: Iterable[tuple[str, str]], written: Names) -> list[Binding]:
    """Return the configured bindings, and those inferred from table names.

    An asset is not bound if its table name matches tables of several lakes.

    Args:
        config: The configuration.
        tables: Pairs of lake and table.
        written: The names of tables written by assets (`written_tables`).
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
    """Return the limit for a binding's asset check, or None if it has no check."""
    own = (item.max_garbage_share for item in lake.assets if item.key == "/".join(binding.key.path) and item.table == binding.table)
    return next((share for share in own if share is not None), lake.max_garbage_share)


def written_tables(assets: Collection[dg.AssetsDefinition]) -> dict[dg.AssetKey, tuple[str, ...]]:
    """Return the name parts of the table written by each asset, for assets with a known table.

    The assets of gc-assets itself are excluded.
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
    """Return the table name that a dagster-iceberg IO manager derives from an asset."""
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
    if isinstance(value, Mapping):  # a reference to an environment variable
        return os.environ.get(str(value.get("env")))
    return str(value) if value else None
