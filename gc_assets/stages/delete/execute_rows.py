"""Execute a plan's rows through the write-ahead log, in an order that keeps references valid.

Metadata is removed before the files that it references and restored after them. If a run is
interrupted, no metadata refers to missing files. The module reads neither plans nor lakes, because
each row already states whether and why its file is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.clock import Clock
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED, PURGE, QUARANTINE, RESTORE
from gc_assets.engine.tables import REQUESTS, WrittenParts, spark_schema, write_rows
from gc_assets.lakes.file_kinds import LEAF_RANK, RANKS
from gc_assets.state.arrow_types import STRING
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.execution import execute, to_deletion_log, to_planned_actions
from gc_assets.stores.protocol import Lease, Outcome, PlannedAction, Quarantine, QuarantineMode, Result, Store, UploadAborter
from gc_assets.stores.write_ahead import WriteAheadLog

# The `needed` column explains why the key must stay or come back, and is null otherwise. `in_use` is
# true if a lake needs the key, and false if the row only has to wait. `retry` is true if the row can
# be executed once the plan's history edits succeed. For a purge, `in_quarantine` is true if the
# planned copy is in quarantine. For a quarantine, it is true if another plan has recorded the object
# there. The `refused` column explains why the row must not be executed although no lake needs the
# key, and is null otherwise.
EXECUTION_ROWS: Final = pa.schema(
    [
        ("key", STRING),
        ("action", STRING),
        ("size_bytes", pa.int64()),
        ("etag", STRING),
        ("version_id", STRING),
        ("source_plan_id", STRING),
        ("quarantine", STRING),
        ("kind", STRING),
        ("needed", STRING),
        ("in_use", pa.bool_()),
        ("retry", pa.bool_()),
        ("in_quarantine", pa.bool_()),
        ("refused", STRING),
    ]
)
OUT_OF_DATE: Final = "the plan was out of date before this key was executed"
OUTCOME_ROWS: Final = spark_schema(DELETION_LOG.schema.append(pa.field(REQUESTS, pa.string())))


def order_in_one_task(rows: DataFrame, action: str, share: Column) -> DataFrame:
    """Sort the rows of one action into a single partition, in execution order.

    The order is by ascending rank, so that metadata comes first. For a restore it is reversed.
    """
    rank = F.coalesce(F.try_element_at(F.create_map(*[F.lit(item) for pair in RANKS.items() for item in pair]), "kind"), F.lit(LEAF_RANK))
    return rows.repartition(1).sortWithinPartitions(rank.desc() if action == RESTORE else rank.asc(), share, "key")


def _batch_group(row: tuple[PlannedAction, QuarantineMode]) -> tuple[int, QuarantineMode]:
    """Return a sort key that determines which rows may share a batch of the write-ahead log.

    Rows with different keys are in separate batches, so that one group is durable before the next
    one begins.
    """
    planned, mode = row
    rank = RANKS.get(planned.kind or "", LEAF_RANK)
    return (-rank if planned.action == RESTORE else rank), mode


@dataclass(frozen=True)
class OnlyInterrupted:
    """Wraps a `Quarantine` or `UploadAborter`, so that it only finishes interrupted actions.

    This is used when a plan is closed, for restores and lookups only. Actions that cannot be
    finished become `denied`, so that the plan ends. A later plan may include them.
    """

    inner: Quarantine | UploadAborter

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        ended = map(_deny_failed, self.inner.act([planned for planned in batch if planned in resumed], resumed))
        late = Result(DENIED, OUT_OF_DATE, replan=True)
        return [next(ended) if planned in resumed else late for planned in batch]


def _deny_failed(result: Result) -> Result:
    return (
        result
        if result.verdict != FAILED
        else Result(DENIED, f"{result.error}; the plan is out of date, so this was the last attempt", replan=True)
    )


@dataclass(frozen=True)
class _RestoreNeeded:
    """Handles rows that must not be executed.

    If an earlier run of the plan may have moved the file, it is restored, unless another plan has
    the object in quarantine (`quarantined`) and it is not in use. Files that were not moved stay in
    place. If an earlier run purged a file in `quarantined`, its outcome is `done`. Otherwise, the
    outcome depends on the row:

    - `failed` for keys in `retried`, which can be executed once the history edits succeed,
    - `denied` for keys in `refused`, which should not have been in the plan,
    - `changed` for all others. If the key is not in `in_use`, the action only has to wait.

    If a file cannot be restored because its name is in use, it stays in quarantine. Its outcome is
    `done`, so that the ledger contains it, or an error if the store cannot find it in quarantine.
    """

    inner: Quarantine
    plan_id: str
    reasons: Mapping[str, str]
    in_use: Collection[str]
    retried: Collection[str]
    refused: Collection[str]
    quarantined: Collection[str]

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        moved = [row for row in batch if row in resumed and row.action == QUARANTINE and not self._is_held(row.key)]
        purged = self._look_up([row for row in batch if row in resumed and row.action == PURGE and row.key in self.quarantined])
        back = self.inner.act([replace(row, action=RESTORE, source_plan_id=self.plan_id) for row in moved])
        restored = dict(zip(moved, back, strict=True))
        taken = [row for row in moved if restored[row].verdict == CHANGED or restored[row].is_replaced]
        held = dict(zip(taken, self.inner.act(taken, taken), strict=True))
        return [purged.get(row) or self._result(row, restored.get(row), held.get(row)) for row in batch]

    def _is_held(self, key: str) -> bool:
        return key in self.quarantined and key not in self.in_use

    def _look_up(self, purges: Sequence[PlannedAction]) -> dict[PlannedAction, Result]:
        """Return the results of purges that were made, or that cannot be looked up."""
        if not purges:
            return {}
        # No object has this identity and size, so nothing is removed.
        checked = [replace(row, etag="", size_bytes=-1) for row in purges]
        found = zip(purges, self.inner.act(checked, checked), strict=True)
        return {
            row: result if result.verdict == DONE else Result(FAILED, f"{self.reasons[row.key]}, and the lookup failed: {result.error}")
            for row, result in found
            if result.verdict in {DONE, FAILED}
        }

    def _result(self, row: PlannedAction, restored: Result | None, held: Result | None) -> Result:
        if held is not None and held.verdict not in {ABSENT, CHANGED}:
            return held
        if restored is not None and restored.verdict not in {DONE, ABSENT, CHANGED}:
            return Result(FAILED, f"{self.reasons[row.key]}, and the restore failed: {restored.error}")
        verdict = FAILED if row.key in self.retried else DENIED if row.key in self.refused else CHANGED
        return Result(verdict, self.reasons[row.key], replan=verdict != FAILED and row.key not in self.in_use)


@dataclass(frozen=True)
class _EndRecords:
    """Handles restores of versions that no lake needs and that were visible to the planning run.

    If the version is still visible, the outcome `done` ends its quarantine record. No delete marker
    is removed, because a user may have placed it since.

    Attributes:
        deferred: The quarantine in `deferred` mode, which compares objects and moves nothing.
    """

    deferred: Quarantine

    def act(self, batch: Sequence[PlannedAction], resumed: Collection[PlannedAction] = ()) -> list[Result]:
        hidden = "is under another delete marker now, and no lake needs it; left alone. `gc-assets restore` removes the marker"
        return [
            Result(CHANGED, f"restore {row.key!r}: version {row.version_id} {hidden}") if result.verdict == ABSENT else result
            for row, result in zip(batch, self.deferred.act(batch, resumed), strict=True)
        ]


@dataclass(frozen=True)
class RowExecutor:
    """Executes the rows of a partition (`EXECUTION_ROWS` columns).

    Files that the verification mark finds in use are never quarantined or purged. Files that have
    left the quarantine are not purged. Such rows have the outcome `changed`, or `failed` if `retry`
    is set. Refused rows have the outcome `denied`. If an interrupted run moved files of any of
    these rows, the files are restored. Outcomes recorded by earlier runs are not changed. In mode
    `versioned`, a restore that no lake needs only ends the quarantine record of a version that is
    visible.

    The caller puts the batches in order, and rows within a batch are executed in rank order. The
    task runs on Spark executors or in the driver.

    Raises:
        StateError: If the write-ahead log is not visible to the process that runs the task.
    """

    store: Store
    log: WriteAheadLog
    lease: Lease
    clock: Clock
    plan_id: str
    run_id: str | None = None
    only_interrupted: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.log.require_visible()
        for batch in batches:
            spared_rows = list(self._find_spared(batch))
            spared, refused = {key: reason for key, reason, _ in spared_rows}, {key for key, _, is_refused in spared_rows if is_refused}
            in_use, retried = (set(batch.column("key").filter(batch.column(name)).to_pylist()) for name in ("in_use", "retry"))
            quarantined = set(batch.column("key").filter(batch.column("in_quarantine")).to_pylist())
            unneeded = set(batch.column("key").filter(batch.column("needed").is_null()).to_pylist())
            rows = sorted(zip(to_planned_actions(batch), batch.column("quarantine").to_pylist(), strict=True), key=_batch_group)
            for (_, mode), members in groupby(rows, key=_batch_group):
                quarantine = self.store.quarantine(mode, self.plan_id)
                mine = [row for row, _ in members]
                back = _RestoreNeeded(quarantine, self.plan_id, spared, in_use, retried, refused, quarantined)
                hidden = {row.key for row in mine if mode == "versioned" and row.action == RESTORE and row.key in unneeded}
                ended = _EndRecords(self.store.quarantine("deferred", self.plan_id)) if hidden else quarantine
                outcomes = [
                    *self._execute((row for row in mine if row.key not in spared.keys() | hidden), quarantine),
                    *self._execute((row for row in mine if row.key in hidden), ended),
                    *execute((row for row in mine if row.key in spared), back, self.log, self.lease, self.clock),
                ]
                yield to_deletion_log(outcomes, self.plan_id, mode, self.run_id, rehearsal=self.clock.is_rehearsal)

    def _execute(self, rows: Iterable[PlannedAction], actor: Quarantine) -> Iterator[Outcome]:
        if self.only_interrupted:
            return execute(rows, OnlyInterrupted(actor), self.log, self.lease, self.clock, repeats_restores=False)
        return execute(rows, actor, self.log, self.lease, self.clock)

    def _find_spared(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, bool]]:
        """Yield keys that must not be executed, with the reason and whether the row is refused."""
        columns = ("key", "action", "needed", "in_quarantine", "refused")
        for key, action, needed, in_quarantine, refused in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            if action != RESTORE and needed is not None:
                yield key, needed, False
            elif action == PURGE and not in_quarantine:
                yield key, "no longer in quarantine", False
            elif action != RESTORE and refused is not None:
                yield key, refused, True


def execute_in_process(act: RowExecutor, rows: pa.Table, run: TableRun, files: Files, totals_by: Sequence[str]) -> WrittenParts:
    """Execute a small number of rows (`EXECUTION_ROWS` columns) in the driver, as one batch.

    Args:
        totals_by: Columns of `deletion_log` by which the outcomes are counted.

    Returns:
        The outcomes, written as parts of `run`.
    """
    batches = rows.sort_by("key").combine_chunks().to_batches()
    return write_rows(pa.Table.from_batches(act(iter(batches)), DELETION_LOG.schema), DELETION_LOG, run, files, totals_by=totals_by)
