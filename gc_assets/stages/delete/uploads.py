"""Plan and execute the abort of unfinished multipart uploads.

Like a purge, an abort cannot be undone. No upload is aborted while a table is unreadable, unless a
user has set that table aside. As with files, a lake must claim the key, and no foreign metadata may
refer to its location. The grace period counts from the last action of the upload's writer, and must
also be over according to the store's clock.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
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
from gc_assets.stages.delete.execute_rows import OUT_OF_DATE, OnlyInterrupted
from gc_assets.stages.delete.foreign_findings import ForeignFindings
from gc_assets.stages.delete.foreign_rows import ForeignRows
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.delete.revalidate import REFUSED, Revalidation
from gc_assets.stages.records.denials import denied_uploads
from gc_assets.stages.records.plans import StoredPlan
from gc_assets.stages.sweep.ages import Ages
from gc_assets.stages.sweep.claims import claims_of
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import UPLOADS, UPLOADS_SIDE
from gc_assets.stores.execution import execute, to_deletion_log
from gc_assets.stores.protocol import Lease, PlannedAction, Result, UploadAborter
from gc_assets.stores.write_ahead import ActionKey, WriteAheadLog, share_of

# Maximum number of uploads in one plan, oldest first. Each costs four requests, and reviewers have
# to be able to read the list.
MAX_PLANNED: Final = 1_000
_log: Final = logging.getLogger(__name__)


def find_old_uploads(
    inputs: PlanInputs, cutoff: datetime, foreign: ForeignFindings, check_foreign: Callable[[pa.Table], ForeignRows] | None = None
) -> tuple[pa.Table, int]:
    """Find the unfinished uploads that this run's plan should abort.

    If the store fails to list its uploads, a warning is logged and none are planned. If the run
    refers to an earlier listing, none are planned either.

    Args:
        cutoff: Uploads whose writer was active after this time are not planned.
        foreign: Foreign metadata, whose tables may have started the uploads under its prefixes.
        check_foreign: Prepares the check whether uploads (`UPLOADS` columns) may be foreign.

    Returns:
        The uploads with the `UPLOADS` columns, and how many more are left for a later plan.
    """
    nothing, context, storage_name = (UPLOADS.empty_table(), 0), inputs.context, inputs.storage
    if inputs.listing.is_earlier or inputs.blocks_purges or not context.storage(storage_name).abort_uploads:
        return nothing
    store = context.store(storage_name)
    claims = functools.cache(lambda: claims_of(context, storage_name, [*inputs.refs, *inputs.live]))
    try:
        found = store.find_old_uploads(cutoff, lambda key: claims().owner_of(key) is not None, MAX_PLANNED)
        if not found.uploads:
            return nothing
        ages = Ages.of(context, cutoff, inputs.refs, inputs.clock_lead)
        revalidation = _apply_store_clock(Revalidation(claims(), ages, store), context, storage_name)
    except (OSError, StoreError) as error:
        _log.warning("%s: no unfinished upload is planned: %s", storage_name, getattr(error, "strerror", None) or error)
        return nothing
    columns = {name: [getattr(item, name) for item in found.uploads] for name in UPLOADS.names if name != "lake"}
    rows = pa.table({**columns, "lake": claims().resolve(pa.array(columns["key"], pa.string()))[0]}).cast(UPLOADS)
    if check_foreign is not None:
        revalidation = replace(revalidation, foreign=check_foreign(rows))
    rows = rows.filter(pc.is_null(_find_refused(revalidation, foreign, rows)))
    denied = denied_uploads(context, storage_name)
    names = zip(rows.column("key").to_pylist(), rows.column("upload_id").to_pylist(), strict=True)
    return rows.filter(pa.array([name not in denied for name in names], pa.bool_())), found.unexamined


def upload_totals(rows: pa.Table, later: int) -> Uploads:
    """Summarize uploads for a plan header."""
    return Uploads(count=rows.num_rows, bytes=pc.sum(rows.column("size_bytes")).as_py() or 0, later=later, digest=f"{digest(rows):016x}")


def planned_uploads(state: State, plan: PublishedTable) -> pa.Table:
    """Read the plan's uploads (`UPLOADS` columns), oldest first."""
    return read_parts(state.files, plan.paths(UPLOADS_SIDE), UPLOADS).sort_by([("initiated", "ascending"), ("key", "ascending")])


def approved_uploads(state: State, plan: StoredPlan) -> pa.Table:
    """Read the uploads that a plan aborts, and verify that they are the approved ones.

    Raises:
        StateError: If their number or digest differs from the approved one.
    """
    rows, approved = planned_uploads(state, plan.published), plan.header.uploads
    found = f"{digest(rows):016x}"
    if rows.num_rows != approved.count or (approved.count and found != approved.digest):
        raise StateError(
            f"Cannot apply plan {plan.header.plan_id[:12]}: its uploads in {plan.published.path} were changed after the plan "
            f"was made (digest {found}, approved {approved.digest}). Make a new plan with `gc-assets run`."
        )
    return rows


@dataclass(frozen=True, slots=True)
class UploadExecution:
    """Aborts the uploads of a plan in one run of an apply. It returns rows of `deletion_log`.

    Attributes:
        run_id: The run of `deletion_log` that the outcomes belong to.
    """

    context: RunContext
    plan: StoredPlan
    log: WriteAheadLog
    lease: Lease
    run_id: str

    def abort(self, revalidation: Revalidation, foreign: ForeignFindings, unreadable: Sequence[Unreadable]) -> pa.RecordBatch:
        """Abort the plan's uploads and return their outcomes.

        Args:
            revalidation: The checks of the verification mark.
            foreign: Foreign metadata that the newest sweeps found.
            unreadable: Tables that the verification mark could not read.

        Raises:
            LeaseLost: If the lease is lost.
        """
        header, rows = self.plan.header, approved_uploads(self.context.state, self.plan)
        log_activity(f"abort: {header.uploads}")
        refused = _find_refused(_apply_store_clock(revalidation, self.context, header.storage), foreign, rows).to_pylist()
        planned = _abort_actions(rows)
        skipped = {row.action_key: Result(DENIED, why, replan=True) for row, why in zip(planned, refused, strict=True) if why}
        if blocking := [item for item in unreadable if item.blocks_purges]:
            names = ", ".join(item.name for item in blocking[:3])
            skipped = {row.action_key: Result(CHANGED, f"{names} cannot be read, so the upload is deferred") for row in planned}
        return self._execute(planned, skipped, only_interrupted=False)

    def end(self) -> pa.RecordBatch:
        """Return an outcome for each planned upload, without aborting any more uploads.

        An upload in an interrupted batch may have been aborted already, so it is looked up.
        """
        planned = _abort_actions(approved_uploads(self.context.state, self.plan))
        skipped = {row.action_key: Result(DENIED, OUT_OF_DATE, replan=True) for row in planned}
        return self._execute(planned, skipped, only_interrupted=True)

    def _execute(self, planned: list[PlannedAction], skipped: Mapping[ActionKey, Result], *, only_interrupted: bool) -> pa.RecordBatch:
        header, clock = self.plan.header, self.context.clock
        actor = _SkipRefused(self.context.store(header.storage).upload_aborter(), skipped)
        planned = sorted(planned, key=lambda row: share_of(row.key, self.log.shares))
        outcomes = execute(planned, OnlyInterrupted(actor) if only_interrupted else actor, self.log, self.lease, clock)
        counted = track(outcomes, "uploads", len(planned))
        return to_deletion_log(counted, header.plan_id, None, self.run_id, rehearsal=clock.is_rehearsal)


def _abort_actions(uploads: pa.Table) -> list[PlannedAction]:
    return [PlannedAction(row["key"], ABORT, row["size_bytes"], row["etag"], row["upload_id"]) for row in uploads.to_pylist()]


def _apply_store_clock(revalidation: Revalidation, context: RunContext, storage_name: str) -> Revalidation:
    """Limit the cut-off of a revalidation to the grace cut-off according to the store's clock."""
    now = context.clock.now() if context.clock.is_rehearsal else revalidation.store.now()
    cutoff = min(revalidation.ages.cutoff, now - context.storage(storage_name).grace)
    return replace(revalidation, ages=replace(revalidation.ages, cutoff=cutoff))


def _find_refused(revalidation: Revalidation, foreign: ForeignFindings, rows: pa.Table) -> pa.ChunkedArray:
    """Return a column with the reason why each upload must not be aborted, or null if it may be."""
    batches = rows.select(["key", "etag", "lake"]).append_column("action", pa.repeat(ABORT, rows.num_rows)).to_batches()
    refused = pa.chunked_array([batch.column(REFUSED) for batch in revalidation(iter(batches))], pa.string())
    return pc.coalesce(refused, foreign.find_reasons(rows.column("key")))


@dataclass(frozen=True)
class _SkipRefused:
    """Wraps an aborter and leaves the uploads in `skipped` alone.

    These uploads are looked up nevertheless, because an interrupted run may have aborted them when
    that was still allowed. If it did not, their outcome is the one in `skipped`.
    """

    inner: UploadAborter
    skipped: Mapping[ActionKey, Result]

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        # An empty identity does not match any upload, so these uploads are only looked up.
        checked = {row: replace(row, etag="") if row.action_key in self.skipped else row for row in batch}
        results = self.inner.act(list(checked.values()), {checked[row] for row in batch if row in resumed})
        return [
            self.skipped.get(row.action_key, result) if result.verdict == CHANGED else result
            for row, result in zip(batch, results, strict=True)
        ]
