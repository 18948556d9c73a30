"""Execute the actions of a plan in batches, so that an apply can be resumed after a crash.

For each batch, the intent is recorded, then the actions are executed, then the outcome of each
action is recorded. This module makes no decisions, since the plan determines what to do with which
key. It works on any subset of a plan's rows, either on Spark executors or in the process that
applies the plan.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError
from gc_assets.core.phases import CHANGED, DENIED, RESTORE, VERDICTS
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.protocol import Lease, Outcome, PlannedAction, Quarantine, UploadAborter
from gc_assets.stores.write_ahead import WriteAheadLog, share_of

# S3 accepts this many keys in a delete request. On a disk, a batch of this size takes a fraction of
# a second, so the lease is checked often enough.
BATCH_SIZE = 1000


def current_user() -> str:
    """Return the name of the operating system's user, to be recorded in leases and logs."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return f"uid {os.getuid()}"


def execute(
    rows: Iterable[PlannedAction],
    actor: Quarantine | UploadAborter,
    log: WriteAheadLog,
    lease: Lease,
    clock: Clock,
    batch_size: int = BATCH_SIZE,
    *,
    repeats_restores: bool = True,
) -> Iterator[Outcome]:
    """Execute the rows of a plan and yield an outcome for each of them.

    Rows completed by an earlier run are not executed again. Their outcomes are taken from the
    log. Failed rows are retried, and so are restores with the outcome `denied` or `changed`, because
    a user may have removed the cause. The order of rows does not matter, but rows of the same hash
    partition (`share_of`) should be adjacent, because the log is read one partition at a time.

    The lease is checked immediately before each batch is executed, and again before its outcomes
    are recorded. If a batch in the log has no outcomes, it is unknown whether it was executed. A
    task that Spark has given up may even still be executing it. The next attempt therefore compares
    all objects of the batch again, and checks the target of a move last.

    Args:
        rows: The rows to execute.
        actor: Executes the actions.
        log: The write-ahead log of the plan.
        lease: The lease of the storage.
        clock: Provides the times of the outcomes.
        batch_size: The number of rows in a batch.
        repeats_restores: If False, restores with the outcome `denied` or `changed` are not retried.

    Raises:
        LeaseLost: If the lease is lost.
        StateError: If another attempt at the same rows has started since this one read the log.
    """
    for share, members in groupby(rows, key=lambda planned: share_of(planned.key, log.shares)):
        history = log.read_history(share)
        known = set(history.batches)
        while batch := list(islice(members, batch_size)):
            pending: list[PlannedAction] = []
            for planned in batch:
                settled = history.settled.get(planned.action_key)
                if settled is None or (repeats_restores and _is_missed_restore(settled)):
                    pending.append(planned)
                else:
                    yield settled
            if not pending:
                continue
            name = log.write_intent(share, lease.token, pending)
            known.add(name)
            resumed = {planned for planned in pending if planned.action_key in history.interrupted}
            lease.check()
            results = actor.act(pending, resumed)
            lease.check()
            log.refuse_concurrent_batches(share, known)
            at = clock.now()
            pairs = zip(pending, results, strict=True)
            outcomes = [Outcome(row, result.verdict, result.error, at, lease.token, result.replan) for row, result in pairs]
            log.write_outcomes(share, name, outcomes)
            yield from outcomes


def _is_missed_restore(outcome: Outcome) -> bool:
    return outcome.planned.action == RESTORE and outcome.verdict in {CHANGED, DENIED}


def require_balance(planned: int, outcomes: Mapping[str, int]) -> None:
    """Check that every planned action has exactly one outcome.

    Raises:
        GcError: Unless planned = done + absent + changed + denied + failed.
    """
    unknown = sorted(set(outcomes) - set(VERDICTS))
    if unknown or sum(outcomes.values()) != planned:
        parts = " + ".join(f"{outcomes.get(verdict, 0):,} {verdict}" for verdict in VERDICTS)
        extra = f", unknown outcomes {unknown}" if unknown else ""
        raise GcError(
            f"outcomes do not add up: {planned:,} planned, found {parts} = {sum(outcomes.values()):,}{extra}; apply again to resume"
        )


def to_planned_actions(batch: pa.RecordBatch) -> Iterator[PlannedAction]:
    """Convert rows of `deletion_plan` to planned actions."""
    names = ("key", "action", "size_bytes", "etag", "version_id", "source_plan_id", "kind")
    return map(PlannedAction, *(batch.column(name).to_pylist() for name in names))


def to_deletion_log(
    outcomes: Iterable[Outcome], plan_id: str, quarantine: str | None, run_id: str | None = None, *, rehearsal: bool = False
) -> pa.RecordBatch:
    """Convert outcomes to rows of `deletion_log`.

    `run_id` is None if the outcomes come from a write-ahead log and have not been published.
    """
    rows = [
        {
            "key": o.planned.key,
            "version_id": o.planned.version_id,
            "run_id": run_id,
            "phase": o.planned.action,
            "outcome": o.verdict,
            "error": o.error,
            "at": o.at,
            "plan_id": plan_id,
            "size_bytes": o.planned.size_bytes,
            "etag": o.planned.etag,
            "source_plan_id": o.planned.source_plan_id,
            "quarantine": quarantine,
            "kind": o.planned.kind,
            "token": o.token,
            "rehearsal": rehearsal,
            "permanent": o.is_permanent,
            "ends_record": quarantine == "deferred" and o.ends_record,
        }
        for o in outcomes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DELETION_LOG.schema)
