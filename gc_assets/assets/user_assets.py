"""Find out which assets of the user's own Dagster project write which tables.

Users can list these assets under `assets` in lakes.yaml. Otherwise, an asset is matched by the name
of its table. This name comes from the asset's metadata `dagster/table_name`, which dbt assets have,
or from the rule by which dagster-iceberg's IO managers name tables.
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
# Only these engines can write to an Iceberg catalog. An asset of another kind may write a table of
# the same name to a different database, such as Snowflake.
ENGINES: Final = frozenset({"iceberg", "spark", "trino", "starburst", "athena", "glue", "dremio", "duckdb"})
_ICEBERG_MANAGERS: Final = "dagster_iceberg"
# Dagster's database IO managers use this namespace by default.
_DEFAULT_NAMESPACE: Final = "public"
Names = Mapping[dg.AssetKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Binding:
    """A user's asset together with the table or lake that it writes.

    Attributes:
        key: The key of the asset.
        lake: The name of the lake.
        table: The name of the table, or None if the asset writes the lake as a whole.
    """

    key: dg.AssetKey
    lake: str
    table: str | None


def configured_bindings(config: Config) -> list[Binding]:
    """Return the bindings configured in lakes.yaml."""
    return [Binding(dg.AssetKey(item.key.split("/")), lake.name, item.table) for lake in config.lakes for item in lake.assets]


def find_bindings(config: Config, tables: Iterable[tuple[str, str]], written: Names) -> list[Binding]:
    """Return the configured bindings, and bindings of assets whose table name matches a table.

    If the table name of an asset matches tables of several lakes, the asset is not bound to any of
    them.

    Args:
        config: The configuration.
        tables: All `(lake, table)` pairs.
        written: The name of the table that each asset writes (`written_tables`).
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
    """Return the limit of the asset check for a binding, or None if there is no check."""
    own = (item.max_garbage_share for item in lake.assets if item.key == "/".join(binding.key.path) and item.table == binding.table)
    return next((share for share in own if share is not None), lake.max_garbage_share)


def written_tables(assets: Collection[dg.AssetsDefinition]) -> dict[dg.AssetKey, tuple[str, ...]]:
    """Determine the name of the table that each asset writes, split at the dots.

    Assets without a known table and the assets of gc-assets itself are omitted.
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
    """Derive the table name from an asset in the same way as dagster-iceberg's IO managers."""
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
