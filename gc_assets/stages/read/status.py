"""Report a storage's last run, its pending plans and its unfinished applies.

Everything is read from the state. If a plan is unfinished, the storage's lease is read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError
from gc_assets.core.notifications import APPLIED_WITHIN, AppliedPlan, FailedApply, LastRun, StorageSummary
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.plan import PlanSummary
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.records.plans import ListedPlan, execution_directory, list_plans, load_plan, previous_plan, unfinished_plans
from gc_assets.state.journal import State
from gc_assets.stores.store import open_store
from gc_assets.stores.write_ahead import read_newest_token

# Outside of tests, no storage applies more plans than this within `APPLIED_WITHIN`.
MAX_APPLIED: Final = 20
_UNFINISHED: Final = "It began and did not end. While it is unfinished, no later plan of the storage can be applied."


def storage_status(config: Config, clock: Clock, storage: StorageConfig, failed: Sequence[FailedApply] = ()) -> StorageSummary:
    """Summarise the status of a storage.

    Args:
        failed: Failed apply runs, newest first, with the plan id or id prefix that the user gave. A
            failed run is included if its plan belongs to this storage and still has to be applied.

    Raises:
        StateError: If the state cannot be read.
    """
    state, now = State.of(config), clock.now()
    listed = list(list_plans(config, storage.name, empty=True))
    ours = {plan.header.plan_id: plan for plan in listed if plan.header.rehearsal == clock.is_rehearsal}
    begun = [plan_id for plan_id in unfinished_plans(state, storage.name) if plan_id in ours]
    approved = {plan_id: plan.header for plan_id, plan in ours.items() if plan.status_at(now) == "approved"}
    abandoned, reason = _abandoned_plans(config, storage, begun)
    found = {plan_id: FailedApply(plan_id, _attempt(state, ours[plan_id].header), reason) for plan_id in abandoned}
    for item in reversed(failed):
        meant = [plan_id for plan_id in {*approved, *begun} if item.plan_id and plan_id.startswith(item.plan_id)]
        found |= {plan_id: FailedApply(plan_id, item.attempt, item.reason) for plan_id in meant}
    return StorageSummary(
        storage.name,
        _last_run(config, clock, previous_plan(listed, clock)),
        tuple(plan for plan_id, plan in approved.items() if plan_id not in begun),
        tuple(failed_apply for _, failed_apply in sorted(found.items())),
        _applied_plans(config, ours.values(), now),
    )


def _applied_plans(config: Config, listed: Iterable[ListedPlan], now: datetime) -> tuple[AppliedPlan, ...]:
    ended = [(plan.record.finished_at, plan) for plan in listed if plan.record.finished_at is not None]
    newest = sorted((item for item in ended if now - item[0] < APPLIED_WITHIN), key=lambda item: item[0], reverse=True)[:MAX_APPLIED]
    return tuple(_applied_plan(config, plan, finished_at, now) for finished_at, plan in newest)


def _applied_plan(config: Config, listed: ListedPlan, finished_at: datetime, now: datetime) -> AppliedPlan:
    plan = load_plan(config, State.of(config).open(listed.run))
    done, status = plan.effective_header, plan.status_at(now)
    reversibility = describe_reversibility(done, config, restored=plan.restored_at is not None, applied_at=finished_at).lines
    status = status if plan.restored_at is None else "applied and restored"
    return AppliedPlan(done, status, finished_at, plan.verdict.approved_by, describe_not_done(plan.not_done), reversibility)


def _last_run(config: Config, clock: Clock, listed: ListedPlan | None) -> LastRun | None:
    if listed is None:
        return None
    plan = load_plan(config, State.of(config).open(listed.run))
    reversibility = describe_reversibility(plan.effective_header, config).lines
    return LastRun(plan.header, plan.status_at(clock.now()), plan.verdict.missing, reversibility)


def _abandoned_plans(config: Config, storage: StorageConfig, begun: Sequence[str]) -> tuple[list[str], str]:
    """Find the unfinished plans that no process is executing.

    If the lease cannot be read, all unfinished plans are assumed to be abandoned.

    Returns:
        The plan ids, and a message that contains the error if the lease could not be read.
    """
    try:
        holder = open_store(storage.location, config.connections()).holder() if begun else None
    except (GcError, OSError) as error:
        return list(begun), f"{_UNFINISHED} Whether it is in progress is unknown: {error}"
    at_work = holder.plan_id if holder is not None and holder.is_live(Clock().now()) else None
    return [plan_id for plan_id in begun if plan_id != at_work], f"{_UNFINISHED} No process is executing it."


def _attempt(state: State, header: PlanSummary) -> str:
    """Return a name for the latest attempt to apply a plan.

    Each attempt takes a new lease, so the lease's fencing token makes the name unique.
    """
    return f"lease {read_newest_token(state.files, execution_directory(header))}"
