"""Select the plan and the phases that a run of `deletion_log` executes.

To execute a whole plan, its id must be given. Without an id, the run only restores files that its
own plan found to be needed again. In both cases, `apply_plan` repeats all checks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gc_assets.core.errors import UsageError
from gc_assets.core.phases import PHASES, RESTORE
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import StoredPlan, find_plan, list_plans, load_plan
from gc_assets.state.schemas import DELETION_PLAN


@dataclass(frozen=True, slots=True)
class PlanSelection:
    """A plan and the phases to execute. Without a plan, `reason` explains why."""

    plan: StoredPlan | None
    phases: tuple[str, ...] = ()
    reason: str = ""


def select_plan(context: RunContext, storage_name: str, plan_id: str = "") -> PlanSelection:
    """Select the plan and the phases that a run of `deletion_log` executes.

    With an id, this is the whole plan. Without one, it is only the restore of files that the run's
    own plan needs again, which requires `apply` mode but no approval.

    Raises:
        UsageError: If the plan belongs to another storage or run date.
    """
    if plan_id:
        plan = find_plan(context.config, plan_id)
        if (plan.header.storage, plan.header.run_date) != (storage_name, context.run_date):
            raise UsageError(
                f"plan {plan.header.plan_id[:12]} belongs to storage {plan.header.storage} and run date {plan.header.run_date}, "
                f"not to {storage_name} and {context.run_date}. Run deletion_log of its own storage and partition."
            )
        return PlanSelection(plan, PHASES)
    if context.storage(storage_name).mode != "apply":
        return PlanSelection(None, reason="no approved plan id was given and the storage is in plan mode: nothing was changed")
    if context.clock.is_rehearsal and context.storage(storage_name).rehearsals != "allowed":
        return PlanSelection(None, reason="this is a rehearsal, and the storage does not allow rehearsals: nothing was changed")
    if context.run_date != context.clock.today():
        reason = f"no approved plan id was given and {context.run_date} is in the past: nothing was changed"
        return PlanSelection(None, reason=f"{reason}. {_describe_waiting(context, storage_name)}")
    plan = load_plan(context.config, context.table(DELETION_PLAN, storage_name))
    if RESTORE not in plan.header.totals:
        reason = "no approved plan id was given and no quarantined file is needed again: nothing was changed"
        return PlanSelection(None, reason=f"{reason}. {_describe_waiting(context, storage_name)}")
    return PlanSelection(plan, (RESTORE,))


def _describe_waiting(context: RunContext, storage_name: str) -> str:
    """Describe which plans of the run date could be applied if their id were given."""
    now = context.clock.now()
    plans = [plan for plan in list_plans(context.config, storage_name) if plan.header.run_date == context.run_date]
    approved = [plan.header.plan_id[:12] for plan in plans if plan.awaits_apply(now)]
    if approved:
        return f"Approved plans of {context.run_date}: {', '.join(approved)}. Enter one in `plan_id` to apply it."
    return f"No plan of {context.run_date} is approved and waiting to be applied."


def in_mode(context: RunContext, storage_name: str, mode: Literal["plan", "apply"]) -> RunContext:
    """Copy the run context and set the mode of one storage.

    The mode is not part of the policy, so the policy digest stays the same.
    """
    storages = tuple(item.model_copy(update={"mode": mode}) if item.name == storage_name else item for item in context.config.storages)
    return replace(context, config=context.config.model_copy(update={"storages": storages}))
