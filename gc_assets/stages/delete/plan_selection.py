"""Chooses the plan that a run of `deletion_log` executes, and its phases.

Only a plan id executes a plan. A run without one does a single thing: it puts back what tonight's
own plan needs again. Decides and changes nothing; `apply_plan` asks everything again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gc_assets.core.errors import UsageError
from gc_assets.core.phases import PHASES, RESTORE
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import StoredPlan, find_plan, load_plan
from gc_assets.state.schemas import DELETION_PLAN


@dataclass(frozen=True, slots=True)
class PlanSelection:
    """A plan with the phases to execute, or no plan and a sentence that says why nothing is done."""

    plan: StoredPlan | None
    phases: tuple[str, ...] = ()
    why_not: str = ""


def select_plan(context: RunContext, storage_name: str, plan_id: str = "") -> PlanSelection:
    """Returns the plan of that id with all its phases. Without an id it is tonight's plan with the
    phase that puts back.

    Putting back a file that is needed again waits for nobody, in a storage whose mode is `apply`.
    Raises `UsageError` where the plan is another storage's or another run date's.
    """
    if plan_id:
        plan = find_plan(context.config, plan_id)
        if (plan.header.storage, plan.header.run_date) != (storage_name, context.run_date):
            raise UsageError(
                f"plan {plan.header.plan_id} is storage {plan.header.storage}'s of {plan.header.run_date}, "
                f"this is {storage_name} of {context.run_date}; run deletion_log of that storage and partition"
            )
        return PlanSelection(plan, PHASES)
    if context.storage(storage_name).mode != "apply":
        return PlanSelection(None, why_not="no approved plan id was given and the storage is in mode plan: nothing was changed")
    if context.clock.is_rehearsal and context.storage(storage_name).rehearsals != "allowed":
        return PlanSelection(None, why_not="the clock is a rehearsal's, which may change nothing here: nothing was changed")
    if context.run_date != context.clock.today():
        return PlanSelection(None, why_not=f"no approved plan id was given and {context.run_date} is past: nothing was changed")
    plan = load_plan(context.config, context.table(DELETION_PLAN, storage_name))
    if RESTORE not in plan.header.totals:
        return PlanSelection(None, why_not="no approved plan id was given and no quarantined file is needed again: nothing was changed")
    return PlanSelection(plan, (RESTORE,))


def in_mode(context: RunContext, storage_name: str, mode: Literal["plan", "apply"]) -> RunContext:
    """Returns the night with one storage in that mode. The policy and its digest stay as they are."""
    storages = tuple(item.model_copy(update={"mode": mode}) if item.name == storage_name else item for item in context.config.storages)
    return replace(context, config=context.config.model_copy(update={"storages": storages}))
