"""Execute one approved plan while holding the storage's lease.

The apply marks all lakes again (verification mark), then restores, expires, quarantines, purges and
aborts what the plan lists. Rows are skipped if this mark needs or refuses their file. Every
intent and outcome is recorded, so that an interrupted apply can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import attrgetter

from pyspark.sql import SparkSession

from gc_assets.core.commands import command
from gc_assets.core.errors import GateRefused
from gc_assets.core.outcomes import describe_not_done
from gc_assets.core.phases import ABORT, EXPIRE, PHASES, QUARANTINE, RESTORE
from gc_assets.core.plan import PlanHeader
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity, log_progress
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.close import close_plan
from gc_assets.stages.delete.execution import ApplyResult, PlanExecution, phases_of
from gc_assets.stages.delete.expire import is_expiry_complete
from gc_assets.stages.delete.uploads import approved_uploads
from gc_assets.stages.delete.verification import make_verification_mark
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.plans import (
    StoredPlan,
    describe_unapproved,
    execution_directory,
    has_started,
    list_plans,
    load_plan,
    refuse_future,
    refuse_gates,
    refuse_historical,
    refuse_other_clock,
    refuse_other_key,
    refuse_unapproved,
)
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.execution import current_user
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.protocol import Lease
from gc_assets.stores.write_ahead import open_log


@log_progress(DELETION_LOG, attrgetter("header.storage"))
def apply_plan(spark: SparkSession, context: RunContext, plan: StoredPlan, phases: Sequence[str] = PHASES) -> ApplyResult:
    """Execute phases of a plan, or resume an apply that was interrupted.

    The lakes are marked again after a restore and after history edits. If one of these marks fails,
    or the lease is lost, the remaining phases do not run. Actions up to that point stay in effect
    and are recorded. Restoring files requires no approval.

    If the plan has begun but is out of date, because its time is over, or because the policy or the
    quarantine mode changed, it is closed (`close_plan`). Nothing more is removed.

    Raises:
        GateRefused: If the plan is not approved, expired before it began, belongs to another
            storage or policy, or does not pass a gate when the lakes are marked. If the first mark
            fails, no file has been changed.
    """
    header, state = plan.header, context.state
    already = nothing_to_do(plan)
    if already is not None:
        return ApplyResult(None, {}, already)
    refuse_apply(context, plan, phases)
    approved_uploads(state, plan)
    planned_phases = phases_of(header, phases)
    removes_nothing = tuple(phases) == (RESTORE,)
    if not removes_nothing and _is_outdated(context, header):
        return close_plan(spark, context, plan)
    owner = plan.verdict.approved_by or current_user()
    lease = take_lease(context, header.storage, context.store(header.storage), header.plan_id, owner)
    verification_id = f"{header.plan_id}-{lease.token}"
    with hold_lease(lease), ExitStack() as afterwards:
        _delete_abandoned_marks(context, header.storage, lease.token)
        afterwards.callback(_delete_mark, state, verification_id)
        resumed = has_started(state, header)
        verification = make_verification_mark(spark, context, plan, verification_id, ungated=removes_nothing, resumed=resumed)
        lease.check()
        log = open_log(state.files, log_directory(header, phases), header.plan_id, header.rows + header.uploads.count, header.quarantine)
        if log.is_empty and not removes_nothing:
            _refuse_rejected(context, plan, lease)
        execution = PlanExecution(spark, context, plan, log, lease)
        for number, phase in enumerate(planned_phases, start=1):
            log_activity(f"phase {number:,} of {len(planned_phases):,}: {phase}")
            if phase == EXPIRE:
                if execution.expire(verification_id):
                    verification = make_verification_mark(spark, context, plan, verification_id, ungated=False, resumed=resumed)
                execution.publish_histories(verification_id)
                execution.record_verified(verification)
                lease.check()
                continue
            if phase == ABORT:
                execution.abort(verification)
                continue
            execution.execute_phase(phase, execution.revalidate(phase, verification))
            if phase == RESTORE and len(planned_phases) > 1:  # restored metadata may refer to files that were unknown before
                verification = make_verification_mark(spark, context, plan, verification_id, ungated=False, resumed=resumed)
                lease.check()
        return execution.publish(planned_phases)


def _is_outdated(context: RunContext, header: PlanHeader) -> bool:
    policy_changed = header.policy_digest != context.config.policy_digest()
    mode_changed = header.quarantine != context.storage(header.storage).quarantine
    return context.clock.now() >= header.apply_before or policy_changed or mode_changed


def nothing_to_do(plan: StoredPlan) -> str | None:
    """Explain why applying the plan would have no effect.

    Returns:
        A message for the user, or None if the plan can be executed.
    """
    if plan.restored_at is not None:
        return f"files of this plan were restored at {plan.restored_at:%Y-%m-%d %H:%M}Z; make a new plan"
    if plan.finished_at is None:
        return None
    at = f"{plan.finished_at:%Y-%m-%d %H:%M}Z"
    if plan.not_done:
        return f"this plan ended at {at} and was applied in part: {describe_not_done(plan.not_done)} were not changed"
    return f"this plan was applied completely at {at}; applying it again changes nothing"


def refuse_apply(context: RunContext, plan: StoredPlan, phases: Sequence[str] = PHASES) -> None:
    """Refuse an apply that the configuration or the state does not allow.

    Raises:
        GateRefused: If the apply is not allowed, for example because the storage is in `plan` mode,
            the plan is not approved, or the policy has changed.
    """
    header = plan.header
    begun = has_started(context.state, header)
    too_late = context.clock.now() >= header.apply_before
    storage = context.storage(header.storage)
    refuse_historical(header)
    if storage.mode != "apply":
        why = describe_unapproved(plan)
        unapproved = "" if why is None else f" Also, {why}"
        raise GateRefused(
            f"Cannot apply plan {header.plan_id[:12]}: storage {storage.label} is in plan mode, in which gc-assets changes no "
            f"files. Set `mode: apply` for the storage in lakes.yaml, or pass --mode apply for this command.{unapproved}"
        )
    refuse_other_clock(header, context.clock)
    refuse_rehearsal(context, header.storage)
    if storage.location != header.location or (storage.quarantine != header.quarantine and not begun):
        end = f" To end this one first: `{command('apply', header.plan_id[:12], end=True)}`." if begun else ""
        raise GateRefused(
            f"Cannot apply plan {header.plan_id[:12]}: it was made for {header.location} with quarantine {header.quarantine}, "
            f"but lakes.yaml now has {storage.location} with quarantine {storage.quarantine}. Make a new plan with "
            f"`gc-assets run`.{end}"
        )
    if tuple(phases) == (RESTORE,):
        return
    if not begun:
        refuse_future(header, context.clock)
    refuse_unapproved(plan)
    refuse_gates(header, plan.verdict.overrides)
    refuse_other_key(header, context.config)
    if header.policy_digest != context.config.policy_digest() and not begun:
        raise GateRefused(
            f"Cannot apply plan {header.plan_id[:12]}: the policy in lakes.yaml has changed since the plan was made. Make a "
            "new plan with `gc-assets run`."
        )
    if QUARANTINE in phases and EXPIRE not in phases and header.after_expiry.files and not is_expiry_complete(context, plan):
        raise GateRefused(
            f"Cannot quarantine the files of plan {header.plan_id[:12]}: expired history still needs "
            f"{count_of(header.after_expiry.files, 'file')}, because the history edits are not done yet. Apply all phases, or "
            f"run `{command('apply', header.plan_id[:12], phase='expire')}` first."
        )
    if too_late and not begun:
        raise GateRefused(
            f"Cannot apply plan {header.plan_id[:12]}: its apply had to start before {header.apply_before:%Y-%m-%d %H:%M}Z. "
            "Make a new plan with `gc-assets run`."
        )


def log_directory(header: PlanHeader, phases: Sequence[str]) -> str:
    """Return the path of the write-ahead log in the state.

    A run that only restores files writes to a separate log, because it needs no approval and must
    not count as the beginning of the plan.
    """
    return f"{header.storage}/restore/{header.plan_id}" if tuple(phases) == (RESTORE,) else execution_directory(header)


def _refuse_rejected(context: RunContext, plan: StoredPlan, lease: Lease) -> None:
    """Check that the plan was not rejected before its log existed, for example during the mark.

    `reject` records its event, then looks for the log. An apply does the opposite, so that at least
    one of them sees the other. If the plan was rejected, its empty log is deleted, so that the
    apply has not begun.

    Raises:
        GateRefused: If the plan was rejected.
        LeaseLost: If the plan was rejected, but the lease is lost, so that the log is not deleted.
    """
    found = load_plan(context.config, plan.published)
    try:
        refuse_unapproved(replace(found, verdict=replace(found.verdict, ignores_rejections=False)))
    except GateRefused:
        lease.check()
        context.state.files.delete_directory(execution_directory(plan.header))
        raise


def _delete_abandoned_marks(context: RunContext, storage_name: str, token: int) -> None:
    """Delete verification marks left behind by interrupted applies of this storage.

    Marks with an older fencing token belong to leases that have ended, so no apply uses them.
    """
    names = [name.rpartition("-") for name in context.state.files.directories(VERIFICATION_MARKS)]
    abandoned = [(plan_id, number) for plan_id, _, number in names if number.isdecimal() and int(number) < token]
    if not abandoned:
        return
    ours = {plan.header.plan_id for plan in list_plans(context.config, storage_name, empty=True)}
    ours.update(context.state.files.directories(f"{storage_name}/apply"))  # a state from a backup may lack their plans
    for plan_id, number in abandoned:
        if plan_id in ours:
            _delete_mark(context.state, f"{plan_id}-{number}")


def _delete_mark(state: State, verification_id: str) -> None:
    if verification_id in state.files.directories(VERIFICATION_MARKS):
        state.files.delete_directory(f"{VERIFICATION_MARKS}/{verification_id}")
