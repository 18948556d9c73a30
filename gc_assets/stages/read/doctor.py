"""Check a configuration before a run, with its lakes, its storages and the state.

The checks do not change lakes or storages. They only write probes, which they remove immediately:
one in the state, and canary objects under the collector's own prefix in storages with mode `apply`.
The command itself checks Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from gc_assets.config.models import StorageConfig
from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.findings import FAIL, HISTORY_EDITS, OK, WARN, Finding, run_check, skip_check
from gc_assets.core.notifications import NOTIFIED_BY
from gc_assets.core.units import count_of, format_bytes, format_duration
from gc_assets.engine.progress import set_activity, track
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs, as_remote
from gc_assets.stages.mark.deleted_repositories import freeze_lake
from gc_assets.stages.read import doctor_lakes as lake_checks
from gc_assets.stages.read import doctor_records as records
from gc_assets.stages.read.doctor_access import find_unreachable
from gc_assets.stages.read.doctor_clocks import check_clocks
from gc_assets.state.damage import RESTORE_BACKUP
from gc_assets.stores.store import examine_state

# Warn if there is less free space for the state. A run with a million files writes about 100 MB.
_LOW_SPACE: Final = 2**30
# These checks send requests to the server of the lake or storage.
_LAKE_CHECKS: Final = ("visible", HISTORY_EDITS, "addresses", "clocks")
_STORAGE_CHECKS: Final = ("inventory",)
# A subject, the name of a check, and the function that runs it.
Check = tuple[str, str, Callable[[], Iterator[Finding]]]


def doctor(context: RunContext, begin: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Run all checks of the configuration and yield their results.

    If a check raises an error, the error becomes its result, and the other checks continue.

    Args:
        begin: Called with the name of each lake, storage or other subject before its first check.
    """
    yield from _environment(context)
    begin("the servers of lakes and storages")
    checks, previous = list(_checks(context)), ""
    for subject, check, run in track(checks, "checks", len(checks)):
        set_activity(f"{subject}: {check}")
        if subject != previous:
            begin(subject)
            previous = subject
        yield from run_check(subject, check, run)


def _checks(context: RunContext) -> Iterator[Check]:
    frozen: dict[str, FrozenRefs] = {}
    reachable: set[str] = set()
    unreachable = find_unreachable(context)
    yield "state", "clock", lambda: _check_clock(context)
    yield "state", "space", lambda: _check_space(context)
    yield "state", "conditions", lambda: _check_conditional_writes(context)
    yield "state", "index", lambda: _check_index(context)
    yield "state", "lifecycle", lambda: examine_state(f"{context.config.state.rstrip('/')}/", context.config.connections())
    yield "state", "leftovers", lambda: records.check_leftovers(context)
    if context.config.notify:
        yield "notify", "targets", lambda: _check_notify(context)
    for lake in context.config.lakes:
        if (failed := unreachable.get(lake.name)) is not None:
            yield from _skip_unreachable(failed, _LAKE_CHECKS)
            continue
        yield lake.name, "readable", partial(_check_lake, context, lake.name, frozen)
        yield lake.name, "visible", partial(_check_history, context, lake.name, frozen)
        yield lake.name, HISTORY_EDITS, partial(_check_edits, context, lake.name, frozen)
        yield lake.name, "decoder", partial(lake_checks.check_decoder, context, lake.name)
        yield lake.name, "addresses", partial(lake_checks.check_addresses, context, lake.name)
        yield lake.name, "clocks", partial(check_clocks, context, lake.name)
    yield "storages", "overlaps", lambda: _check_overlaps(context)
    for storage in context.config.storages:
        if (failed := unreachable.get(storage.name)) is not None:
            yield from _skip_unreachable(failed, _STORAGE_CHECKS)
        else:
            yield storage.name, "store", partial(_check_store, context, storage, reachable)
            yield storage.name, "inventory", partial(records.check_report, context, storage)
        yield storage.name, "claims", partial(_check_claims, context, storage.name, frozen)
        yield storage.name, "lakes", partial(records.check_lakes, context, storage, frozen)
        yield storage.name, "last_run", partial(records.check_last_run, context, storage, frozen)
        yield storage.name, "plans", partial(records.check_plans, context, storage)
        yield storage.name, "interrupted", partial(records.check_interrupted, context, storage)
        yield storage.name, "ledger", partial(records.check_ledger, context, storage)
        yield storage.name, "trash", partial(_check_trash, context, storage, reachable)


def _skip_unreachable(failed: Finding, checks: Sequence[str]) -> Iterator[Check]:
    """Report the failed access check of a lake or storage, and mark its other checks as skipped."""
    yield failed.subject, failed.check, lambda: iter([failed])
    for check in checks:
        yield failed.subject, check, lambda name=check: iter([skip_check(failed.subject, name, failed.check)])


def _check_lake(context: RunContext, name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    lake = context.lake(name)
    try:
        frozen[name] = freeze_lake(context, lake, context.clock.now())
    except LakeUnreadable:
        storages = set(map(context.resolver().storage_of, context.config.lake(name).own_locations()))
        if as_remote(lake) is not None or not storages & lake_checks.find_absent_storages(context):
            raise
        yield skip_check(name, "readable", "listable")
        return
    yield from lake_checks.check_readable(context, name, frozen[name])


def _check_history(context: RunContext, name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    if name in frozen:
        yield from lake_checks.check_history(context, name, frozen[name])
    else:
        yield skip_check(name, "visible", "readable")


def _check_edits(context: RunContext, name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    if name in frozen:
        yield from lake_checks.check_edits(context, name, frozen[name])
    else:
        yield skip_check(name, HISTORY_EDITS, "readable")


def _check_store(context: RunContext, storage: StorageConfig, reachable: set[str]) -> Iterator[Finding]:
    """Examine the store. If it can be listed, add the storage to `reachable`."""
    findings = list(context.store(storage.name).examine(storage, context.clock.now()))
    yield from findings
    if not any(finding.check == "listable" and finding.verdict == FAIL for finding in findings):
        reachable.add(storage.name)


def _check_trash(context: RunContext, storage: StorageConfig, reachable: set[str]) -> Iterator[Finding]:
    if storage.name not in reachable:
        yield skip_check(storage.name, "trash", "listable")
        return
    yield from records.check_trash(context, storage)
    yield from records.check_identity(context, storage)
    yield from records.check_unknown_leases(context, storage)


def _check_claims(context: RunContext, storage_name: str, frozen: dict[str, FrozenRefs]) -> Iterator[Finding]:
    """Check the claims of all readable lakes. With unreadable lakes, the check is incomplete."""
    unread = [lake.label for lake in context.config.lakes if lake.name not in frozen]
    found = lake_checks.check_claims(context, storage_name, frozen)
    yield from (finding for finding in found if not unread or finding.verdict != OK)
    if unread:
        yield skip_check(storage_name, "claims", f"readable of {', '.join(unread)}")


def _environment(context: RunContext) -> Iterator[Finding]:
    for text in context.unsafe:
        yield Finding("environment", "limits", WARN, text, "Unset the variable for production runs.")


def _check_notify(context: RunContext) -> Iterator[Finding]:
    yield Finding("notify", "targets", OK, f"{count_of(len(context.config.notify), 'target')}; {NOTIFIED_BY}")


def _check_clock(context: RunContext) -> Iterator[Finding]:
    """Compare the state's clock with the local one, by writing, reading and removing a file."""
    files, content = context.state.files, uuid.uuid4().hex.encode()
    name = f".doctor-{content.decode()}"
    with files.probe(name, content):
        ours, theirs, answer = datetime.now(UTC), files.modified_at(name), files.read(name)
    if answer != content:
        found = f"{files.uri(name)} was written, but different content was read back"
        yield Finding("state", "readable", FAIL, found, "Check the disk or the store: runs and plans would be damaged.")
    skew = abs(theirs - ours)
    found = f"{files.root} can be written and read, its clock differs by {skew.total_seconds():.1f} s"
    if skew <= MAX_SKEW:
        yield Finding("state", "clock", OK, found)
    else:
        limit = format_duration(MAX_SKEW)
        yield Finding("state", "clock", FAIL, found, f"Synchronize the clocks: a difference above {limit} reduces the grace period.")


def _check_space(context: RunContext) -> Iterator[Finding]:
    """Report the free disk space for the state, unless the state is in an object store."""
    files = context.state.files
    free = files.free_bytes()
    if free is None:
        return
    found = f"{format_bytes(free)} are free for {files.root}"
    if free < _LOW_SPACE:
        yield Finding(
            "state", "space", WARN, found, "Free some space, for example with `gc-assets prune`: a run stops if the disk is full."
        )
    else:
        yield Finding("state", "space", OK, found)


def _check_conditional_writes(context: RunContext) -> Iterator[Finding]:
    """Test that only one of several concurrent writers of a state file succeeds.

    All publications of tables depend on this.
    """
    yield Finding("state", "conditions", OK, context.state.files.check_conditions())


def _check_index(context: RunContext) -> Iterator[Finding]:
    """Check that every run with a receipt is complete and listed in the index of its table.

    If a deletion log is missing from its index, its files are missing from the ledger of
    quarantined files.
    """
    wrong = context.state.find_index_errors()
    for sentence in wrong:
        yield Finding("state", "index", FAIL, sentence, "gc-assets doctor --repair")
    lost = context.state.find_damaged_records()
    for sentence in lost:
        yield Finding("state", "records", FAIL, sentence, f"If possible, {RESTORE_BACKUP}.")
    if not wrong and not lost:
        yield Finding("state", "index", OK, "every run with a receipt is in the index of its asset")


def _check_overlaps(context: RunContext) -> Iterator[Finding]:
    pairs = context.overlapping_storages()
    if pairs:
        found = "these storages are the same location, or one contains the other: " + ", ".join(f"{a} and {b}" for a, b in pairs)
        yield Finding(
            "storages", "overlaps", FAIL, found, "Combine them into one storage. Use only one path of a directory that is mounted twice."
        )
    else:
        yield Finding("storages", "overlaps", OK, "no storage contains another, and no directory of a storage is mounted twice")
