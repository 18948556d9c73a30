"""Find quarantined files that the ledger does not contain, and record them there.

This is necessary in three situations:

- The state was lost or restored from a backup, so the logs of later plans are missing. Their files
  are still in the trash of the storage, with their keys and plan ids.
- A backup was copied over the state. Logs of later plans may then exist even though the state's
  list of plans does not include them.
- The storage was copied to another disk, so the identities of files in the trash differ from the
  ones in the ledger.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from typing import Final

import pyarrow as pa

from gc_assets.core.phases import ABSENT, DONE, QUARANTINE
from gc_assets.core.plan import Amount
from gc_assets.core.user_names import require_name
from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.ledger import LogReader, newest_of_copies
from gc_assets.stages.records.plans import record_ended, unfinished_plans, unknown_plans
from gc_assets.stages.records.quarantine_clock import quarantine_clock
from gc_assets.state.journal import PublishedTable
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.state.summaries import DeletionLogSummary
from gc_assets.stores.execution import to_deletion_log
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.protocol import Outcome, PlannedAction, Store
from gc_assets.stores.trash import TrashedObject, list_trash
from gc_assets.stores.write_ahead import WriteAheadLog, find_log

# A check examines at most this number of files in the trash.
MAX_EXAMINED: Final = 100_000
_RECORD: Final = ["by", "key", "phase", "outcome", "etag", "size_bytes", "rehearsal"]
_PLAN_ID: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class UnknownFiles:
    """Files in the trash that are missing from both the ledger and the logs of unfinished plans.

    Attributes:
        is_complete: False if the search stopped at its limit.
        copies: Files in the trash with the size, but another identity (etag) than the ledger
            records. They cannot be restored until they are recorded again.
        damaged: Files in the trash with another size than recorded, even if a restore or purge has
            ended the record. They are never adopted, because they could replace a live file.
    """

    files: Sequence[TrashedObject]
    is_complete: bool
    copies: Sequence[TrashedObject] = ()
    damaged: Sequence[TrashedObject] = ()

    @property
    def amount(self) -> Amount:
        return Amount(files=len(self.files), bytes=sum(item.size_bytes for item in self.files))

    @property
    def plan_ids(self) -> list[str]:
        return sorted({item.plan_id for item in self.files})


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """The result of an adoption.

    Attributes:
        published: The published `deletion_log`, or None if no file was adopted.
        adopted: The files recorded in the ledger.
        skipped: Objects in the trash that gc-assets did not put there.
        ended: Ids of partly applied plans that were missing from the state and have been ended.
    """

    published: PublishedTable | None
    adopted: UnknownFiles
    skipped: Sequence[TrashedObject]
    ended: Sequence[str] = ()


def find_unknown_files(context: RunContext, storage_name: str, limit: int | None = None) -> UnknownFiles:
    """Find files in a storage's trash that are missing from the ledger.

    Args:
        limit: Examine at most this number of files. None examines all.

    Raises:
        OSError: If the trash cannot be listed.
    """
    listed = list_trash(context.objects(), context.storage(storage_name).location)
    found = list(islice(listed, limit))
    is_complete = next(listed, None) is None
    if not found:
        return UnknownFiles((), is_complete)
    entries = newest_of_copies(LogReader.of(context.state, storage_name).read_all())
    records = {(row["by"], row["key"]): row for row in entries.select(_RECORD).to_pylist()}
    in_logs = set(unfinished_plans(context.state, storage_name)) - set(unknown_plans(context.config, storage_name))
    unknown, damaged, etags = list[TrashedObject](), list[TrashedObject](), dict[TrashedObject, str | None]()
    for item in found:
        record = records.get((item.plan_id, item.key))
        if item.plan_id in in_logs:
            continue
        is_held, is_lost = (record is not None and record[name] == value for name, value in (("phase", QUARANTINE), ("outcome", ABSENT)))
        if record is not None and (is_held or is_lost) and record["size_bytes"] != item.size_bytes:
            damaged.append(item)
        elif record is None or not is_held:
            unknown.append(item)
        elif bool(record["rehearsal"]) == context.clock.is_rehearsal:
            etags[item] = record["etag"]
    return UnknownFiles(unknown, is_complete, tuple(_find_copies(context.store(storage_name), etags)), damaged)


def _find_copies(store: Store, etags: Mapping[TrashedObject, str | None]) -> Iterator[TrashedObject]:
    """Yield files in the trash whose identity (etag) differs from the one in the ledger.

    Each check takes one request to the store. Copying a disk changes all files, so if a plan's
    first file has not changed, its other files are not checked.
    """

    def differs(item: TrashedObject) -> bool:
        return store.trashed_etag(item.plan_id, item.key) not in {None, etags[item]}

    for _, items in groupby(sorted(etags, key=lambda item: (item.plan_id, item.key)), key=lambda item: item.plan_id):
        first, *others = items
        if differs(first):
            yield first
            yield from filter(differs, others)


@log_progress(DELETION_LOG)
def adopt_files(context: RunContext, storage_name: str, by: str, comment: str = "") -> AdoptionResult:
    """Record unknown files in a storage's trash as if they were quarantined now.

    Afterwards they can be restored, and later plans can purge them after `quarantine_days`. Partly
    applied plans that are missing from the state are ended. In modes other than `trash`, the files
    are found in the logs of these plans.

    Raises:
        UsageError: If `by` is empty.
        GateRefused: If another process holds the storage's lease, or the storage does not allow
            rehearsals.
    """
    require_name(by, "adopting files", comment)
    refuse_rehearsal(context, storage_name)
    state, store = context.state, context.store(storage_name)
    run = start_run(context, storage_name, DELETION_LOG)
    adoption_id = f"adopt-{run.run_id}"
    lease = take_lease(context, storage_name, store, adoption_id, by.strip())
    with hold_lease(lease):
        unknown = find_unknown_files(context, storage_name)
        files = (*unknown.files, *unknown.copies)
        etags = {item: store.trashed_etag(item.plan_id, item.key) if _PLAN_ID.fullmatch(item.plan_id) else None for item in files}
        skipped = [item for item in files if etags[item] is None]
        now, ended = quarantine_clock(context, storage_name).now(), unknown_plans(context.config, storage_name)
        moved = defaultdict[tuple[str, str], list[Outcome]](list)
        for item, etag in etags.items():
            if etag is not None:
                action = PlannedAction(item.key, QUARANTINE, item.size_bytes, etag)
                moved[item.plan_id, "trash"].append(Outcome(action, DONE, None, now, lease.token))
        for plan_id in ended:
            log = find_log(state.files, f"{storage_name}/apply/{plan_id}", plan_id)
            mode = (log.quarantine if log is not None else None) or context.storage(storage_name).quarantine
            if log is not None and mode != "trash":
                moved[plan_id, mode] += _read_moved(log, now, lease.token)
        adopted = UnknownFiles(
            tuple(
                TrashedObject(plan_id, outcome.planned.key, outcome.planned.size_bytes)
                for (plan_id, _), outcomes in moved.items()
                for outcome in outcomes
            ),
            unknown.is_complete,
        )
        if not adopted.files and not ended:
            return AdoptionResult(None, adopted, skipped)
        record = {"by": by.strip(), "at": now.isoformat(), "comment": comment.strip(), "plans": adopted.plan_ids, "ended": ended}
        state.files.replace(f"{storage_name}/adoptions/{run.run_id}.json", json.dumps(record, indent=1).encode())
        lease.check()
        published = None
        if adopted.files:
            is_rehearsal = context.clock.is_rehearsal
            batches = [to_deletion_log(rows, plan_id, mode, run.run_id, rehearsal=is_rehearsal) for (plan_id, mode), rows in moved.items()]
            written = write_rows(pa.Table.from_batches(batches), DELETION_LOG, run, state.files)
            summary = DeletionLogSummary(plan_id=adoption_id, approved_by=by.strip(), by_outcome={f"{QUARANTINE}/{DONE}": adopted.amount})
            balances = [Balance(name="adopted files", expected=len(adopted.files), found=written.rows)]
            published = publish(state, run, written, context.clock, balances=balances, summary=summary, unsafe=context.unsafe)
        for plan_id in ended:  # only after their files are recorded
            record_ended(state, storage_name, plan_id, {"at": now.isoformat(), "adopted_by": by.strip()})
        return AdoptionResult(published, adopted, skipped, ended)


def _read_moved(log: WriteAheadLog, at: datetime, token: int) -> Iterator[Outcome]:
    """Yield the moves to quarantine in a write-ahead log. Moves without an outcome count as done."""
    for share in range(log.shares):
        for planned, outcome in log.read_quarantined(share):
            yield outcome or Outcome(planned, DONE, None, at, token)
