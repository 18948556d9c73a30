"""What `doctor` asks of plans and records: is each plan that may still be applied the one that was
made, what did the last night find, is what was done on record.

Reads the state only. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from gc_assets.config.models import StorageConfig
from gc_assets.core import gates
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.plan import LiveCount
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.accepted_runs import AcceptedRun, last_accepted_plan
from gc_assets.stages.records.plans import list_damage, list_plans, load_plan, previous_plan, refuse_other_key, unfinished_plans
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.protocol import Holder

# What a plan may still be approved or applied by.
_OPEN: Final = frozenset({"ready", "refused", "approved"})
# Gates that doctor asks anew, whatever the last night said.
_ASKED_ANEW: Final = frozenset({"storages_apart", "unfinished_apply", "lakes_present", "spoilt_histories"})


def sealed_plans(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Reads every plan that may still be applied in full, as an approval does."""
    state, count = context.state, 0
    for plan in list_plans(context.config, storage.name):
        if plan.status_at(context.clock.now()) not in _OPEN:
            continue
        count += 1
        name = plan.header.plan_id[:12]
        try:
            stored = load_plan(context.config, state.open(plan.run))
            state.verify(stored.published)
            refuse_other_key(stored.header, context.config)
        except (StateError, GateRefused) as error:
            yield Finding(storage.name, "plans", FAIL, str(error), "Nobody can apply this plan. Make a new one with `gc-assets run`.")
            continue
        if stored.verdict.approvals and stored.verdict.missing is not None:
            found = f"plan {name} is {stored.verdict.missing}"
            yield Finding(storage.name, "approvals", WARN, found, f"gc-assets approve {name} --by ANOTHER_NAME")
        if stored.verdict.is_approved and stored.header.policy_digest != context.config.policy_digest():
            found = f"plan {name} was approved under another policy than lakes.yaml now holds, so it cannot be applied"
            yield Finding(storage.name, "plans", WARN, found, "Make a new plan with `gc-assets run`.")
    yield Finding(storage.name, "plans", OK, f"{count:,} plans may still be applied; each was read in full")


def last_night(context: RunContext, storage: StorageConfig, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Tells what of the last night keeps its plan from being approved, and what it could not read."""
    last = previous_plan(list_plans(context.config, storage.name, empty=True), context.clock)
    if last is None:
        return
    header, when = header_of(context.state.open(last.run)), f"the night of {last.header.run_date}"
    refused = [gate for gate in header.failed_gates if gate.name not in {*_ASKED_ANEW, *last.verdict.overrides}]
    for gate in refused:
        found = f"{when}: refused by gate {gate.name}: {gate.message}"
        yield Finding(storage.name, "night", FAIL, found, "Mend what it names, then `gc-assets run`.")
    told = {item.reason for refs in frozen.values() for item in refs.unreadable}
    unreadable = [item for item in header.unreadable if item.why not in told]
    for item in unreadable:
        found = f"{when}: {item.message}"
        yield Finding(storage.name, "sick", FAIL, found, "Mend it, or drop it from its catalog, then `gc-assets run`.")
    if not refused and not unreadable:
        yield Finding(storage.name, "night", OK, f"{when} found nothing that stops a plan")


def lakes_present(context: RunContext, storage: StorageConfig, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Compares the lakes with the last accepted night, tonight's too: none may have left, and none be
    empty. A lake that could not be asked is told elsewhere.
    """
    accepted = last_accepted_plan(replace(context, run_date=context.run_date + timedelta(days=1)), storage.name)
    if accepted is None:
        return
    there = [lake.name for lake in context.config.lakes if lake.name not in frozen or frozen[lake.name].refs or frozen[lake.name].unreadable]
    verdict = gates.lakes_present(AcceptedRun.of(context, accepted).missing_lakes(LiveCount(len(there), dict.fromkeys(there, 1))))
    if not verdict.passed:
        found = f"since the night of {accepted.run_date}: {verdict.message}"
        yield Finding(storage.name, "lakes", FAIL, found, "What it shares with other lakes is not protected.")
    else:
        yield Finding(storage.name, "lakes", OK, f"every lake of the night of {accepted.run_date} is there")


def interrupted(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Names the plans that began and did not end."""
    begun = unfinished_plans(context.state, storage.name)
    if not begun:
        yield Finding(storage.name, "interrupted", OK, "no plan is half applied")
        return
    names = ", ".join(plan[:12] for plan in begun[:3])
    found = f"{len(begun):,} plans began and did not finish: {names}"
    yield Finding(storage.name, "interrupted", FAIL, found, f"gc-assets apply {begun[0][:12]}")


def ledger(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Checks that every log of what was done is there whole: a log that is gone lets its files be
    forgotten in quarantine.
    """
    runs, harmed = context.state.history(storage.name, DELETION_LOG.name), 0
    for run in runs:
        try:
            context.state.open(run)
        except StateError as error:
            harmed += 1
            todo = "Bring that file back from a backup of the state. Apply and purge nothing before."
            yield Finding(storage.name, "ledger", FAIL, str(error), todo)
    if not harmed:
        yield Finding(storage.name, "ledger", OK, f"{len(runs):,} logs of what was done are there whole")


def leftovers(context: RunContext) -> Iterator[Finding]:
    """Names the marks of applies that were killed, and edits of histories that went wrong."""
    for sentence in list_damage(context.state, [lake.name for lake in context.config.lakes]):
        yield Finding("state", "histories", FAIL, sentence, "Mend the lake, then remove the record.")
    left = context.state.files.directories(VERIFICATION_MARKS)
    holders = {
        holder.plan_id for storage in context.config.storages if left and (holder := _live_holder(context, storage.name)) is not None
    }
    dead = [name for name in left if name.rpartition("-")[0] not in holders]
    if dead:
        found = f"{len(dead):,} marks of applies that were killed are left in {context.state.files.root}/{VERIFICATION_MARKS}: {', '.join(dead[:3])}"
        yield Finding("state", "leftovers", WARN, found, "They only take room. The next apply in their storage removes them.")


def _live_holder(context: RunContext, storage_name: str) -> Holder | None:
    holder = context.store(storage_name).holder()
    return holder if holder is not None and holder.is_live(context.clock.now()) else None
