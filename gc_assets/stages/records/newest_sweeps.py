"""Find the sweeps whose findings count for plans and applies, and the order of runs.

A sweep is a run of `orphan_files`. It counts if the plan that used it is not historical, and was
not made in the future. Real runs ignore sweeps of rehearsals, and rehearsals ignore those of real
runs. Refused plans count, because the findings of their sweeps are still valid. The same applies to
runs that ended before their plan.

Times do not order the runs, because the clock of a host may be wrong. Each plan records its
generation, which is the number of run dates that its run builds on. The newest run has the highest
generation. Among equal ones, it is the run that was published last (`Receipt.sequence_number`).

- If a clock was days ahead, later runs build on the runs before it, and reach its generation on the
  next run date. When its date arrives, it is therefore not the newest run.
- If a clock was days behind, its run builds on few run dates. It is not the newest run either,
  although it was published last, because it does not know the records of the runs before it.
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
    sweeps = (open_sweep(context, storage_name, context.state.open(plan.run)) for plan in plans)
    swept = next((sweep for sweep in sweeps if sweep is not None), None)
    if swept is not None:
        swept = _find_unplanned(context, storage_name, swept) or swept
    own = context.find(ORPHAN_FILES, storage_name) if context.verification_id is None else None
    if own is None or is_in_future(context, own.receipt.created_at):
        return swept
    is_newer = swept is None or (own.receipt.run_date >= swept.receipt.run_date and own.receipt.order > swept.receipt.order)
    return own if is_newer else swept


def _find_unplanned(context: RunContext, storage_name: str, planned: PublishedTable) -> PublishedTable | None:
    """Return a newer sweep of the same run date whose run ended before its plan, or None."""
    current = context.state.current(storage_name, ORPHAN_FILES.name, planned.receipt.run_date)
    if current is None or current.receipt.order <= planned.receipt.order or is_in_future(context, current.receipt.created_at):
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


def list_comparable_plans(context: RunContext, storage_name: str) -> Iterator[ListedPlan]:
    """Yield the storage's plans whose sweeps count, newest first."""
    return (plan for plan in _list_known(context, storage_name) if plan.header.rehearsal == context.clock.is_rehearsal)


def next_generation(context: RunContext, storage_name: str) -> int:
    """Return the generation of the plan that this run makes."""
    newest = next((plan for plan in _list_known(context, storage_name) if context.clock.is_rehearsal or not plan.header.rehearsal), None)
    return 1 if newest is None else newest.generation + (newest.run.run_date != context.run_date)


def _list_known(context: RunContext, storage_name: str) -> Iterator[ListedPlan]:
    """Yield the storage's plans that are neither historical nor made in the future, newest first."""
    for plan in list_plans(context.config, storage_name, empty=True):
        # An equal plan keeps its first header, although a later run made it again.
        created_at = min(plan.header.created_at, plan.run.entry.created_at)
        if not plan.header.historical and not is_in_future(context, created_at):
            yield plan


def open_sweep(context: RunContext, storage_name: str, plan: PublishedTable) -> PublishedTable | None:
    """Return the sweep on which a plan is based, or None if it was pruned."""
    return context.state.open_input(plan, storage_name, ORPHAN_FILES.name)


def is_in_future(context: RunContext, created_at: datetime) -> bool:
    """Check whether a table was made in the future, because the clock of its run was ahead."""
    return created_at - context.clock.now() > MAX_SKEW
