"""Puts quarantined files back: all of a plan, those below a prefix, or one key.

Needs no approval. A file whose name is taken stays in quarantine.
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

from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.phases import DONE, QUARANTINE, RESTORE
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
from gc_assets.stores.execution import current_user, release_on_exit, to_deletion_log
from gc_assets.stores.protocol import Outcome
from gc_assets.stores.write_ahead import WriteAheadLog, open_log

NOTHING_NAMED: Final = "restore needs a plan, a prefix or a key (--plan, --prefix, --key); `gc-assets plans` lists what was applied"
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
    """Puts quarantined files back, and returns the log and the books (outcome to rows and bytes).
    `session` opens Spark, and is called only where there is much to put back.

    Of several copies of one name the newest goes back. The others stay, and `--plan` names each. By
    the real clock the copies that rehearsals quarantined come back too; a rehearsal has only its
    own.

    A finished plan is used up once a file of it came back. A plan that is half applied stays half
    applied, and what its write-ahead log moved comes back too.

    Raises `UsageError` where nothing is named, `GateRefused` while another run holds the storage's
    lease, where it is lost, and for a rehearsal that the storage does not allow. What was put back
    under a lost lease counts for nothing: restore it again.
    """
    if plan_id is None and prefix is None and key is None:
        raise UsageError(NOTHING_NAMED)
    refuse_rehearsal(context, storage_name)
    state, store = context.state, context.store(storage_name)
    run = start_run(context, storage_name, DELETION_LOG)
    restore_id = f"restore-{run.run_id}"
    lease = take_lease(context, storage_name, store, restore_id, current_user())
    with release_on_exit(lease):
        interrupted = unfinished_plans(state, storage_name)
        concerned = {*interrupted, *([plan_id] if plan_id is not None else [])}
        listed = list_plans(context.config, storage_name) if concerned else ()
        headers = {plan.header.plan_id: plan.header for plan in listed if plan.header.plan_id in concerned}
        moved = list(_moved_by(context, storage_name, concerned, headers, lease.token))
        copies = CopySelection(plan_id, prefix, key, rehearsal=True if context.clock.is_rehearsal else None)
        log = open_log(state.files, f"{storage_name}/restore/{restore_id}", restore_id, 1)
        log_activity("putting files back")
        act = RowExecutor(store, log, lease, context.clock.not_before_now(), restore_id, run.run_id)
        told = [LogReader.of(state, storage_name, copies), *moved]
        with count_progress("files on record", log.count_outcomes, _files_of(headers.get(plan_id) if plan_id is not None else None)):
            written = _act_here(act, copies, told, run, state)
            if written is None:
                written = _act_in_executors(session(), act, copies, told, run, state)
        books: dict[str, Totals] = {}
        for (_, outcome, _), total in written.totals.items():
            books[outcome] = books.get(outcome, Totals()) + total
        lease.check()  # whoever took it over may have moved the same files since
        for source in sorted({source for (_, outcome, source) in written.totals if outcome == "done"} - set(interrupted)):
            record_restored(state, storage_name, source, context.clock.now(), restore_id)
        summary = DeletionLogSummary(
            plan_id=restore_id,
            books={f"{RESTORE}/{name}": total.amount for name, total in sorted(books.items())},
        )
        balances = [Balance(name="keys with an outcome", expected=sum(total.rows for total in books.values()), found=written.rows)]
        # On record before the lease is free: the next holder must know what is back in its place.
        published = publish(state, run, written, context.clock, balances=balances, summary=summary, unsafe=context.unsafe)
    return published, books


def _files_of(header: PlanSummary | None) -> int | None:
    """Returns how many files a plan was to quarantine, so many at most are put back. Null where no
    plan is named.
    """
    return header.totals[QUARANTINE].files if header is not None and QUARANTINE in header.totals else None


def _act_here(
    act: RowExecutor, copies: CopySelection, told: Sequence[LogReader | _Moved], run: TableRun, state: State
) -> WrittenParts | None:
    """Puts the copies back in this process. Returns null, and reads nothing, where that is more than
    this process should.
    """
    if not fits_in_process(sum(reading.rows for reading in told), sum(reading.part_count for reading in told)):
        return None
    words = [batch.select(LOG_ENTRIES.names) for reading in told for batch in read_in_process(reading, reading.part_count)]
    return execute_in_process(act, pa.Table.from_batches(_Chosen(copies)(iter(words)), EXECUTION_ROWS), run, state.files, TOTALS_BY)


def _act_in_executors(
    spark: SparkSession, act: RowExecutor, copies: CopySelection, told: Sequence[LogReader | _Moved], run: TableRun, state: State
) -> WrittenParts:
    words = reduce(DataFrame.unionByName, [reading.frame(spark).select(*LOG_ENTRIES.names) for reading in told])
    rows = words.repartition("key").mapInArrow(_Chosen(copies), spark_schema(EXECUTION_ROWS))
    ordered = order_in_one_task(rows, RESTORE, F.col("key"))
    return write_frame(ordered.mapInArrow(BudgetedTask(act, 1), OUTCOME_ROWS), DELETION_LOG, run, state, TOTALS_BY, counted=True)


def _moved_by(
    context: RunContext, storage_name: str, plan_ids: Collection[str], headers: Mapping[str, PlanSummary], token: int
) -> Iterator[_Moved]:
    """Yields readings of what these plans' write-ahead logs moved to quarantine, or may have moved.

    Raises `StateError` for a log whose plan is not in the state.
    """
    files = context.state.files
    for plan_id in sorted(plan_ids):
        directory = f"{storage_name}/apply/{plan_id}"
        if not any(item.name == "log.json" for item in files.list(directory)):
            continue  # it never came to a file
        if plan_id not in headers:
            raise StateError(f"{files.root}/{directory} is the log of a plan that the state does not hold; restore the state from a backup")
        header = headers[plan_id]
        log = open_log(files, directory, plan_id, header.rows)
        yield _Moved(log, header.quarantine, context.clock.now(), token, header.rehearsal, header.rows)


@dataclass(frozen=True)
class _Moved:
    """Takes numbers of shares of a write-ahead log and yields rows of `deletion_log` for the files
    that it quarantined, which no published log may hold yet.

    What may have moved counts as moved just now, under the lease `token`. Runs in executors, or
    here.
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
        """Returns all rows as a frame. Lazy."""
        shares = spark.range(0, self.part_count, 1, min(self.part_count, parallelism(spark)))
        return shares.mapInArrow(self, spark_schema(DELETION_LOG.schema))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.log.require_visible()
        for batch in batches:
            for share in batch.column("id").to_pylist():
                told = self.log.read_quarantined(share)
                moved = (outcome or Outcome(planned, DONE, None, self.now, self.token) for planned, outcome in told)
                yield to_deletion_log(moved, self.log.plan_id, self.quarantine, rehearsal=self.rehearsal)


@dataclass(frozen=True)
class _Chosen:
    """Yields what is to be put back (columns `EXECUTION_ROWS`). All words about each key must be in one
    partition. Runs in executors, or here.
    """

    copies: CopySelection

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        words = [batch for batch in batches if batch.num_rows]
        if not words:
            return
        rows = newest_of_each_key(self.copies.find_copies(pa.Table.from_batches(words).cast(LOG_ENTRIES)))
        columns = {name: rows.column(name) for name in rows.column_names if name in EXECUTION_ROWS.names}
        said = {"action": RESTORE, "needed": None, "retry": False, "in_quarantine": True, "refused": None}
        told = {name: pa.array([value] * rows.num_rows, EXECUTION_ROWS.field(name).type) for name, value in said.items()}
        yield from pa.table({name: {**columns, **told}[name] for name in EXECUTION_ROWS.names}).cast(EXECUTION_ROWS).to_batches()
