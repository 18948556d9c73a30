"""Turn the stages of gc-assets (functions that publish tables) into Dagster assets.

An `AssetStep` describes a stage declaratively: what it reads, which tables it publishes, how they
are checked and what Dagster shows about them. `build_asset` builds the asset. `deletion_log` is the
only asset that does not use it.
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
from gc_assets.core.paths import scheme_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes import kinds
from gc_assets.resources.collector import Collector
from gc_assets.state.schemas import Table

SPARK_POOL: Final = "spark_driver"
PRIORITY_TAG: Final = "dagster/priority"
# The tag of all assets of gc-assets.
SCOPE_TAG: Final = "gc/scope"

Owner = LakeConfig | StorageConfig
RunDates = dg.DailyPartitionsDefinition
# Called with the Spark session (None for steps that do not need one), the run context, and the name
# of the lake or storage.
Stage = Callable[[Any, RunContext, str], object]
# Reports additional events. The last argument is the name of the lake or storage.
Reporter = Callable[[dg.AssetExecutionContext, RunContext, str], None]


@dataclass(frozen=True, slots=True)
class AssetStep:
    """A stage (a function that publishes tables), and everything Dagster needs to know about it.

    Attributes:
        outputs: The tables that the stage publishes.
        inputs: The tables that the stage reads. If the step of a storage lists a table of lakes
            here, it reads the table of every lake.
        stage: The function that publishes the outputs.
        checks: The asset checks that run on each output.
        spark: Whether the stage needs a Spark session.
        feeds: Tables whose steps read these outputs. It is set for steps that only some lakes have,
            so that the steps of all lakes do not need to list their outputs as inputs.
        link_inputs: Tables that the stage reads from other storages whose symbolic links may lead
            into this one.
        reads_lake: Whether the stage reads the lake itself and not only published tables.
        freshness: When Dagster should warn about an outdated table, or report a failure.
        priority: Among steps that are ready, Dagster starts those with a higher priority first.
        reporter: Called after the outputs are published, to report Dagster events about other
            assets.
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
    """Adapt a function without a Spark argument to `Stage`."""
    return lambda _, run_context, name: stage(run_context, name)


def build_asset(
    config: Config, asset_step: AssetStep, owner: Owner, deps: Sequence[dg.AssetKey], run_dates: RunDates
) -> dg.AssetsDefinition:
    """Build the asset that runs a step for one lake or storage.

    A stage always publishes all of its tables. If the user selects only some of these assets, only
    the selected ones are reported to Dagster.
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
    """Decorate a function as a Dagster step that materializes `specs`, each with all `checks`."""
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
    """Build the Dagster asset spec of a table."""
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
    """Return a function that adds the configured owners and tags to an asset spec.

    If a lake or storage has its own owners, they replace the global ones. Tags are merged instead.
    """
    groups = {group_name(config, owner.name): owner for owner in (*config.lakes, *config.storages)}

    def set_owners(spec: dg.AssetSpec) -> dg.AssetSpec:
        owner = groups[str(spec.group_name)]
        return spec.merge_attributes(owners=owner.owners or config.owners, tags={**config.tags, **owner.tags})

    return set_owners


def asset_keys(config: Config, owner: Owner, tables: Collection[Table]) -> list[dg.AssetKey]:
    """Look up the asset keys of `tables`, skipping those that the owner does not have.

    If the owner is a storage, the result contains the keys of lake tables for all lakes.
    """
    owners = {"lake": [owner] if not isinstance(owner, StorageConfig) else config.lakes, "storage": [owner]}
    return [asset_key(config, each.name, table) for table in tables for each in owners[table.scope] if has_table(each, table)]


def column_schema(table: Table) -> dg.TableSchema:
    """Describe the columns of a table to Dagster, including which of them form its key."""
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
        return scheme_of(owner.location)
    return owner.kind
