"""What all assets have in common: key, group, owners, kinds, description, columns, partitions, pool. Nothing here runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import dagster as dg

from gc_assets.assets.checks import Check
from gc_assets.config import AnyLake, StorageConfig
from gc_assets.schemas import Table

SPARK_POOL: Final = "spark_driver"
DELETE_POOL: Final = "gc_delete"
OWNERS: Final = ("team:data-platform",)

LakeConfig = AnyLake
RunDates = dg.DailyPartitionsDefinition


def lake_spec(lake: LakeConfig, table: Table, run_dates: RunDates, deps: Sequence[dg.AssetKey] = (), *, spark: bool = True) -> dg.AssetSpec:
    """The asset `[<lake>, <table>]`."""
    return _spec(lake.name, table, run_dates, deps, {lake.kind, "spark"} if spark else {lake.kind}, "lake")


def storage_spec(storage: StorageConfig, table: Table, run_dates: RunDates, deps: Sequence[dg.AssetKey] = ()) -> dg.AssetSpec:
    """The asset `[<storage>, <table>]`."""
    kind = "s3" if storage.location.startswith("s3") else "file"
    return _spec(storage.name, table, run_dates, deps, {kind, "spark"}, "storage")


def key_of(owner: LakeConfig | StorageConfig, table: Table) -> dg.AssetKey:
    return dg.AssetKey([owner.name, table.name])


def box(
    specs: Sequence[dg.AssetSpec], checks: Sequence[Check] = (), pool: str | None = SPARK_POOL
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """A box of the flow: one step for `specs`, every check of `checks` on each of them.

    Two assets of one step can be selected one by one; the stage then makes both tables and Dagster hears of one.
    """
    first = specs[0].key.path
    return dg.multi_asset(
        name="__".join(first),
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=spec.key, description=check.danger, blocking=check.blocking)
            for spec in specs
            for check in checks
        ],
        can_subset=len(specs) > 1,
        pool=pool,
    )


def column_schema(table: Table) -> dg.TableSchema:
    """Columns with their sentences; key columns say so."""
    columns = [
        dg.TableColumn(
            field.name,
            str(field.type),
            description=table.column_doc(field.name),
            constraints=dg.TableColumnConstraints(other=["key"]) if field.name in table.key else None,
        )
        for field in table.schema
    ]
    return dg.TableSchema(columns=columns)


def _spec(group: str, table: Table, run_dates: RunDates, deps: Sequence[dg.AssetKey], kinds: set[str], scope: str) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=[group, table.name],
        deps=deps,
        description=table.doc,
        group_name=group,
        owners=OWNERS,
        kinds=kinds,
        tags={"gc/scope": scope},
        metadata={"dagster/column_schema": column_schema(table)},
        partitions_def=run_dates,
    )
