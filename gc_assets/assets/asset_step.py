"""An asset step: the tables of one stage as Dagster assets.

A step defines its inputs, stage and checks, and the figures and report of each table. `build_asset`
turns a step into an asset. Only `deletion_log` has its own implementation.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from gc_assets.assets.checks import RECEIPT, Check
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.names import asset_key, group_name, step_name
from gc_assets.assets.results import StepOutput, build_result
from gc_assets.assets.step_log import forward_logs
from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes import kinds
from gc_assets.resources.collector import Collector
from gc_assets.state.schemas import Table
from gc_assets.stores.store import open_store

SPARK_POOL: Final = "spark_driver"
PRIORITY_TAG: Final = "dagster/priority"
# The tag of all assets of gc-assets.
SCOPE_TAG: Final = "gc/scope"

Owner = LakeConfig | StorageConfig
RunDates = dg.DailyPartitionsDefinition
# Arguments: Spark (None for a step without Spark), the run context, the name of the lake or
# storage.
Stage = Callable[[Any, RunContext, str], object]
# Reports further events of a step. The last argument is the name of the lake or storage.
Reporter = Callable[[dg.AssetExecutionContext, RunContext, str], None]


@dataclass(frozen=True, slots=True)
class AssetStep:
    """One step of a Dagster run.

    Attributes:
        outputs: The tables that the stage publishes.
        inputs: Tables of the same lake or storage. For a storage, a lake table means the
            table of every lake.
        stage: The function that publishes the outputs.
        checks: Checks of each output.
        spark: True if the stage needs Spark.
        feeds: Tables of other steps that read these outputs, for a step that only some lakes have.
        link_inputs: Tables of other storages that may have links into this storage.
        reads_lake: True if the stage reads the lake itself.
        freshness: When Dagster warns about old outputs, and when it reports a failure.
        priority: The step with the highest priority starts first if several are ready.
        reporter: Reports events about other assets after the outputs are published.
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
    priority: int = 0
    reporter: Reporter | None = None


def without_spark(stage: Callable[[RunContext, str], object]) -> Stage:
    """Adapt a stage that does not use Spark to the signature of `Stage`."""
    return lambda _, run_context, name: stage(run_context, name)


def build_asset(
    config: Config, asset_step: AssetStep, owner: Owner, deps: Sequence[dg.AssetKey], run_dates: RunDates
) -> dg.AssetsDefinition:
    """Build the asset of a step of one lake or storage.

    If only some outputs are selected, the stage still publishes all of them, but the asset reports
    only the selected ones.
    """
    outputs = [output for output in asset_step.outputs if has_table(owner, output.table)]
    specs = [
        build_spec(config, owner, output.table, deps, run_dates, spark=asset_step.spark, freshness=asset_step.freshness)
        for output in outputs
    ]

    @multi_asset(specs, asset_step.checks, SPARK_POOL if asset_step.spark else None, asset_step.priority)
    def run(context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector]) -> Iterator[dg.MaterializeResult]:
        with translate_errors(), forward_logs(context):
            run_context = collector.run_context(context.partition_key)
            asset_step.stage(collector.spark() if asset_step.spark else None, run_context, owner.name)
            results = [build_result(run_context, owner.name, output, asset_step.checks) for output in outputs]
            if asset_step.reporter is not None:
                asset_step.reporter(context, run_context, owner.name)
        yield from (result for result in results if result.asset_key in context.selected_asset_keys)

    return run


def multi_asset(
    specs: Sequence[dg.AssetSpec], checks: Sequence[Check], pool: str | None, priority: int = 0
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator that turns a function into a step with all `checks` on each of `specs`."""
    return dg.multi_asset(
        name=step_name(specs[0].key),
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=spec.key, description=check.danger, blocking=check.blocking)
            for spec in specs
            for check in checks
        ],
        can_subset=len(specs) > 1,
        pool=pool,
        op_tags={PRIORITY_TAG: str(priority)} if priority else None,
    )


def build_spec(
    config: Config,
    owner: Owner,
    table: Table,
    deps: Sequence[dg.AssetKey],
    run_dates: RunDates,
    *,
    spark: bool = True,
    freshness: dg.FreshnessPolicy | None = None,
) -> dg.AssetSpec:
    """Build the asset spec of a table."""
    return dg.AssetSpec(
        key=asset_key(config, owner.name, table),
        deps=deps,
        description=table.doc,
        group_name=group_name(config, owner.name),
        kinds={_kind(owner), "spark"} if spark else {_kind(owner)},
        tags={SCOPE_TAG: table.scope},
        metadata={"dagster/column_schema": column_schema(table)},
        partitions_def=run_dates,
        freshness_policy=freshness,
    )


def build_owner_mapper(config: Config) -> Callable[[dg.AssetSpec], dg.AssetSpec]:
    """Return a function that sets the owners and tags of an asset.

    Owners of a lake or storage replace the configuration's owners. Its tags are added to the
    configuration's tags.
    """
    groups = {group_name(config, owner.name): owner for owner in (*config.lakes, *config.storages)}

    def set_owners(spec: dg.AssetSpec) -> dg.AssetSpec:
        owner = groups[str(spec.group_name)]
        return spec.merge_attributes(owners=owner.owners or config.owners, tags={**config.tags, **owner.tags})

    return set_owners


def asset_keys(config: Config, owner: Owner, tables: Collection[Table]) -> list[dg.AssetKey]:
    """Return the asset keys of the `tables` that the owner has.

    For a storage, a lake table results in one key for each lake that has the table.
    """
    owners = {"lake": [owner] if not isinstance(owner, StorageConfig) else config.lakes, "storage": [owner]}
    return [asset_key(config, each.name, table) for table in tables for each in owners[table.scope] if has_table(each, table)]


def column_schema(table: Table) -> dg.TableSchema:
    """Return the columns with their descriptions, with key columns marked."""
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
    return isinstance(owner, StorageConfig) or kinds.has_table(owner, table)


def _kind(owner: Owner) -> str:
    if isinstance(owner, StorageConfig):
        return open_store(owner.location).scheme
    return owner.kind
