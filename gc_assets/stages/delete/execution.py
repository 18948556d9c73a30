"""Execute the phases of an approved plan and publish the outcomes as `deletion_log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.outcomes import select_not_done
from gc_assets.core.phases import ABORT, DENIED, DONE, EXPIRE, FAILED, PHASES, PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import UNNAMED, Amount, PlanHeader, completed_header
from gc_assets.core.units import count_of, format_bytes
from gc_assets.engine import tasks
from gc_assets.engine.progress import count_progress, log_activity, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import (
    Totals,
    WrittenParts,
    collect,
    collect_arrow,
    parallelism,
    publish,
    spark_schema,
    write_frame,
    write_rows,
)
from gc_assets.engine.tasks import BudgetedTask, max_parallel_tasks
from gc_assets.lakes.file_kinds import RANKS
from gc_assets.lakes.kind import TableRole
from gc_assets.stages.delete.execute_rows import (
    EXECUTION_ROWS,
    OUT_OF_DATE,
    OUTCOME_ROWS,
    RowExecutor,
    execute_in_process,
    order_in_one_task,
)
from gc_assets.stages.delete.expire import end_edits, expire_lakes
from gc_assets.stages.delete.revalidate import REFUSED
from gc_assets.stages.delete.uploads import UploadExecution
from gc_assets.stages.delete.verification import PlanRows, VerificationMark, verification_context
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.stages.records.fencing_tokens import quarantine_renewed_at
from gc_assets.stages.records.ledger import IN_PLACE, UNVERSIONED, quarantine_ledger
from gc_assets.stages.records.plans import StoredPlan, has_started, record_finished
from gc_assets.stages.records.quarantine_clock import quarantine_clock
from gc_assets.stages.records.verified_tables import HistoryName
from gc_assets.stages.sweep.table_memory import record_verified
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.state.summaries import DeletionLogSummary
from gc_assets.stores.execution import require_balance
from gc_assets.stores.protocol import Lease
from gc_assets.stores.write_ahead import WriteAheadLog

TOTALS_BY: Final = ("phase", "outcome")
EXECUTION_DDL: Final = {field.name: field.dataType.simpleString() for field in spark_schema(EXECUTION_ROWS)}
# Columns that identify a quarantined object. The plan and the ledger both have them.
_COPY_IDENTITY: Final = ("etag", "version_id", "quarantine")


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of an apply.

    Attributes:
        published: The published `deletion_log`, or None if the plan had no files to change.
        by_outcome: Files and bytes by phase and outcome. In the `expire` phase, history edits are
            counted instead of files.
        nothing_to_do: Why applying the plan had no effect, or None if it was executed.
        done_edits: Number of history edits with the outcome `done`, by lake.
        held: The plan's files in quarantine, if an earlier apply was interrupted, because some may
            have been restored since. None otherwise.
        not_done: Number of files, uploads and edits that were not changed, by `phase/outcome`.
    """

    published: PublishedTable | None
    by_outcome: dict[tuple[str, str], Totals]
    nothing_to_do: str | None = None
    done_edits: Mapping[str, int] = field(default_factory=dict[str, int])
    held: Amount | None = None

    @property
    def not_done(self) -> dict[str, int]:
        return select_not_done({f"{phase}/{outcome}": total.rows for (phase, outcome), total in self.by_outcome.items()})

    @property
    def has_failed(self) -> bool:
        """Whether a row or an edit failed, so that the plan stays unfinished."""
        return any(outcome == FAILED for _, outcome in self.by_outcome)

    @property
    def edited(self) -> bool:
        """Whether history edits were attempted, regardless of their outcome."""
        return any(phase == EXPIRE for phase, _ in self.by_outcome)


def header_of_result(header: PlanHeader, applied: ApplyResult) -> PlanHeader:
    """Return a plan's header with the totals of the completed actions, for messages."""
    done = {phase: total.amount for (phase, outcome), total in applied.by_outcome.items() if outcome == DONE}
    if applied.held is not None and QUARANTINE in done:
        done[QUARANTINE] = applied.held
    return completed_header(header, done, applied.done_edits)


def phases_of(header: PlanHeader, phases: Sequence[str]) -> list[str]:
    """Return the given phases for which the plan has work, in execution order."""
    of_files = {phase: phase in header.totals for phase in PHASES}
    has_work = of_files | {EXPIRE: bool(header.expiry_actions), ABORT: header.uploads.count > 0}
    return [phase for phase in PHASES if phase in phases and has_work[phase]]


@dataclass
class PlanExecution:
    """State of one apply while it executes a plan's phases.

    Attributes:
        by_outcome: Files and bytes by phase and outcome. For history edits, only their number.
        planned: Number of files in the phases that have been started.
        failed: Histories in which an edit failed.
        not_made: Histories in which an edit was skipped or denied.
        edited_histories: Histories in which an edit was made.
        done_edits: Number of edits made, by lake.
        only_interrupted: Set when the plan is closed (see `end`). Only interrupted actions are
            finished.
    """

    spark: SparkSession
    context: RunContext
    plan: StoredPlan
    log: WriteAheadLog
    lease: Lease
    only_interrupted: bool = False
    by_outcome: dict[tuple[str, str], Totals] = field(default_factory=dict[tuple[str, str], Totals])
    written: list[WrittenParts] = field(default_factory=list[WrittenParts])
    planned: int = 0
    failed: frozenset[HistoryName] = frozenset()
    not_made: frozenset[HistoryName] = frozenset()
    edited_histories: frozenset[HistoryName] = frozenset()
    done_edits: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        header = self.plan.header
        self.run = start_run(self.context, header.storage, DELETION_LOG, header.run_date)

    def execute_phase(self, phase: str, rows: DataFrame) -> None:
        """Execute one phase of the plan. Small phases run in the driver, others on executors.

        Args:
            rows: The rows of the phase with the `EXECUTION_ROWS` columns, see `revalidate`.
        """
        header = self.plan.header
        clock = quarantine_clock(self.context, header.storage)
        task = RowExecutor(
            self.context.store(header.storage), self.log, self.lease, clock, header.plan_id, self.run.run_id, self.only_interrupted
        )
        log_activity(f"{phase}: {count_of(header.totals[phase].files, 'file')}, {format_bytes(header.totals[phase].bytes)}")
        self.planned += header.totals[phase].files
        is_small = self.log.shares == 1 and header.totals[phase].files <= tasks.MAX_IN_PROCESS_ACTIONS
        with count_progress("files on record", self.log.count_outcomes, self.planned):
            for part in self._execute_in_process(task, rows) if is_small else self._execute_in_executors(task, rows, phase):
                for (_, outcome), total in part.totals.items():
                    self.by_outcome[phase, outcome] = self.by_outcome.get((phase, outcome), Totals()) + total
                self.written.append(part)
        require_balance(
            header.totals[phase].files, {outcome: total.rows for (of, outcome), total in self.by_outcome.items() if of == phase}
        )

    def _execute_in_process(self, task: RowExecutor, rows: DataFrame) -> Iterator[WrittenParts]:
        yield execute_in_process(task, collect_arrow(rows, EXECUTION_ROWS), self.run, self.context.state.files, TOTALS_BY)

    def _execute_in_executors(self, task: RowExecutor, rows: DataFrame, phase: str) -> Iterator[WrittenParts]:
        """Process metadata in a single ordered task and all other files in parallel.

        Metadata is removed first and restored last. It makes up only 1-2% of the files, so the
        ordered task is short.
        """
        share, task_count = F.pmod(F.xxhash64("key"), F.lit(self.log.shares)), min(parallelism(self.spark), self.log.shares)
        names_others = F.coalesce(F.col("kind").isin(*RANKS), F.lit(False))
        classes = {kind in RANKS for kind in self.plan.header.by_kind.get(phase, [*RANKS, UNNAMED])}
        if len(classes) > 1:
            rows.persist()  # so that the joins run once
        try:
            for is_metadata in sorted(classes, reverse=phase != RESTORE):
                if is_metadata:
                    ordered, sharers = order_in_one_task(rows.filter(names_others), phase, share), 1
                else:
                    ordered = rows.filter(~names_others).repartition(task_count, share).sortWithinPartitions(share, "key")
                    sharers = max_parallel_tasks(self.spark, task_count)
                outcomes = ordered.mapInArrow(BudgetedTask(task, sharers), OUTCOME_ROWS)
                yield write_frame(outcomes, DELETION_LOG, self.run, self.context.state, TOTALS_BY, counted=True)
        finally:
            rows.unpersist()

    def revalidate(self, phase: str, mark: VerificationMark) -> DataFrame:
        """Check the rows of a phase against the files needed now and the quarantine ledger.

        A copy counts as quarantined only if the ledger contains exactly the planned object. In the
        modes deferred and versioned, an object is not quarantined if another plan has done so. If the
        store could not undo a quarantine, no object is quarantined.

        Returns:
            The rows with the `EXECUTION_ROWS` columns, ready for `execute_phase`.
        """
        header = self.plan.header
        storage = self.context.storage(header.storage)
        days = storage.quarantine_days
        waiting = self._read_ledger(mark.spark)
        renewed_at = quarantine_renewed_at(self.context, header.storage) if phase == PURGE else None
        since = F.greatest("quarantined_at", F.lit(renewed_at).cast("timestamp"))  # ignores nulls
        early = since > F.lit(mark.frozen_at - timedelta(days=days))
        too_early = F.concat(F.lit("in quarantine since "), since.cast("string"), F.lit(f", which is less than {count_of(days, 'day')}"))
        failed, not_made = (F.col("after_expiry") & _is_one_of(histories) for histories in (self.failed, self.not_made))
        uncertain = F.concat(F.lit("the history edit of lake "), "held_by", F.lit(" that should have released the file was not made"))
        undo = self.context.store(header.storage).check_undo(storage.quarantine) if phase == QUARANTINE else None
        no_undo, has_no_answer = (None, False) if undo is None else (undo.error, undo.verdict == FAILED)
        removed = sorted(header.refs_digests.keys() - {lake.name for lake in self.context.config.lakes})
        unconfigured = F.lit(f"lake {removed[0]} is no longer configured, so it may still need the file" if removed else None).cast(
            "string"
        )
        columns = {
            "in_quarantine": _is_in_quarantine() | F.col("_recorded").isNotNull(),
            REFUSED: F.coalesce(REFUSED, F.lit(no_undo).cast("string"), F.when((F.col("action") == PURGE) & early, too_early)),
            "retry": (failed & F.coalesce(~F.col("is_live"), F.col("needed").isNull())) | F.lit(has_no_answer),
            "in_use": F.col("is_live").isNotNull(),
            "needed": F.coalesce("needed", F.when(failed | not_made, uncertain), unconfigured, "_recorded"),
        }
        rows = mark.rows.revalidate(phase, mark.revalidation)
        return (
            (self._add_recorded(rows, waiting) if phase == QUARANTINE else rows.withColumn("_recorded", F.lit(None)))
            .join(mark.needed, "key", "left")
            .join(waiting, ["key", "source_plan_id"], "left")
            .withColumns(columns)
            .select(*EXECUTION_ROWS.names)
        )

    def _read_ledger(self, spark: SparkSession) -> DataFrame:
        """Return the copies in quarantine, with the columns that identify the object as `held_*`."""
        copies = quarantine_ledger(spark, self.context.state, self.plan.header.storage, rehearsal=self.context.clock.is_rehearsal)
        held = [F.col(name).alias(f"held_{name}") for name in _COPY_IDENTITY]
        return copies.select("key", "source_plan_id", "quarantined_at", *held)

    def _add_recorded(self, rows: DataFrame, ledger: DataFrame) -> DataFrame:
        """Add a `_recorded` column with a reason if another plan has quarantined the object."""
        others = ledger.filter(F.col("held_quarantine").isin(*IN_PLACE) & (F.col("source_plan_id") != self.plan.header.plan_id))
        reason = F.concat(F.lit("in quarantine already by plan "), F.substring(F.min("source_plan_id"), 1, 12))
        held, planned = (
            F.coalesce(F.nullif(name, F.lit(UNVERSIONED)), F.lit("")) for name in (F.col("held_version_id"), F.col("version_id"))
        )
        recorded = others.groupBy("key", F.col("held_etag").alias("etag"), held.alias("_version")).agg(reason.alias("_recorded"))
        return rows.withColumn("_version", planned).join(recorded, ["key", "etag", "_version"], "left")

    def expire(self, verification_id: str) -> bool:
        """Execute the plan's history edits.

        Returns:
            True if any edit was pending. The earlier mark is then out of date.
        """
        mark_context = verification_context(self.context, self.plan, verification_id)
        result = expire_lakes(self.spark, self.context, mark_context, self.plan, self.lease)
        self.by_outcome |= {(EXPIRE, verdict): Totals(count) for verdict, count in result.counts.items()}
        self.failed, self.not_made, self.edited_histories, self.done_edits = (
            result.failed,
            result.not_made,
            result.edited_histories,
            result.done_by_lake,
        )
        if result.edited:
            self.context.clock.wait_for_next_second()
        return result.edited

    def record_verified(self, mark: VerificationMark) -> None:
        """Record that the edited tables were read again after their edits."""
        record_verified(self.context, mark.context, mark.refs, self.edited_histories)

    def publish_histories(self, verification_id: str) -> None:
        """Publish snapshot histories of edited lakes that include this apply's own removals."""
        log_activity("recording the histories of edited lakes")
        for lake in self.context.config.lakes:
            if self.context.kind(lake.name).table_with(TableRole.HISTORY) is not None and lake.name in self.plan.header.expiry_actions:
                snapshot_history(self.spark, verification_context(self.context, self.plan, verification_id), lake.name)

    def abort(self, mark: VerificationMark) -> None:
        """Abort the plan's multipart uploads. This always runs in the driver."""
        execution = self._upload_execution()
        self._record_uploads(execution.abort(mark.revalidation, mark.foreign, mark.unreadable))

    def _upload_execution(self) -> UploadExecution:
        return UploadExecution(self.context, self.plan, self.log, self.lease, self.run.run_id)

    def _record_uploads(self, rows: pa.RecordBatch) -> None:
        written = write_rows(pa.Table.from_batches([rows]), DELETION_LOG, self.run, self.context.state.files, totals_by=["outcome"])
        self.by_outcome |= {(ABORT, outcome): total for (outcome,), total in written.totals.items()}
        self.written.append(written)
        require_balance(self.plan.header.uploads.count, {outcome: total.rows for (outcome,), total in written.totals.items()})

    def end(self, rows: PlanRows) -> None:
        """Record an outcome for every row, upload and edit of the plan, but start no action.

        Files in interrupted batches are moved back, unless another plan has them in quarantine. If
        another object has taken a file's name, the file stays in quarantine and is recorded there.
        A purge in an interrupted batch is `done` if the file no longer exists.
        """
        header = self.plan.header
        for phase in phases_of(header, PHASES):
            if phase == EXPIRE:
                by_lake = end_edits(self.context, self.plan, self.lease)
                counts = sum(map(Counter, by_lake.values()), Counter[str]())
                self.by_outcome |= {(EXPIRE, verdict): Totals(count) for verdict, count in counts.items()}
                self.done_edits = {lake: found.get(DONE, 0) for lake, found in by_lake.items()}
            elif phase == ABORT:
                self._record_uploads(self._upload_execution().end())
            else:
                needed, refused = (OUT_OF_DATE, None) if phase == RESTORE else (None, OUT_OF_DATE)
                values = {"needed": needed, "in_use": False, "retry": False, "in_quarantine": True, REFUSED: refused}
                columns = {name: F.lit(value).cast(EXECUTION_DDL[name]) for name, value in values.items()}
                mine = rows.frame.filter(F.col("action") == phase)
                if phase == QUARANTINE:
                    mine = self._add_recorded(mine, self._read_ledger(self.spark))
                    columns["in_quarantine"] = F.col("_recorded").isNotNull()
                elif phase == PURGE:
                    mine = mine.join(self._read_ledger(self.spark), ["key", "source_plan_id"], "left")
                    columns["in_quarantine"] = _is_in_quarantine()
                self.execute_phase(phase, mine.withColumns(columns).select(*EXECUTION_ROWS.names))

    def publish(self, phases: Sequence[str]) -> ApplyResult:
        """Publish the outcomes of the executed phases.

        If this run executed all phases and no row failed, the plan is recorded as finished. A restore
        without an approval can also be repeated if a row was denied.

        Raises:
            LeaseLost: If the lease is lost.
        """
        self.lease.check()
        header, state, verdict = self.plan.header, self.context.state, self.plan.verdict
        of_files = [phase for phase in phases if phase != EXPIRE]
        summary = DeletionLogSummary(
            plan_id=header.plan_id,
            phases=tuple(phases),
            approved_by=verdict.approved_by,
            approval_events=verdict.events,
            overrides=verdict.overrides,
            by_outcome=_amounts(self.by_outcome, of_files),
            edits={verdict: total.rows for (phase, verdict), total in sorted(self.by_outcome.items()) if phase == EXPIRE},
        )
        published = None
        if of_files:
            merged = WrittenParts(
                tuple(item for part in self.written for item in part.parts), sum(part.digest for part in self.written) % 2**64
            )
            planned = sum(header.uploads.count if phase == ABORT else header.totals[phase].files for phase in of_files)
            published = publish(
                state,
                self.run,
                merged,
                self.context.clock,
                inputs=[self.plan.published],
                balances=[Balance(name="planned keys with an outcome", expected=planned, found=merged.rows)],
                summary=summary,
                unsafe=self.context.unsafe,
            )
            _write_stats(state, header, self.by_outcome)
        if self._is_finished(phases):
            finished = {"at": self.context.clock.now().isoformat(), "run_id": self.run.run_id, **summary.model_dump(mode="json")}
            record_finished(state, header, finished)
        return ApplyResult(published, self.by_outcome, done_edits=self.done_edits, held=self._count_held())

    def _count_held(self) -> Amount | None:
        if not self.plan.is_started:
            return None
        copies = quarantine_ledger(self.spark, self.context.state, self.plan.header.storage, rehearsal=self.context.clock.is_rehearsal)
        mine = copies.filter(F.col("source_plan_id") == self.plan.header.plan_id)
        (row,) = collect(mine.agg(F.count("key").alias("files"), F.sum("size_bytes").alias("bytes")))
        return Amount(files=row["files"], bytes=row["bytes"] or 0)

    def _is_finished(self, phases: Sequence[str]) -> bool:
        has_begun = has_started(self.context.state, self.plan.header)
        repeated = {FAILED} if has_begun else {FAILED, DENIED}
        to_repeat = sum(total.rows for (_, outcome), total in self.by_outcome.items() if outcome in repeated)
        return not to_repeat and list(phases) == phases_of(self.plan.header, PHASES)


def _is_in_quarantine() -> Column:
    """Return a condition that the ledger contains exactly the planned copy."""
    return reduce(and_, [F.col(name).eqNullSafe(F.col(f"held_{name}")) for name in _COPY_IDENTITY], F.col("quarantined_at").isNotNull())


def _is_one_of(histories: Collection[HistoryName]) -> Column:
    names = [F.lit("/".join(part for part in history if part is not None)) for history in sorted(histories, key=str)]
    return F.array_contains(F.array(*names).cast("array<string>"), F.concat_ws("/", "held_by", "held_by_table"))


def _amounts(by_outcome: dict[tuple[str, str], Totals], phases: Sequence[str]) -> dict[str, Amount]:
    return {f"{phase}/{outcome}": total.amount for (phase, outcome), total in sorted(by_outcome.items()) if phase in phases}


def _write_stats(state: State, header: PlanHeader, by_outcome: dict[tuple[str, str], Totals]) -> None:
    lines = ["plan_id,phase,outcome,files,bytes"]
    lines += [
        f"{header.plan_id},{phase},{outcome},{total.rows},{total.size_bytes}" for (phase, outcome), total in sorted(by_outcome.items())
    ]
    path = f"{header.storage}/{DELETION_LOG.name}/stats/{header.run_date.isoformat()}.csv"
    state.files.replace(path, ("\n".join(lines) + "\n").encode())
