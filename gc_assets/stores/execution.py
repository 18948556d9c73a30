"""Executes planned actions batch by batch: intent, action, outcome. Resumes after a crash, and
closes the books.

Decides nothing: the plan says which keys, and what to do with them. Runs on any cut of the plan's
rows, in executors or in the process that applies it.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Final

import pyarrow as pa

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GcError
from gc_assets.core.phases import VERDICTS
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.protocol import Lease, Outcome, PlannedAction, Quarantine, UploadAborter
from gc_assets.stores.write_ahead import WriteAheadLog, share_of

# S3 deletes at most this many keys a request; on a disk it is a fraction of a second between two
# looks at the lease.
BATCH_SIZE = 1000
_log: Final = logging.getLogger(__name__)


def current_user() -> str:
    """Returns who runs this, as leases and logs name them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a uid may have no name
        return f"uid {os.getuid()}"


@contextmanager
def release_on_exit(lease: Lease) -> Generator[None]:
    """Gives a lease back when the work under it ends.

    Where the work failed and the lease cannot be given back either, the first failure is raised and
    the other one stands in the log: such a lease expires by itself.
    """
    try:
        yield
    except BaseException:
        try:
            lease.release()
        except (OSError, GcError) as error:
            _log.warning("lease %d was not given back and expires by itself: %s", lease.token, error)
        raise
    lease.release()


def execute(
    rows: Iterable[PlannedAction],
    actor: Quarantine | UploadAborter,
    log: WriteAheadLog,
    lease: Lease,
    clock: Clock,
    batch_size: int = BATCH_SIZE,
) -> Iterator[Outcome]:
    """Yields one outcome per row.

    What earlier runs settled is yielded from the log and not touched again. What failed is tried
    again. Correct for rows in any order; fast where rows of one share (`share_of`) follow each
    other.

    The lease is looked at right before a batch is acted on, and again before its outcomes count.
    Raises `GateRefused` where it is lost, and `StateError` where another attempt of the same rows
    began since this one read the log: an engine may give up a task that still runs. A batch without
    outcomes may have been acted on, or may be acted on still: who comes next looks at each of its
    objects, last of all where they are moved to.
    """
    for share, members in groupby(rows, key=lambda planned: share_of(planned.key, log.shares)):
        history = log.read_history(share)
        known = set(history.batches)
        while batch := list(islice(members, batch_size)):
            todo: list[PlannedAction] = []
            for planned in batch:
                settled = history.settled.get(planned.action_key)
                if settled is None:
                    todo.append(planned)
                else:
                    yield settled
            if not todo:
                continue
            name = log.write_intent(share, lease.token, todo)
            known.add(name)
            resumed = {planned for planned in todo if planned.action_key in history.interrupted}
            lease.check()
            results = actor.act(todo, resumed)
            lease.check()
            log.refuse_concurrent_batches(share, known)
            at = clock.now()
            outcomes = [
                Outcome(planned, result.verdict, result.error, at, lease.token) for planned, result in zip(todo, results, strict=True)
            ]
            log.write_outcomes(share, name, outcomes)
            yield from outcomes


def require_balance(planned: int, outcomes: Mapping[str, int]) -> None:
    """Checks that planned = done + absent + changed + denied + failed. Raises `GcError` with the
    figures otherwise.
    """
    unknown = sorted(set(outcomes) - set(VERDICTS))
    if unknown or sum(outcomes.values()) != planned:
        parts = " + ".join(f"{outcomes.get(verdict, 0):,} {verdict}" for verdict in VERDICTS)
        more = f", unknown outcomes {unknown}" if unknown else ""
        raise GcError(
            f"the books do not balance: {planned:,} planned, found {parts} = {sum(outcomes.values()):,}{more}; apply again to resume"
        )


def to_planned_actions(batch: pa.RecordBatch) -> Iterator[PlannedAction]:
    """Returns the rows of a batch with the columns of `deletion_plan`."""
    names = ("key", "action", "size_bytes", "etag", "version_id", "source_plan_id", "kind")
    return map(PlannedAction, *(batch.column(name).to_pylist() for name in names))


def to_deletion_log(
    outcomes: Iterable[Outcome], plan_id: str, quarantine: str | None, run_id: str | None = None, *, rehearsal: bool = False
) -> pa.RecordBatch:
    """Returns outcomes as a batch with the columns of `deletion_log`. Without `run_id` no run has
    done it yet: the outcome comes from a write-ahead log.
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
        }
        for o in outcomes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DELETION_LOG.schema)
