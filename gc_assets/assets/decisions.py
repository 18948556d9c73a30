"""The Dagster jobs `approve`, `reject` and `restore`.

Each does the same as the command of its name. A job exists only if `page_may` of lakes.yaml names
it. Dagster does not authenticate users, so any user who can launch a run can enter any name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field

from gc_assets.assets.command_events import Event, decision_event, history_undo_events, restore_events
from gc_assets.assets.deletion_log import DELETE_POOL
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.step_log import forward_logs
from gc_assets.config.models import Config, PageJob
from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.errors import GcError, UsageError
from gc_assets.resources.collector import Collector
from gc_assets.stages.delete.restore_request import RestoreResult, resolve_request, restore_files, undo_history
from gc_assets.stages.read.reversibility import reversibility_json
from gc_assets.stages.records.plans import StoredPlan, approve, find_plan, reject

APPROVE: Final = "Approve one plan, like `gc-assets approve`. Changes no lake."
REJECT: Final = "Reject a plan, like `gc-assets reject`. Changes no lake."
RESTORE: Final = "Restore quarantined files, like `gc-assets restore`. Needs no approval."

# Dagster's daemon must not retry these jobs: a repeated decision could replace a later one.
NO_RETRIES: Final = {"dagster/max_retries": "0"}
_PLAN: Final = "The plan id, or at least its first 8 characters."
_BY: Final = "Your name, which is recorded. It is not authenticated."
_COMMENT: Final = "The reason, which is recorded."


class ApproveConfig(dg.Config):
    """Configuration of the job `approve`."""

    plan_id: str = Field(description=_PLAN)
    by: str = Field(description=_BY)
    comment: str = Field(default="", description=_COMMENT)
    override: list[str] = Field(default=[], description="Names of the failed gates to override. They are recorded.")


class RejectConfig(dg.Config):
    """Configuration of the job `reject`."""

    plan_id: str = Field(description=_PLAN)
    by: str = Field(description=_BY)
    comment: str = Field(default="", description=_COMMENT)


class RestoreConfig(dg.Config):
    """Configuration of the job `restore`. Set exactly one of a plan, a prefix and a key."""

    plan_id: str | None = Field(default=None, description="Restore all files that this plan quarantined.")
    prefix: str | None = Field(default=None, description="Restore all files under this canonical prefix.")
    key: str | None = Field(default=None, description="Restore this file: a canonical key or an address.")
    storage: str | None = Field(
        default=None, description="The storage. Required if there are several and no plan or address determines it."
    )
    history: bool = Field(default=False, description="Also undo the history edits of the plan. Requires plan_id.")


def decisions(config: Config) -> list[dg.JobDefinition]:
    """Build the jobs that `page_may` names."""
    return [build() for name, build in _JOBS.items() if name in config.page_may]


def _approve() -> dg.JobDefinition:
    @dg.op(description=APPROVE)
    def approve_plan(context: dg.OpExecutionContext, config: ApproveConfig, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(retry_io=False):
            refuse_reexecution(context.run)
            platform = collector.platform
            event = approve(platform.config, platform.clock, config.plan_id, config.by, tuple(config.override), config.comment)
            plan = find_plan(platform.config, event.plan_id)
            context.log_event(decision_event(plan, event.at))
            context.add_output_metadata({**_decision_metadata(plan, event), **reversibility_json(plan.header, platform.config)})

    @dg.job(name="approve", description=APPROVE, tags=NO_RETRIES)
    def job() -> None:
        approve_plan()

    return job


def _reject() -> dg.JobDefinition:
    @dg.op(description=REJECT)
    def reject_plan(context: dg.OpExecutionContext, config: RejectConfig, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(retry_io=False):
            refuse_reexecution(context.run)
            platform = collector.platform
            event = reject(platform.config, platform.clock, config.plan_id, config.by, config.comment)
            plan = find_plan(platform.config, event.plan_id)
            context.log_event(decision_event(plan, event.at))
            context.add_output_metadata(_decision_metadata(plan, event))

    @dg.job(name="reject", description=REJECT, tags=NO_RETRIES)
    def job() -> None:
        reject_plan()

    return job


def _restore() -> dg.JobDefinition:
    @dg.op(description=RESTORE, pool=DELETE_POOL)
    def put_files_back(
        context: dg.OpExecutionContext, config: RestoreConfig, collector: dg.ResourceParam[Collector]
    ) -> Iterator[Event | dg.Output[None]]:
        with translate_errors(retry_io=False), forward_logs(context):
            platform = collector.platform
            run_context = platform.run_context(platform.clock.today())
            request = resolve_request(run_context, **config.model_dump())
            result = restore_files(collector.spark, run_context, request)
            with_undo = undo_history(run_context, result)
            yield from restore_events(run_context, request.storage, result.log)
            if request.plan is not None and with_undo is not None:
                result = with_undo
                yield from history_undo_events(run_context, request.plan.header)
            if result.missing is not None:
                raise GcError(f"{result.missing} Outcomes: {_restore_metadata(result)}")
            yield dg.Output(None, metadata=_restore_metadata(result))

    @dg.job(name="restore", description=RESTORE)
    def job() -> None:
        put_files_back()

    return job


def refuse_reexecution(run: dg.DagsterRun) -> None:
    """Raise an error if the run re-executes another run, because a repeated decision could replace
    a later one.

    Raises:
        UsageError: If `run` has a parent run.
    """
    if run.parent_run_id is not None:
        raise UsageError(f"this run re-executes run {run.parent_run_id}, and a decision must not be repeated. Launch the job again.")


def _decision_metadata(plan: StoredPlan, event: ApprovalEvent) -> dict[str, Any]:
    metadata = {"storage": plan.header.storage, "plan_id": event.plan_id, "decision": str(event), "status": plan.status_at(event.at)}
    if plan.verdict.missing is not None:
        metadata["missing"] = plan.verdict.missing
    return {**metadata, "apply_before": dg.MetadataValue.timestamp(plan.header.apply_before)}


def _restore_metadata(result: RestoreResult) -> Mapping[str, Any]:
    if not result.by_outcome:
        return {"nothing_changed": f"no such file is in quarantine in storage {result.request.storage}"}
    counts = {name.replace("/", "_"): total for name, total in result.by_outcome.items()}
    return {
        f"{name}_{unit}": value for name, total in counts.items() for unit, value in (("rows", total.rows), ("bytes", total.size_bytes))
    }


_JOBS: Final[Mapping[PageJob, Callable[[], dg.JobDefinition]]] = {"approve": _approve, "reject": _reject, "restore": _restore}
