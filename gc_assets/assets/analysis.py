"""A Dagster job that analyzes dates before the first partition.

The job shows which files would have been garbage on such a date under the current policy. Its plans
cannot be applied.
"""

from collections.abc import Iterator
from datetime import date
from typing import Final

import dagster as dg
from pydantic import Field

from gc_assets.assets.asset_step import SPARK_POOL, AssetStep, Owner, has_table
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.lake_assets import sort_steps
from gc_assets.assets.results import build_result
from gc_assets.assets.step_log import forward_logs
from gc_assets.assets.storage_assets import STORAGE_STEPS
from gc_assets.config.models import Config
from gc_assets.core.errors import GcError, UsageError
from gc_assets.engine.run_context import RunContext
from gc_assets.resources.collector import Collector
from gc_assets.state.schemas import DELETION_PLAN

ANALYSIS: Final = "analysis"
DESCRIPTION: Final = "Analyze a run date before the first partition. Its plans cannot be applied."


class AnalysisDate(dg.Config):
    run_date: str = Field(description="YYYY-MM-DD, UTC, before the first partition.")


def analysis(first: date) -> dg.JobDefinition:
    """Build the `analysis` job.

    Args:
        first: The run date of the first partition. The job accepts only earlier dates.
    """

    @dg.op(description=DESCRIPTION, pool=SPARK_POOL)
    def work_out(context: dg.OpExecutionContext, config: AnalysisDate, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(), forward_logs(context):
            run_context = collector.run_context(_parse_run_date(config.run_date, first))
            for step, owner in _sort_steps(run_context.config):
                step.stage(collector.spark() if step.spark else None, run_context, owner.name)
                _require_checks(step, owner, run_context, context)

    @dg.job(name=ANALYSIS, description=DESCRIPTION)
    def job() -> None:
        work_out()

    return job


def _parse_run_date(run_date: str, first: date) -> str:
    try:
        day = date.fromisoformat(run_date)
    except ValueError:
        raise UsageError(f"run_date {run_date!r}: expected a date, YYYY-MM-DD") from None
    if day >= first:
        raise UsageError(f"run_date {day}: the partitions begin on {first}, so this date has a partition. Launch the `run` job for it.")
    return run_date


def _sort_steps(config: Config) -> Iterator[tuple[AssetStep, Owner]]:
    """Yield all asset steps, lakes before storages, so that each step follows its inputs."""
    yield from ((step, lake) for lake in config.lakes for step in sort_steps(lake))
    yield from ((step, storage) for step in STORAGE_STEPS for storage in config.storages)


def _require_checks(step: AssetStep, owner: Owner, run_context: RunContext, context: dg.OpExecutionContext) -> None:
    """Evaluate the blocking checks of a step, as Dagster would do for an asset.

    Plans are not checked, because they cannot be applied anyway. The results of their checks are
    added to the metadata instead.

    Raises:
        GcError: If a blocking check fails.
    """
    for output in step.outputs:
        if not has_table(owner, output.table):
            continue
        result = build_result(run_context, owner.name, output, step.checks)
        if output.table.name == DELETION_PLAN.name:
            context.add_output_metadata({owner.name: (result.metadata or {})["report"]})
            continue
        blocking = {check.name for check in step.checks if check.blocking}
        for check in result.check_results or ():
            if not check.passed and check.check_name in blocking:
                raise GcError(
                    f"{owner.name}/{output.table.name} of {run_context.run_date}: check {check.check_name} failed: {check.description}"
                )
