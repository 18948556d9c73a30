"""The jobs by which a person decides on the page: `approve`, `reject` and `restore`.

Each does what the command of its name does. A job is there only where `page_may` of lakes.yaml
names it: the page asks nobody who they are, so whoever may launch a run there may give any name.
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

APPROVE: Final = "Records your yes to exactly one plan, as `gc-assets approve` does. Changes no lake."
REJECT: Final = "Records your no to a plan, as `gc-assets reject` does. Changes no lake."
RESTORE: Final = "Puts quarantined files back, as `gc-assets restore` does. Needs no approval."

# Dagster's daemon runs no such job again by itself.
NO_RETRIES: Final = {"dagster/max_retries": "0"}
_PLAN: Final = "The plan's id, or its first characters (8 at least)."
_BY: Final = "Your name; it goes on record. It is a name and no login."
_COMMENT: Final = "Why; it goes on record."


class ApproveConfig(dg.Config):
    """What `gc-assets approve` asks for."""

    plan_id: str = Field(description=_PLAN)
    by: str = Field(description=_BY)
    comment: str = Field(default="", description=_COMMENT)
    override: list[str] = Field(default=[], description="Failed gates to pass over, by their names; recorded.")


class RejectConfig(dg.Config):
    """What `gc-assets reject` asks for."""

    plan_id: str = Field(description=_PLAN)
    by: str = Field(description=_BY)
    comment: str = Field(default="", description=_COMMENT)


class RestoreConfig(dg.Config):
    """What `gc-assets restore` asks for: a plan, a prefix or a key."""

    plan_id: str | None = Field(default=None, description="Everything that this plan quarantined.")
    prefix: str | None = Field(default=None, description="Everything below this canonical prefix.")
    key: str | None = Field(default=None, description="This file, by canonical key or address.")
    storage: str | None = Field(default=None, description="The storage; needed where there are several and no plan or address says it.")
    history: bool = Field(default=False, description="Then undo the plan's edits of history too; needs plan_id.")


def decisions(config: Config) -> list[dg.JobDefinition]:
    """Returns the jobs that `page_may` names."""
    return [make() for name, make in _JOBS.items() if name in config.page_may]


def _approve() -> dg.JobDefinition:
    @dg.op(description=APPROVE)
    def approve_plan(context: dg.OpExecutionContext, config: ApproveConfig, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(retry_io=False):
            refuse_reexecution(context.run)
            at = collector.platform
            word = approve(at.config, at.clock, config.plan_id, config.by, tuple(config.override), config.comment)
            plan = find_plan(at.config, word.plan_id)
            context.log_event(decision_event(plan, word.at))
            context.add_output_metadata({**_decision_metadata(plan, word), **reversibility_json(plan.header, at.config)})

    @dg.job(name="approve", description=APPROVE, tags=NO_RETRIES)
    def job() -> None:
        approve_plan()

    return job


def _reject() -> dg.JobDefinition:
    @dg.op(description=REJECT)
    def reject_plan(context: dg.OpExecutionContext, config: RejectConfig, collector: dg.ResourceParam[Collector]) -> None:
        with translate_errors(retry_io=False):
            refuse_reexecution(context.run)
            at = collector.platform
            word = reject(at.config, at.clock, config.plan_id, config.by, config.comment)
            plan = find_plan(at.config, word.plan_id)
            context.log_event(decision_event(plan, word.at))
            context.add_output_metadata(_decision_metadata(plan, word))

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
            at = collector.platform
            run_context = at.run_context(at.clock.today())
            asked = resolve_request(run_context, **config.model_dump())
            back = restore_files(collector.spark, run_context, asked)
            undone = undo_history(run_context, back)
            yield from restore_events(run_context, asked.storage, back.log)
            if asked.plan is not None and undone is not None:
                back = undone
                yield from history_undo_events(run_context, asked.plan.header)
            if back.missing is not None:
                raise GcError(f"{back.missing} Books: {_restore_metadata(back)}")
            yield dg.Output(None, metadata=_restore_metadata(back))

    @dg.job(name="restore", description=RESTORE)
    def job() -> None:
        put_files_back()

    return job


def refuse_reexecution(run: dg.DagsterRun) -> None:
    """Raises `UsageError` for a run that repeats another one: the same name may have said something
    else since, and its last word counts.
    """
    if run.parent_run_id is not None:
        raise UsageError(f"this run repeats run {run.parent_run_id}, and nobody's word is said again by itself: launch the job anew")


def _decision_metadata(plan: StoredPlan, word: ApprovalEvent) -> dict[str, Any]:
    """Returns what a person said of a plan, and what is to be seen of the plan now."""
    told = {"storage": plan.header.storage, "plan_id": word.plan_id, "said": str(word), "status": plan.status_at(word.at)}
    if plan.verdict.missing is not None:
        told["missing"] = plan.verdict.missing
    return {**told, "apply_before": dg.MetadataValue.timestamp(plan.header.apply_before)}


def _restore_metadata(back: RestoreResult) -> Mapping[str, Any]:
    if not back.by_outcome:
        return {"nothing_changed": f"storage {back.request.storage} has nothing of that in quarantine"}
    counts = {name.replace("/", "_"): total for name, total in back.by_outcome.items()}
    return {
        f"{name}_{unit}": value for name, total in counts.items() for unit, value in (("rows", total.rows), ("bytes", total.size_bytes))
    }


_JOBS: Final[Mapping[PageJob, Callable[[], dg.JobDefinition]]] = {"approve": _approve, "reject": _reject, "restore": _restore}
