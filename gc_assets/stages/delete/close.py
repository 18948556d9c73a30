"""Close unfinished plans, which would otherwise block later plans.

Closing a plan does not move more files or edit histories. Moves that already have an outcome are
recorded in `deletion_log`, so that the ledger contains them. Files in an interrupted batch may have
been moved, so they are moved back. Each run closes the plans that have expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from pyspark.sql import SparkSession

from gc_assets.core.commands import command
from gc_assets.core.errors import GateRefused, GcError, UsageError
from gc_assets.core.phases import FAILED, PHASES
from gc_assets.core.plan import PlanSummary
from gc_assets.engine.progress import log_activity, log_progress
from gc_assets.engine.recorded_names import is_recorded_storage
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.stages.delete.execution import ApplyResult, PlanExecution, phases_of
from gc_assets.stages.delete.verification import PlanRows
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.plans import (
    StoredPlan,
    execution_directory,
    list_plans,
    load_plan,
    refuse_other_clock,
    unfinished_plans,
)
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.execution import current_user
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.write_ahead import open_log


@log_progress(DELETION_LOG, attrgetter("header.storage"))
def close_plan(spark: SparkSession, context: RunContext, plan: StoredPlan) -> ApplyResult:
    """Close an unfinished plan and publish its outcomes.

    If files of an interrupted batch cannot be looked up or moved back, the plan stays open.

    Raises:
        GateRefused: If the storage is in `plan` mode, is leased to another process, does not allow
            rehearsals, or is not the plan's storage. A moved storage is recognized by its id.
        UsageError: If the plan has not begun or has already ended.
    """
    header, state = plan.header, context.state
    if header.plan_id not in unfinished_plans(state, header.storage):
        raise UsageError(
            f"Cannot end plan {header.plan_id[:12]}: no apply has begun it, or it has already ended. `gc-assets plans` shows its status."
        )
    storage = context.storage(header.storage)
    if storage.mode != "apply":
        raise GateRefused(
            f"Cannot end plan {header.plan_id[:12]}: storage {storage.name} is in plan mode. Run "
            f"`{command('apply', header.plan_id[:12], end=True, mode='apply')}`."
        )
    if storage.location != header.location and not is_recorded_storage(context.config, state, header.storage):
        raise GateRefused(
            f"Cannot end plan {header.plan_id[:12]}: it was made for {header.location}, but storage {storage.name} is now at "
            f"{storage.location}, without the id on record. Set the earlier location in lakes.yaml, then repeat the command."
        )
    refuse_other_clock(header, context.clock)
    refuse_rehearsal(context, header.storage)
    lease = take_lease(context, header.storage, context.store(header.storage), header.plan_id, current_user())
    with hold_lease(lease):
        log_activity(f"closing plan {header.plan_id[:12]}")
        log = open_log(state.files, execution_directory(header), header.plan_id, header.rows + header.uploads.count, header.quarantine)
        session = choose_session(spark, plan.published.receipt.rows, len(plan.published.paths()))
        execution = PlanExecution(session, context, plan, log, lease, only_interrupted=True)
        execution.end(PlanRows.verify(session, state, plan))
        return execution.publish(phases_of(header, PHASES))


def close_outdated_plans(spark: SparkSession, context: RunContext, storage_name: str) -> list[str]:
    """Close unfinished plans of a storage that have expired.

    Returns:
        For each plan that remains open, its id and the reason.
    """
    unfinished = unfinished_plans(context.state, storage_name)
    if not unfinished:
        return []
    plans = {plan.header.plan_id: plan for plan in list_plans(context.config, storage_name, empty=True)}
    still_open: list[str] = []
    for plan_id in unfinished:
        if plan_id not in plans:
            adopt = command("adopt", context.storage(storage_name).label, by="WHO")
            still_open.append(f"{plan_id[:12]}, which is not in the state: `{adopt}` records the files that it moved, and ends it")
            continue
        header, run = plans[plan_id].header, plans[plan_id].run
        reason = next(_reasons_to_wait(context, header), None)
        if reason is None:
            try:
                closed = close_plan(spark, context, load_plan(context.config, context.state.open(run)))
                failed = sum(total.rows for (_, outcome), total in closed.by_outcome.items() if outcome == FAILED)
                reason = f"{failed:,} of its files could not be checked; see `gc-assets show deletion_log`" if failed else None
            except (GcError, OSError) as error:
                reason = str(error)
            reason = f"its time ended on {header.apply_before:%Y-%m-%d %H:%M}Z, but it cannot be closed: {reason}" if reason else None
        if reason is not None:
            still_open.append(f"{plan_id[:12]} ({reason})")
    return still_open


def _reasons_to_wait(context: RunContext, header: PlanSummary) -> Iterator[str]:
    """Yield reasons why this run must not close an unfinished plan."""
    clock = context.clock
    if clock.now() < header.apply_before:
        yield f"a run closes it after {header.apply_before:%Y-%m-%d %H:%M}Z"
    if header.rehearsal != clock.is_rehearsal:
        yield "it belongs to rehearsals" if header.rehearsal else "it does not belong to rehearsals"
    if context.run_date != clock.today():
        yield "a run of a past date does not close plans"
    if context.storage(header.storage).mode != "apply":
        yield f"the storage is in plan mode: end it with `{command('apply', header.plan_id[:12], end=True, mode='apply')}`"
