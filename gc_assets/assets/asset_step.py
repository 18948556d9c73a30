"""A box of the flow: the tables that one stage makes, as assets of Dagster.

A box is data: what it is made from, the stage that makes it, its checks, and for each table the
figures and the report that Dagster's page shows. `asset_of` makes the asset. Its body is the body
of all boxes except `deletion_log`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from gc_assets.assets.checks import RECEIPT, Check
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.results import StepOutput, asset_key, build_result
from gc_assets.assets.step_log import forward_logs
from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import kind_of
from gc_assets.resources.collector import Collector
from gc_assets.state.schemas import Table
from gc_assets.stores.store import open_store

SPARK_POOL: Final = "spark_driver"

Owner = LakeConfig | StorageConfig
RunDates = dg.DailyPartitionsDefinition
# The arguments are Spark (None for a box without it), the night, and the name of the lake or
# storage.
Stage = Callable[[Any, RunContext, str], object]


@dataclass(frozen=True, slots=True)
class AssetStep:
    """One step of Dagster.

    `made_from` are tables of the same lake or storage. A storage's box that names a table of lakes
    is made from that table of every lake. `beside` are tables of the other storages where links
    may lead into this one. `feeds` are tables of the common flow that are made from
    this box too, for a box that only some lakes have. With `reads_lake` it is made from the lake
    itself. `freshness` says how old its tables may get before the page warns, and fails.
    """

    outputs: tuple[StepOutput, ...]
    inputs: tuple[Table, ...]
    stage: Stage
    checks: tuple[Check, ...] = (RECEIPT,)
    spark: bool = True
    feeds: tuple[Table, ...] = ()
    link_inputs: tuple[Table, ...] = ()
    reads_lake: bool = False
    freshness: dg.FreshnessPolicy | None = None


def without_spark(stage: Callable[[RunContext, str], object]) -> Stage:
    """Returns the stage of a box without Spark."""
    return lambda _, run_context, name: stage(run_context, name)


def build_asset(asset_step: AssetStep, owner: Owner, deps: Sequence[dg.AssetKey], run_dates: RunDates) -> dg.AssetsDefinition:
    """Returns the asset of one lake's or storage's box.

    Tables of one step can be selected one by one. The stage then makes them all, and Dagster hears
    of the selected ones.
    """
    outputs = [shown for shown in asset_step.outputs if has_table(owner, shown.table)]
    specs = [build_spec(owner, shown.table, deps, run_dates, spark=asset_step.spark, freshness=asset_step.freshness) for shown in outputs]

    @multi_asset(specs, asset_step.checks, SPARK_POOL if asset_step.spark else None)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> Iterator[dg.MaterializeResult]:
        with translate_errors(), forward_logs(context):
            run_context = collector.run_context(context.partition_key)
            asset_step.stage(collector.spark() if asset_step.spark else None, run_context, owner.name)
            results = [build_result(run_context, owner.name, shown, asset_step.checks) for shown in outputs]
        yield from (result for result in results if result.asset_key in context.selected_asset_keys)

    return run


def multi_asset(
    specs: Sequence[dg.AssetSpec], checks: Sequence[Check], pool: str | None
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Returns one step of Dagster for `specs`, with every check of `checks` on each of them."""
    return dg.multi_asset(
        name="__".join(specs[0].key.path),
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=spec.key, description=check.danger, blocking=check.blocking)
            for spec in specs
            for check in checks
        ],
        can_subset=len(specs) > 1,
        pool=pool,
    )


def build_spec(
    owner: Owner,
    table: Table,
    deps: Sequence[dg.AssetKey],
    run_dates: RunDates,
    *,
    spark: bool = True,
    freshness: dg.FreshnessPolicy | None = None,
) -> dg.AssetSpec:
    """Returns the spec of the asset `[<lake or storage>, <table>]`."""
    return dg.AssetSpec(
        key=asset_key(owner.name, table),
        deps=deps,
        description=table.doc,
        group_name=owner.name,
        kinds={_kind(owner), "spark"} if spark else {_kind(owner)},
        tags={"gc/scope": table.scope},
        metadata={"dagster/column_schema": column_schema(table)},
        partitions_def=run_dates,
        freshness_policy=freshness,
    )


def build_owner_mapper(config: Config) -> Callable[[dg.AssetSpec], dg.AssetSpec]:
    """Returns what gives an asset the owners and the tags of its lake or storage. These replace the
    owners of the whole platform, and are added to its tags.
    """
    groups = {owner.name: owner for owner in (*config.lakes, *config.storages)}

    def owned(spec: dg.AssetSpec) -> dg.AssetSpec:
        owner = groups[str(spec.group_name)]
        return spec.merge_attributes(owners=owner.owners or config.owners, tags={**config.tags, **owner.tags})

    return owned


def asset_keys(owner: Owner, tables: Collection[Table], lakes: Sequence[LakeConfig] = ()) -> list[dg.AssetKey]:
    """Returns the assets of `tables` that the owner has. For a storage, a lake's table stands for
    that table of each of `lakes` that has it.
    """
    owners = {"lake": [owner] if not isinstance(owner, StorageConfig) else lakes, "storage": [owner]}
    return [asset_key(each.name, table) for table in tables for each in owners[table.scope] if has_table(each, table)]


def column_schema(table: Table) -> dg.TableSchema:
    """Returns the columns with their sentences; key columns say so."""
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


def has_table(owner: Owner, table: Table) -> bool:
    return isinstance(owner, StorageConfig) or kind_of(owner).has(table)


def _kind(owner: Owner) -> str:
    if isinstance(owner, StorageConfig):
        return open_store(owner.location).scheme
    return owner.kind
