"""The Dagster jobs `approve`, `reject` and `restore`, for users who prefer Dagster's page.

Each job does the same as the `gc-assets` command with its name, and exists only if `page_may` in
lakes.yaml lists it. Dagster does not authenticate users, so anyone who can launch a run can enter
any name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field

from gc_assets.assets.command_events import Event, history_undo_events, restore_events
from gc_assets.assets.deletion_log import DELETE_POOL
from gc_assets.assets.failures import translate_errors
from gc_assets.assets.plan_events import plan_event
from gc_assets.assets.plan_metadata import apply_deadline, reversibility_metadata
from gc_assets.assets.step_log import forward_logs
from gc_assets.assets.waiting_plans import choices, describe_waiting, require_same_plan
from gc_assets.config.models import PageJob
from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.errors import GateRefused, GcError, UsageError
from gc_assets.core.rehearsals import mark_rehearsal
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.restore_request import RestoreResult, resolve_request, restore_files, undo_history
from gc_assets.stages.records.plans import StoredPlan, approve, describe_other_plans, describe_other_policy, find_plan, reject

APPROVE: Final = "Approve one plan, like `gc-assets approve`. Changes no lake."
REJECT: Final = "Reject a plan, like `gc-assets reject`. Changes no lake."
RESTORE: Final = "Restore quarantined files, like `gc-assets restore`. Needs no approval."

# The daemon must not retry these jobs. Repeating a decision could overwrite a later one.
NO_RETRIES: Final = {"dagster/max_retries": "0"}
# The fields that are filled in, in addition to the plan id, when the user chooses a plan.
_EMPTY: Final[Mapping[str, Mapping[str, Any]]] = {
    "approve": {"by": "", "comment": "", "override": []},
    "reject": {"by": "", "comment": ""},
    "restore": {"history": False},
}


class RejectConfig(dg.Config):
    """Configuration of the `reject` job."""

    plan_id: str = Field(default="", description="The plan id, or at least its first 8 characters.")
    by: str = Field(default="", description="Your name, which is recorded. It is not authenticated.")
    comment: str = Field(default="", description="The reason, which is recorded.")


class ApproveConfig(RejectConfig):
    """Configuration of the `approve` job."""

    override: list[str] = Field(default=[], description="Names of the failed gates to override. They are recorded.")


class RestoreConfig(dg.Config):
    """Configuration of the `restore` job. Exactly one of `plan_id`, `prefix` and `key` is needed."""

    plan_id: str | None = Field(default=None, description="Restore all files that this plan quarantined.")
    prefix: str | None = Field(default=None, description="Restore all files under this canonical prefix.")
    key: str | None = Field(default=None, description="Restore this file: a canonical key or an address.")
    storage: str | None = Field(
        default=None, description="The storage. Required if there are several and no plan or address determines it."
    )
    history: bool = Field(default=False, description="Also undo the history edits of the plan. Requires plan_id.")


def decisions(platform: Platform) -> list[dg.JobDefinition]:
    """Build the jobs that `page_may` allows.

    The launchpad offers the plans on which a job can currently act as partitions. No plan is
    selected when a user opens the launchpad.
    """
    return [build(platform) for name, build in _JOBS.items() if name in platform.config.page_may]


def _approve(platform: Platform) -> dg.JobDefinition:
    @dg.op(description=APPROVE, config_schema=ApproveConfig.to_fields_dict())
    def approve_plan(context: dg.OpExecutionContext, collector: dg.ResourceParam[Collector]) -> None:
        platform = collector.platform
        with translate_errors(retry_io=False, page=platform.config):
            refuse_reexecution(context.run)
            config = ApproveConfig(**context.op_config)
            require_same_plan(context, config.plan_id)
            _require_plan_and_name(platform, "approve", config.plan_id, config.by)
            # The sensor and the `apply` job use the configuration of this code location, so they
            # could not apply a plan that was created under another policy.
            if (policy := describe_other_policy(platform.config, find_plan(platform.config, config.plan_id).header)) is not None:
                raise GateRefused(policy)
            event = approve(platform.config, platform.clock, config.plan_id, config.by, tuple(config.override), config.comment)
            plan = find_plan(platform.config, event.plan_id)
            notes = list(describe_other_plans(platform.config, plan.header, platform.clock.now()))
            for note in notes:
                context.log.warning(note)
            context.log_event(plan_event(platform.run_context(platform.clock.today()), plan))
            metadata = {**_decision_metadata(plan, event), **reversibility_metadata(plan.header, platform.config)}
            context.add_output_metadata({**metadata, **({"other_plans": "\n".join(notes)} if notes else {})})

    @dg.job(name="approve", description=APPROVE, tags=NO_RETRIES, config=_choices(platform, "approve", "approve_plan"))
    def job() -> None:
        approve_plan()

    return job


def _reject(platform: Platform) -> dg.JobDefinition:
    @dg.op(description=REJECT, config_schema=RejectConfig.to_fields_dict())
    def reject_plan(context: dg.OpExecutionContext, collector: dg.ResourceParam[Collector]) -> None:
        platform = collector.platform
        with translate_errors(retry_io=False, page=platform.config):
            refuse_reexecution(context.run)
            config = RejectConfig(**context.op_config)
            require_same_plan(context, config.plan_id)
            _require_plan_and_name(platform, "reject", config.plan_id, config.by)
            event = reject(platform.config, platform.clock, config.plan_id, config.by, config.comment)
            plan = find_plan(platform.config, event.plan_id)
            context.log_event(plan_event(platform.run_context(platform.clock.today()), plan))
            context.add_output_metadata(_decision_metadata(plan, event))

    @dg.job(name="reject", description=REJECT, tags=NO_RETRIES, config=_choices(platform, "reject", "reject_plan"))
    def job() -> None:
        reject_plan()

    return job


def _restore(platform: Platform) -> dg.JobDefinition:
    @dg.op(description=RESTORE, pool=DELETE_POOL, config_schema=RestoreConfig.to_fields_dict())
    def put_files_back(context: dg.OpExecutionContext, collector: dg.ResourceParam[Collector]) -> Iterator[Event | dg.Output[None]]:
        platform = collector.platform
        with translate_errors(retry_io=False, page=platform.config), forward_logs(context):
            launched: dict[str, Any] = {name: value if value != "" else None for name, value in context.op_config.items()}
            config = RestoreConfig(**launched)
            require_same_plan(context, config.plan_id or "")
            if config.plan_id is None and config.prefix is None and config.key is None:
                raise UsageError(
                    f"Choose a plan in the field Partition, or enter `plan_id`, `prefix` or `key`. {describe_waiting(platform, 'restore')}"
                )
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

    @dg.job(name="restore", description=RESTORE, config=_choices(platform, "restore", "put_files_back"))
    def job() -> None:
        put_files_back()

    return job


def _choices(platform: Platform, job: str, op: str) -> dg.PartitionedConfig:
    return choices(platform, job, lambda plan_id: {"ops": {op: {"config": {**_EMPTY[job], "plan_id": plan_id}}}})


def _require_plan_and_name(platform: Platform, job: str, plan_id: str, by: str) -> None:
    if not plan_id.strip():
        raise UsageError(f"Choose a plan in the field Partition, or enter its id in `plan_id`. {describe_waiting(platform, job)}")
    if not by.strip():
        raise UsageError("Enter your name in `by`. It is recorded with the decision.")


def refuse_reexecution(run: dg.DagsterRun) -> None:
    """Refuse to repeat a decision by re-executing its run, which could overwrite a later decision.

    Raises:
        UsageError: If the run re-executes another run.
    """
    if run.parent_run_id is not None:
        raise UsageError(f"this run re-executes run {run.parent_run_id}, and a decision must not be repeated. Launch the job again.")


def _decision_metadata(plan: StoredPlan, event: ApprovalEvent) -> dict[str, Any]:
    decision = mark_rehearsal(str(event), plan.header.rehearsal)
    metadata = {"storage": plan.header.storage, "plan_id": event.plan_id, "decision": decision, "status": plan.status_at(event.at)}
    if plan.verdict.missing is not None:
        metadata["missing"] = plan.verdict.missing
    return {**metadata, **apply_deadline(plan.header)}


def _restore_metadata(result: RestoreResult) -> Mapping[str, Any]:
    if not result.by_outcome:
        return {"nothing_changed": f"no such file is in quarantine in storage {result.request.storage}"}
    counts = {name.replace("/", "_"): total for name, total in result.by_outcome.items()}
    return {
        f"{name}_{unit}": value for name, total in counts.items() for unit, value in (("rows", total.rows), ("bytes", total.size_bytes))
    }


_JOBS: Final[Mapping[PageJob, Callable[[Platform], dg.JobDefinition]]] = {"approve": _approve, "reject": _reject, "restore": _restore}
