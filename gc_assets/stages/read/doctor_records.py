"""Check the records of gc-assets for `doctor`: open plans, the last run and apply logs.

Most checks read only the state. The checks of leases, storage ids, trash and inventory reports also
read the storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Final

from gc_assets.config.models import StorageConfig
from gc_assets.core import gates
from gc_assets.core.commands import command
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.core.plan import LiveCount, gate_name
from gc_assets.core.printable import show_list, to_message
from gc_assets.core.units import count_of, format_bytes
from gc_assets.engine.recorded_names import advise_other_storage, describe_other_storage
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.doctor_lakes import find_conflicts
from gc_assets.stages.records.accepted_runs import AcceptedRun, newest_accepted_plan
from gc_assets.stages.records.adoption import MAX_EXAMINED, find_unknown_files
from gc_assets.stages.records.fencing_tokens import describe_unknown_leases, find_unknown_leases
from gc_assets.stages.records.plans import (
    list_damage,
    list_plans,
    load_plan,
    previous_plan,
    refuse_other_key,
    unfinished_plans,
    unknown_plans,
)
from gc_assets.stages.sweep.foreign_files import foreign_notes
from gc_assets.stages.sweep.listings import require_newer_report
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.registry import read_registry
from gc_assets.state.schemas import DELETION_LOG, ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.summaries import OrphanFilesSummary, StorageInventorySummary
from gc_assets.stores.protocol import Holder
from gc_assets.stores.trash import trash_address

# Doctor evaluates these gates itself, so their result in the last run is ignored.
_CHECKED_AGAIN: Final = frozenset({"storages_apart", "unfinished_apply", "lakes_present", "damaged_histories"})
# Kinds of listed entries about which another check reports.
_REPORTED: Final = frozenset({"symlink"})


def check_plans(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Read every row of the plans that can still be applied, as an approval would."""
    state, count = context.state, 0
    for plan in list_plans(context.config, storage.name):
        if not plan.is_open(context.clock.now()):
            continue
        count += 1
        name = plan.header.plan_id[:12]
        try:
            stored = load_plan(context.config, state.open(plan.run))
            state.verify(stored.published)
            refuse_other_key(stored.header, context.config)
        except (StateError, GateRefused) as error:
            yield Finding(storage.name, "plans", FAIL, str(error), "This plan cannot be applied. Make a new one with `gc-assets run`.")
            continue
        if stored.verdict.approvals and stored.verdict.missing is not None:
            found = f"plan {name} is {stored.verdict.missing}"
            yield Finding(storage.name, "approvals", WARN, found, command("approve", name, by="ANOTHER_NAME"))
        if stored.verdict.is_approved and stored.header.policy_digest != context.config.policy_digest():
            found = f"plan {name} is approved but cannot be applied, because the policy in lakes.yaml has changed since it was made"
            yield Finding(storage.name, "plans", WARN, found, "Make a new plan with `gc-assets run`.")
    yield Finding(storage.name, "plans", OK, f"{count_of(count, 'plan')} can still be applied; each was read completely")


def check_last_run(context: RunContext, storage: StorageConfig, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Report failed gates, unreadable tables, left-out files and notes of the last run."""
    last = previous_plan(list_plans(context.config, storage.name, empty=True), context.clock)
    if last is None:
        return
    header, when = header_of(context.state.open(last.run)), f"the run of {last.header.run_date}"
    refused = [gate for gate in header.failed_gates if gate_name(gate.name) not in {*_CHECKED_AGAIN, *last.verdict.overrides}]
    for gate in refused:
        found = f"{when}: refused by gate {gate.name}: {gate.message}"
        yield Finding(storage.name, "last_run", FAIL, found, "Fix this problem, then run `gc-assets run`.")
    reported = {item.reason for refs in frozen.values() for item in refs.unreadable}
    unreadable = [item for item in header.unreadable if item.why not in reported]
    for item in unreadable:
        found = f"{when}: {item.message}"
        set_aside = command("set-aside", item.label, by="WHO", comment="WHY")
        advice = (
            f"Repair the table, or drop it from its catalog, then run `gc-assets run`. To purge without waiting for it, run `{set_aside}`."
        )
        yield Finding(storage.name, "unreadable", FAIL if item.blocks_purges else WARN, found, advice)
    for item in header.left_out:
        yield Finding(storage.name, "left_out", WARN, f"{when}: {item}", "Until this is resolved, the files stay in place.")
    yield from _check_sweep(context, storage, header.run_date, frozen)
    if not refused and not unreadable:
        yield Finding(storage.name, "last_run", OK, f"{when} did not find any problem that blocks a plan")


def _check_sweep(context: RunContext, storage: StorageConfig, run_date: date, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Report what the last run's sweep and listing found, and which `protect` patterns match nothing.

    Notes on claims are left to `check_claims`, and notes on foreign files to `gc-assets run`.
    """
    swept = context.state.current(storage.name, ORPHAN_FILES.name, run_date)
    listed = context.state.current(storage.name, STORAGE_INVENTORY.name, run_date)
    summary = swept.summary(OrphanFilesSummary) if swept is not None else None
    reported = set(map(to_message, find_conflicts(context, storage.name, frozen)))
    reported.update(() if summary is None else map(to_message, foreign_notes(context, storage.name, summary.foreign)))
    for note in summary.notes if summary is not None else ():
        if note not in reported:
            yield Finding(storage.name, "note", WARN, f"the run of {run_date}: {note}")
    problems = listed.summary(StorageInventorySummary).problem_samples if listed is not None else ()
    kept = [f"{problem.key} ({problem.detail})" for problem in problems if problem.kind not in _REPORTED]
    if kept:
        found = f"the run of {run_date} listed objects that are never collected, such as {show_list(kept, '; ')}"
        yield Finding(storage.name, "kept", WARN, found, "If they are garbage, remove them manually.")
    for pattern in summary.unused_patterns if summary is not None else ():
        if pattern in storage.protect:
            found = f"the run of {run_date}: `protect` in lakes.yaml: no listed file matches {pattern!r}, so it protects nothing"
            advice = f"Check its spelling: it begins under {storage.location}, `*` does not match `/`, and `**` does."
            yield Finding(storage.name, "protect", WARN, found, advice)


def check_report(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Check the inventory report that a run would read, also against the listing of the last run."""
    lister, now = context.lister(storage.name), context.clock.now()
    for finding in lister.examine(storage, now):
        if finding.verdict == OK and (report := lister.plan(1, now, frozenset(), now, None).report) is not None:
            require_newer_report(context, storage.name, report)
        yield finding


def check_lakes(context: RunContext, storage: StorageConfig, frozen: Mapping[str, FrozenRefs]) -> Iterator[Finding]:
    """Check that every lake of the last accepted run is still configured and has refs.

    Lakes that cannot be read are ignored, because another check reports them.
    """
    accepted = newest_accepted_plan(context, storage.name)
    if accepted is None:
        return
    present = [
        lake.name for lake in context.config.lakes if lake.name not in frozen or frozen[lake.name].refs or frozen[lake.name].unreadable
    ]
    verdict = gates.lakes_present(AcceptedRun.of(context, accepted).missing_lakes(LiveCount(len(present), dict.fromkeys(present, 1))))
    if not verdict.passed:
        found = f"since the run of {accepted.run_date}: {verdict.message}"
        yield Finding(storage.name, "lakes", FAIL, found, "Files that it shares with other lakes are not protected.")
    else:
        yield Finding(storage.name, "lakes", OK, f"every lake of the run of {accepted.run_date} is configured and has refs")


def check_interrupted(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Report plans whose apply began but has not finished and is not running at the moment."""
    begun, holder = unfinished_plans(context.state, storage.name), None
    if begun and (holder := _live_holder(context, storage.name)) is not None and holder.plan_id in begun:
        begun = [plan for plan in begun if plan != holder.plan_id]
        yield Finding(storage.name, "interrupted", OK, f"plan {holder.plan_id[:12]} is applied now, by {holder}")
    elif not begun:
        yield Finding(storage.name, "interrupted", OK, "no plan is unfinished")
    if not begun:
        return
    unknown = unknown_plans(context.config, storage.name)
    if unknown:
        adopt, names = command("adopt", storage.label, by="WHO"), ", ".join(plan[:12] for plan in unknown[:3])
        found = f"the state contains logs of {count_of(len(unknown), 'plan')}, but not the plans themselves: {names}"
        yield Finding(storage.name, "interrupted", FAIL, found, f"{adopt} records the files that were moved, and ends these plans.")
    begun = [plan for plan in begun if plan not in unknown]
    if not begun:
        return
    names = ", ".join(plan[:12] for plan in begun[:3])
    found = f"{count_of(len(begun), 'plan')} began and did not finish: {names}"
    finish, end = command("apply", begun[0][:12]), command("apply", begun[0][:12], end=True)
    yield Finding(
        storage.name, "interrupted", FAIL, found, f"{finish}, or {end} to give up the rest. When the plan expires, a run closes it."
    )


def check_ledger(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Check that every deletion log is complete.

    The ledger of quarantined files is computed from these logs. Therefore, quarantined files that
    only a missing log records would be unknown.
    """
    runs, damaged = context.state.history(storage.name, DELETION_LOG.name), 0
    for run in runs:
        try:
            context.state.open(run)
        except StateError as error:
            damaged += 1
            todo = "Restore that file from a backup of the state. Do not apply or purge anything until then."
            yield Finding(storage.name, "ledger", FAIL, str(error), todo)
    if not damaged:
        yield Finding(storage.name, "ledger", OK, f"{count_of(len(runs), 'deletion log', 'are')} complete")


def check_trash(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Report damaged files in the trash, and those that differ from or are not in the ledger."""
    unknown = find_unknown_files(context, storage.name, MAX_EXAMINED)
    if unknown.copies:
        first = unknown.copies[0]
        found = (
            f"{count_of(len(unknown.copies), 'file')} in the trash are copies that differ from the ones in the ledger, "
            f"such as {first.plan_id[:12]}/{first.key}: they are neither restored nor purged"
        )
        yield Finding(storage.name, "trash", WARN, found, command("adopt", storage.label, by="WHO"))
    if unknown.damaged:
        first = unknown.damaged[0]
        found = (
            f"{count_of(len(unknown.damaged), 'file')} in the trash are damaged, such as {first.plan_id[:12]}/{first.key}: their sizes "
            "differ from the record. A restore or purge leaves them alone, and records the quarantined files as lost"
        )
        address = trash_address(storage.location, first.plan_id, first.key)
        todo = f"If you need them, copy them to their keys from a backup. Then remove them from the trash, such as {address}"
        yield Finding(storage.name, "trash", WARN, found, todo)
    examined = "all files in the trash are" if unknown.is_complete else f"the first {count_of(MAX_EXAMINED, 'file')} in the trash are"
    if not unknown.files:
        if not unknown.copies and not unknown.damaged:
            yield Finding(storage.name, "trash", OK, f"{examined} in the ledger")
        return
    plans = ", ".join(plan[:12] for plan in unknown.plan_ids[:3])
    at_least = "" if unknown.is_complete else "at least "
    found = (
        f"{at_least}{count_of(unknown.amount.files, 'file')} ({format_bytes(unknown.amount.bytes)}) of the plans {plans} are in the trash, "
        "but not in any log of the state: they are neither restored nor purged"
    )
    adopt = command("adopt", storage.label, by="WHO")
    todo = f"If another state is used for the storage, only that one can restore or purge them. Otherwise, {adopt} records them."
    yield Finding(storage.name, "trash", WARN, found, todo)


def check_identity(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Compare a storage's id with the one recorded in the state."""
    known = read_registry(context.state).find("storage", storage.name)
    if known is None or known.storage_id is None:
        return
    has_leases = context.store(storage.name).last_token() > 0
    other = describe_other_storage(context.config, context.state, storage.name, has_leases=has_leases)
    if other is None:
        yield Finding(storage.name, "identity", OK, f"its id or its leases show that it is the one on record, {known.storage_id}")
    else:
        yield Finding(storage.name, "identity", FAIL, other, advise_other_storage(context.config, storage.name))


def check_unknown_leases(context: RunContext, storage: StorageConfig) -> Iterator[Finding]:
    """Report leases that the state does not contain, while purges wait because of them."""
    found = find_unknown_leases(context, storage.name, context.store(storage.name))
    if (unknown := describe_unknown_leases(context, storage.name, found)) is not None:
        yield Finding(storage.name, "leases", WARN, unknown)


def check_leftovers(context: RunContext) -> Iterator[Finding]:
    """Report damaged histories, and verification marks left behind by interrupted applies."""
    for sentence in list_damage(context.state, [lake.name for lake in context.config.lakes]):
        yield Finding("state", "histories", FAIL, sentence, "Repair the lake, then remove the record.")
    names = context.state.files.directories(VERIFICATION_MARKS)
    holders = {
        holder.plan_id for storage in context.config.storages if names and (holder := _live_holder(context, storage.name)) is not None
    }
    abandoned = [name for name in names if name.rpartition("-")[0] not in holders]
    if abandoned:
        directory = f"{context.state.files.root}/{VERIFICATION_MARKS}"
        marks = f"{count_of(len(abandoned), 'verification mark')} in {directory}"
        found = f"interrupted applies have left {marks}: {', '.join(abandoned[:3])}"
        yield Finding("state", "leftovers", WARN, found, "They only use space. The next apply in their storage removes them.")


def _live_holder(context: RunContext, storage_name: str) -> Holder | None:
    holder = context.store(storage_name).holder()
    return holder if holder is not None and holder.is_live(context.clock.now()) else None
