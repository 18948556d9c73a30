"""The uploads in parts that a plan aborts: chooses them, and aborts them when the plan is executed.

An abort is final, as a purge is. So there is none while anything cannot be read, and an upload is
older than the grace period by the store's clock too, from what its writer did last. It needs a lake
that claims its key, as a file does.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError, StoreError
from gc_assets.core.hashing import digest
from gc_assets.core.phases import ABORT, CHANGED, DENIED
from gc_assets.core.plan import Unreadable, Uploads
from gc_assets.engine.progress import log_activity, track
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.execute_rows import OnlyInterrupted
from gc_assets.stages.delete.revalidate import REFUSED, Revalidation
from gc_assets.stages.records.plans import StoredPlan
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import UPLOADS, UPLOADS_SIDE
from gc_assets.stores.execution import execute, to_deletion_log
from gc_assets.stores.protocol import Lease, PlannedAction, Result, UploadAborter
from gc_assets.stores.write_ahead import Act, WriteAheadLog, share_of

# Uploads that one plan aborts at most, the oldest. Each costs four requests, and a plan lists them
# for a person to read.
MAX_PLANNED: Final = 1_000
_log: Final = logging.getLogger(__name__)


def find_old_uploads(
    context: RunContext,
    storage_name: str,
    cutoff: datetime,
    refs: list[PublishedTable],
    live: list[PublishedTable],
    unreadable: Sequence[Unreadable],
) -> tuple[pa.Table, int]:
    """Returns the uploads that a plan of tonight aborts (columns `UPLOADS`), and how many more wait
    for a later plan. Where they cannot be listed there are none, and the log says why.
    """
    nothing = UPLOADS.empty_table(), 0
    if unreadable or not context.storage(storage_name).abort_uploads:
        return nothing
    store = context.store(storage_name)
    claims = functools.cache(lambda: claims_of(context, storage_name, [*refs, *live]))
    try:
        found = store.find_old_uploads(cutoff, lambda key: claims().owner_of(key) is not None, MAX_PLANNED)
        if not found.uploads:
            return nothing
        judge = _by_the_stores_clock(Revalidation(claims(), Ages.of(context, cutoff, refs), store), context, storage_name)
    except (OSError, StoreError) as error:
        _log.warning("%s: no unfinished upload is planned: %s", storage_name, getattr(error, "strerror", None) or error)
        return nothing
    columns = {name: [getattr(item, name) for item in found.uploads] for name in UPLOADS.names if name != "lake"}
    rows = pa.table({**columns, "lake": claims().resolve(pa.array(columns["key"], pa.string()))[0]}).cast(UPLOADS)
    return rows.filter(pc.is_null(_refused(judge, rows))), found.unexamined


def upload_totals(rows: pa.Table, later: int) -> Uploads:
    """Returns the uploads of a plan for its header."""
    return Uploads(count=rows.num_rows, bytes=pc.sum(rows.column("size_bytes")).as_py() or 0, later=later, digest=f"{digest(rows):016x}")


def planned_uploads(state: State, plan: PublishedTable) -> pa.Table:
    """Returns the plan's uploads (columns `UPLOADS`), the oldest first."""
    return read_parts(state.files, plan.paths(UPLOADS_SIDE), UPLOADS).sort_by([("initiated", "ascending"), ("key", "ascending")])


def approved_uploads(state: State, plan: StoredPlan) -> pa.Table:
    """Returns the plan's uploads. Raises `StateError` where they are not those that were approved."""
    rows, approved = planned_uploads(state, plan.published), plan.header.uploads
    found = f"{digest(rows):016x}"
    if rows.num_rows != approved.count or (approved.count and found != approved.digest):
        raise StateError(
            f"plan {plan.header.plan_id}: its uploads have the digest {found}, it was approved with {approved.digest}; "
            f"{plan.published.path} was changed after the plan was made. Make a new one with `gc-assets run`."
        )
    return rows


def abort_uploads(
    context: RunContext,
    plan: StoredPlan,
    judge: Revalidation,
    unreadable: Sequence[Unreadable],
    log: WriteAheadLog,
    lease: Lease,
    run_id: str,
    *,
    only_interrupted: bool,
) -> pa.RecordBatch:
    """Aborts the plan's uploads, and returns what became of them (columns of `deletion_log`).

    `judge` is that of the fresh mark, and `unreadable` is what it could not read. Raises `GateRefused`
    where the lease is lost.
    """
    header, rows = plan.header, approved_uploads(context.state, plan)
    log_activity(f"abort: {header.uploads}")
    refused = _refused(_by_the_stores_clock(judge, context, header.storage), rows).to_pylist()
    planned = [PlannedAction(row["key"], ABORT, row["size_bytes"], row["etag"], row["upload_id"]) for row in rows.to_pylist()]
    spared = {row.action_key: Result(DENIED, why) for row, why in zip(planned, refused, strict=True) if why}
    if unreadable:
        names = ", ".join(item.name for item in unreadable[:3])
        spared = {row.action_key: Result(CHANGED, f"{names} cannot be read, so it waits") for row in planned}
    actor = _Spared(context.store(header.storage).upload_aborter(), spared)
    planned.sort(key=lambda row: share_of(row.key, log.shares))
    outcomes = execute(planned, OnlyInterrupted(actor) if only_interrupted else actor, log, lease, context.clock)
    counted = track(outcomes, "uploads", len(planned))
    return to_deletion_log(counted, header.plan_id, None, run_id, rehearsal=context.clock.is_rehearsal)


def _by_the_stores_clock(judge: Revalidation, context: RunContext, storage_name: str) -> Revalidation:
    """Returns a judge whose cut-off is not later than that of the store's own clock."""
    now = context.clock.now() if context.clock.is_rehearsal else judge.store.now()
    cutoff = min(judge.ages.cutoff, now - context.storage(storage_name).grace)
    return replace(judge, ages=replace(judge.ages, cutoff=cutoff))


def _refused(judge: Revalidation, rows: pa.Table) -> pa.Array:
    """Returns why each upload must not be aborted, null where it may be."""
    batches = rows.select(["key", "etag", "lake"]).append_column("action", pa.repeat(ABORT, rows.num_rows)).to_batches()
    return pa.chunked_array([batch.column(REFUSED) for batch in judge(iter(batches))], pa.string())


@dataclass(frozen=True)
class _Spared:
    """Leaves alone the uploads that must not be aborted, with the outcomes `spared`, but for
    looking whether they are there: an interrupted run may have aborted them while it might.
    """

    inner: UploadAborter
    spared: Mapping[Act, Result]

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        # No upload has that identity, so none is aborted.
        asked = {row: replace(row, etag="") if row.action_key in self.spared else row for row in batch}
        results = self.inner.act(list(asked.values()), {asked[row] for row in batch if row in resumed})
        return [
            self.spared.get(row.action_key, result) if result.verdict == CHANGED else result
            for row, result in zip(batch, results, strict=True)
        ]
