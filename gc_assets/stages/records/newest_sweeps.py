"""Find the sweeps whose findings count for plans and applies.

A sweep counts if the plan that used it is not historical, and was not made in the future. Real runs
ignore sweeps of rehearsals, and rehearsals ignore those of real runs. Refused plans count, because
their sweeps still found what they record. The same applies to runs that ended before their plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gc_assets.core.clock import MAX_SKEW
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import ORPHAN_FILES


def find_sweep(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the sweep that decides what a storage's plan or apply may remove, or None.

    A plan uses the sweep of its own run. An apply may run long after its plan, so it uses the
    newest sweep.

    Args:
        context: The context of the run, or of a verification mark.
    """
    if context.verification_id is None:
        return context.find(ORPHAN_FILES, storage_name)
    return find_newest_sweep(context, storage_name)


def find_newest_sweep(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the newest sweep of a storage, or None.

    Its run date may be later than that of the context. A sweep of the context's run date counts
    although it has no plan yet.
    """
    plans = list_comparable_plans(context, storage_name)
    newest_first = sorted(plans, key=lambda plan: (plan.run.run_date, plan.run.entry.created_at, plan.run.run_id), reverse=True)
    sweeps = (open_sweep(context, storage_name, context.state.open(plan.run)) for plan in newest_first)
    swept = next((sweep for sweep in sweeps if sweep is not None), None)
    if swept is not None:
        swept = _find_unplanned(context, storage_name, swept) or swept
    own = context.find(ORPHAN_FILES, storage_name) if context.verification_id is None else None
    if own is None or is_in_future(context, own.receipt.created_at):
        return swept
    return own if swept is None or own.receipt.run_date >= swept.receipt.run_date else swept


def _find_unplanned(context: RunContext, storage_name: str, planned: PublishedTable) -> PublishedTable | None:
    """Return a newer sweep of the same run date whose run ended before its plan, or None."""
    current = context.state.current(storage_name, ORPHAN_FILES.name, planned.receipt.run_date)
    if current is None or current.receipt.created_at <= planned.receipt.created_at or is_in_future(context, current.receipt.created_at):
        return None
    plans = [plan for plan in list_plans(context.config, storage_name, empty=True) if plan.run.run_date == planned.receipt.run_date]
    used = [open_sweep(context, storage_name, context.state.open(plan.run)) for plan in plans]
    return None if current.receipt.run_id in {sweep.receipt.run_id for sweep in used if sweep is not None} else current


def list_newest_sweeps(context: RunContext) -> Iterator[PublishedTable]:
    """Yield the newest sweep of each storage."""
    for storage in context.config.storages:
        swept = find_newest_sweep(context, storage.name)
        if swept is not None:
            yield swept


def list_comparable_plans(context: RunContext, storage_name: str) -> list[ListedPlan]:
    """Return the storage's plans whose sweeps count, in the order of `list_plans`."""
    return [
        plan
        for plan in list_plans(context.config, storage_name, empty=True)
        if not plan.header.historical
        and plan.header.rehearsal == context.clock.is_rehearsal
        # An equal plan keeps its first header, although a later run made it again.
        and not is_in_future(context, min(plan.header.created_at, plan.run.entry.created_at))
    ]


def open_sweep(context: RunContext, storage_name: str, plan: PublishedTable) -> PublishedTable | None:
    """Return the sweep on which a plan is based, or None if it was pruned."""
    return context.state.open_input(plan, storage_name, ORPHAN_FILES.name)


def is_in_future(context: RunContext, created_at: datetime) -> bool:
    """Check whether a table was made in the future, because the clock of its run was ahead."""
    return created_at - context.clock.now() > MAX_SKEW
