"""The job of a run date before the first partition: what would this policy have made garbage as of
that day? Its plans are shown and never applied.
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
DESCRIPTION: Final = "Works out a run date before the first partition. Its plans are shown and never applied."


class AnalysisDate(dg.Config):
    """Configuration of the job."""

    run_date: str = Field(description="YYYY-MM-DD, UTC, before the first partition.")


def analysis(first: date) -> dg.JobDefinition:
    """Returns the job. `first` is the run date with which the partitions begin."""

    @dg.op(description=DESCRIPTION, pool=SPARK_POOL)
    def work_out(context: dg.OpExecutionContext, config: AnalysisDate, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(), forward_logs(context):
            run_context = collector.run_context(_parse_run_date(config.run_date, first))
            for box, owner in _sort_steps(run_context.config):
                box.stage(collector.spark() if box.spark else None, run_context, owner.name)
                _require_checks(box, owner, run_context, context)

    @dg.job(name=ANALYSIS, description=DESCRIPTION)
    def job() -> None:
        work_out()

    return job


def _parse_run_date(run_date: str, first: date) -> str:
    """Returns the run date. Raises `UsageError` where it is none, or a partition of its own."""
    try:
        day = date.fromisoformat(run_date)
    except ValueError:
        raise UsageError(f"run_date {run_date!r}: expected a date, YYYY-MM-DD") from None
    if day >= first:
        raise UsageError(f"run_date {day}: the partitions begin {first}, so this date is one; materialize it by the job `night`")
    return run_date


def _sort_steps(config: Config) -> Iterator[tuple[AssetStep, Owner]]:
    """Yields the boxes of all lakes, and then of all storages, none before what it is made from."""
    yield from ((box, lake) for lake in config.lakes for box in sort_steps(lake))
    yield from ((box, storage) for box in STORAGE_STEPS for storage in config.storages)


def _require_checks(box: AssetStep, owner: Owner, run_context: RunContext, context: dg.OpExecutionContext) -> None:
    """Puts what a box reports of a plan into the step's metadata.

    Raises `GcError` for a blocking check that failed. The plan's gates are no such check: a plan
    that they refuse is shown.
    """
    for shown in box.outputs:
        if not has_table(owner, shown.table):
            continue
        told = build_result(run_context, owner.name, shown, box.checks)
        if shown.table.name == DELETION_PLAN.name:
            context.add_output_metadata({owner.name: (told.metadata or {})["report"]})
            continue
        for check in told.check_results or ():
            if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR:
                raise GcError(
                    f"{owner.name}/{shown.table.name} of {run_context.run_date}: check {check.check_name} failed: {check.description}"
                )
