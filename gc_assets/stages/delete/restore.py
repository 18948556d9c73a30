"""Restore quarantined files by plan, prefix or key.

No approval is required. If another object has taken a file's name, the file stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import UsageError
from gc_assets.core.phases import DONE, QUARANTINE, RESTORE, RESTORE_PREFIX
from gc_assets.core.plan import PlanSummary
from gc_assets.engine.progress import count_progress, log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import Totals, WrittenParts, parallelism, publish, spark_schema, write_frame
from gc_assets.engine.tasks import BudgetedTask, fits_in_process, read_in_process
from gc_assets.stages.delete.execute_rows import EXECUTION_ROWS, OUTCOME_ROWS, RowExecutor, execute_in_process, order_in_one_task
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.ledger import LOG_ENTRIES, CopySelection, LogReader, newest_of_each_key
from gc_assets.stages.records.plans import list_plans, record_restored, unfinished_plans
from gc_assets.state.journal import PublishedTable, State, TableRun
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.state.summaries import DeletionLogSummary
from gc_assets.stores.execution import current_user, to_deletion_log
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.protocol import Outcome
from gc_assets.stores.write_ahead import KEYS_PER_SHARE, WriteAheadLog, open_log

NOTHING_NAMED: Final = "restore needs a plan, a prefix or a key (--plan, --prefix, --key); `gc-assets plans` lists applied plans"
TOTALS_BY: Final = ("phase", "outcome", "source_plan_id")


@log_progress(DELETION_LOG)
def restore(
    session: Callable[[], SparkSession],
    context: RunContext,
    storage_name: str,
    plan_id: str | None = None,
    prefix: str | None = None,
    key: str | None = None,
) -> tuple[PublishedTable, dict[str, Totals]]:
    """Restore quarantined files and publish the outcomes as `deletion_log`.

    If several copies of a file exist, the newest one is restored. The others stay in quarantine and
    can be selected with `--plan`. A rehearsal restores only copies quarantined by rehearsals, but a
    real run restores either.

    After one of its files was restored, a finished plan cannot be applied again. An unfinished plan
    stays unfinished. Its write-ahead log shows which files it has moved, and they are restored like
    all others.

    Args:
        session: Starts a Spark session, which only large restores need.
        plan_id: Restore files of this plan.
        prefix: Restore files under this prefix.
        key: Restore this key.

    Returns:
        The published log and the totals by outcome.

    Raises:
        UsageError: If neither plan, prefix nor key is given.
        GateRefused: If another run holds the lease, the storage does not allow rehearsals, or the
            lease is lost. In the last case, repeat the restore.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError(NOTHING_NAMED)
    refuse_rehearsal(context, storage_name)
    state, store = context.state, context.store(storage_name)
    run = start_run(context, storage_name, DELETION_LOG)
    restore_id = f"{RESTORE_PREFIX}{run.run_id}"
    lease = take_lease(context, storage_name, store, restore_id, current_user())
    with hold_lease(lease):
        interrupted = unfinished_plans(state, storage_name)
        concerned = {*interrupted, *([plan_id] if plan_id is not None else [])}
        listed = list_plans(context.config, storage_name) if concerned else ()
        headers = {plan.header.plan_id: plan.header for plan in listed if plan.header.plan_id in concerned}
        moved = list(_read_moved(context, storage_name, concerned, headers, lease.token))
        copies = CopySelection(plan_id, prefix, key, rehearsal=True if context.clock.is_rehearsal else None)
        log = open_log(state.files, f"{storage_name}/restore/{restore_id}", restore_id, 1)
        log_activity("restoring files")
        executor = RowExecutor(store, log, lease, context.clock.not_before_now(), restore_id, run.run_id)
        readers = [LogReader.of(state, storage_name, copies), *moved]
        with count_progress("files on record", log.count_outcomes, _planned_files(headers.get(plan_id) if plan_id is not None else None)):
            written = _restore_in_process(executor, copies, readers, run, state)
            if written is None:
                written = _restore_in_executors(session(), executor, copies, readers, run, state)
        lease.check()  # another holder may have moved the same files after the lease was lost
        # Publish while holding the lease, so that its next holder sees which files were restored. The
        # plans follow, because a plan that counts as restored must not have files in the ledger.
        published = _publish(context, run, written, restore_id)
        for source in sorted({source for (_, outcome, source) in written.totals if outcome == "done"} - set(interrupted)):
            record_restored(state, storage_name, source, context.clock.now(), restore_id)
        return published


def _publish(context: RunContext, run: TableRun, written: WrittenParts, restore_id: str) -> tuple[PublishedTable, dict[str, Totals]]:
    by_outcome: dict[str, Totals] = {}
    for (_, outcome, _), total in written.totals.items():
        by_outcome[outcome] = by_outcome.get(outcome, Totals()) + total
    summary = DeletionLogSummary(
        plan_id=restore_id,
        by_outcome={f"{RESTORE}/{name}": total.amount for name, total in sorted(by_outcome.items())},
    )
    balances = [Balance(name="keys with an outcome", expected=sum(total.rows for total in by_outcome.values()), found=written.rows)]
    published = publish(context.state, run, written, context.clock, balances=balances, summary=summary, unsafe=context.unsafe)
    return published, by_outcome


def _planned_files(header: PlanSummary | None) -> int | None:
    """Return how many files a plan may have quarantined, or None if the number is unknown."""
    return header.totals[QUARANTINE].files if header is not None and QUARANTINE in header.totals else None


def _restore_in_process(
    executor: RowExecutor, copies: CopySelection, readers: Sequence[LogReader | MovedFiles], run: TableRun, state: State
) -> WrittenParts | None:
    """Try to restore the selected copies in the driver.

    Returns:
        The outcomes, or None if there are too many copies. In that case no file is read.
    """
    if not fits_in_process(sum(reading.rows for reading in readers), sum(reading.part_count for reading in readers)):
        return None
    entries = [batch.select(LOG_ENTRIES.names) for reading in readers for batch in read_in_process(reading, reading.part_count)]
    rows = pa.Table.from_batches(_SelectCopies(copies)(iter(entries)), EXECUTION_ROWS)
    return execute_in_process(executor, rows, run, state.files, TOTALS_BY)


def _restore_in_executors(
    spark: SparkSession,
    executor: RowExecutor,
    copies: CopySelection,
    readers: Sequence[LogReader | MovedFiles],
    run: TableRun,
    state: State,
) -> WrittenParts:
    entries = reduce(DataFrame.unionByName, [reading.frame(spark).select(*LOG_ENTRIES.names) for reading in readers])
    rows = entries.repartition("key").mapInArrow(_SelectCopies(copies), spark_schema(EXECUTION_ROWS))
    ordered = order_in_one_task(rows, RESTORE, F.col("key"))
    return write_frame(ordered.mapInArrow(BudgetedTask(executor, 1), OUTCOME_ROWS), DELETION_LOG, run, state, TOTALS_BY, counted=True)


def _read_moved(
    context: RunContext, storage_name: str, plan_ids: Collection[str], headers: Mapping[str, PlanSummary], token: int
) -> Iterator[MovedFiles]:
    """Open the write-ahead logs of plans, to find files that their applies may have moved.

    The quarantine mode comes from the plan. If the plan is missing, it comes from the log, and as a
    last resort from the storage's configuration.
    """
    files = context.state.files
    for plan_id in sorted(plan_ids):
        directory = f"{storage_name}/apply/{plan_id}"
        if not any(item.name == "log.json" for item in files.list(directory)):
            continue  # the plan moved no file
        header = headers.get(plan_id)
        log = open_log(files, directory, plan_id, 1)
        mode, rehearsal = log.quarantine or context.storage(storage_name).quarantine, context.clock.is_rehearsal
        rows = log.shares * KEYS_PER_SHARE
        if header is not None:
            mode, rehearsal, rows = header.quarantine, header.rehearsal, header.rows
        yield MovedFiles(log, mode, context.clock.now(), token, rehearsal, rows)


@dataclass(frozen=True)
class MovedFiles:
    """Reads files that were quarantined according to a write-ahead log.

    The plan's `deletion_log` may not have been published yet, so these files can be missing from
    the ledger. The task takes numbers of log shares, which are groups of keys, and yields rows of
    `deletion_log`. If a move has no outcome, it is treated as done now under the lease `token`. The
    task runs on Spark executors or in the driver.
    """

    log: WriteAheadLog
    quarantine: str
    now: datetime
    token: int
    rehearsal: bool
    rows: int

    @property
    def part_count(self) -> int:
        return self.log.shares

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows of all shares as a lazily evaluated frame."""
        shares = spark.range(0, self.part_count, 1, min(self.part_count, parallelism(spark)))
        return shares.mapInArrow(self, spark_schema(DELETION_LOG.schema))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.log.require_visible()
        for batch in batches:
            for share in batch.column("id").to_pylist():
                quarantined = self.log.read_quarantined(share)
                moved = (outcome or Outcome(planned, DONE, None, self.now, self.token) for planned, outcome in quarantined)
                yield to_deletion_log(moved, self.log.plan_id, self.quarantine, rehearsal=self.rehearsal)


@dataclass(frozen=True)
class _SelectCopies:
    """Selects the copies to restore from log entries.

    Takes `LOG_ENTRIES` columns and yields `EXECUTION_ROWS` columns. All entries of a key must be in
    the same partition. The task runs on Spark executors or in the driver.
    """

    copies: CopySelection

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = [batch for batch in batches if batch.num_rows]
        if not entries:
            return
        rows = newest_of_each_key(self.copies.find_copies(pa.Table.from_batches(entries).cast(LOG_ENTRIES)))
        columns = {name: rows.column(name) for name in rows.column_names if name in EXECUTION_ROWS.names}
        constants = {"action": RESTORE, "needed": "requested", "in_use": False, "retry": False, "in_quarantine": True, "refused": None}
        columns |= {name: pa.array([value] * rows.num_rows, EXECUTION_ROWS.field(name).type) for name, value in constants.items()}
        yield from pa.table({name: columns[name] for name in EXECUTION_ROWS.names}).cast(EXECUTION_ROWS).to_batches()
