"""Executes one approved plan: lease, fresh mark, then restore, expire, quarantine, purge and abort,
with intents and outcomes on record.

Acts and never decides: the rows are the plan's, less what the fresh mark shows to be live again and
what should not have been in a plan at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, reduce
from operator import and_, attrgetter
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core import gates
from gc_assets.core.errors import GateRefused, LakeUnreadable, StateError
from gc_assets.core.hashing import digest
from gc_assets.core.phases import ABORT, EXPIRE, FAILED, PHASES, PURGE, QUARANTINE, RESTORE
from gc_assets.core.plan import UNNAMED, Amount, PlanHeader, Unreadable
from gc_assets.core.units import format_bytes
from gc_assets.engine import tasks as engine
from gc_assets.engine.progress import count_progress, log_activity, log_progress, start_run, track
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session, is_small
from gc_assets.engine.tables import (
    Totals,
    WrittenParts,
    collect,
    collect_arrow,
    frame_from_arrow,
    map_arrow,
    parallelism,
    publish,
    read_rows,
    read_table,
    row_hash,
    spark_schema,
    write_frame,
    write_rows,
)
from gc_assets.engine.tasks import BudgetedTask, max_parallel_tasks
from gc_assets.lakes.file_kinds import RANKS
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.stages.delete.deferred_rows import add_deferred_rows, list_unreadable
from gc_assets.stages.delete.execute_rows import EXECUTION_ROWS, OUTCOME_ROWS, RowExecutor, execute_in_process, order_in_one_task
from gc_assets.stages.delete.expire import HistoryName, expire_lakes, is_expiry_complete
from gc_assets.stages.delete.revalidate import REFUSED, Revalidation
from gc_assets.stages.delete.uploads import abort_uploads, approved_uploads
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.stages.records.accepted_runs import AcceptedRun
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.ledger import LogReader, quarantine_ledger
from gc_assets.stages.records.plans import (
    StoredPlan,
    execution_directory,
    has_begun,
    list_plans,
    record_finished,
    refuse_gates,
    refuse_historical,
    refuse_other_clock,
    refuse_other_key,
    refuse_unapproved,
)
from gc_assets.stages.sweep.link_aliases import planned_by_alias
from gc_assets.stages.sweep.live_filter import expired_keys, live_count, live_keys
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, LAKE_REFS
from gc_assets.state.side_tables import EXPIRED_SIDE
from gc_assets.state.summaries import DeletionLogSummary, LakeRefsSummary
from gc_assets.stores.execution import current_user, release_on_exit, require_balance
from gc_assets.stores.protocol import Lease
from gc_assets.stores.write_ahead import WriteAheadLog, open_log

TOTALS_BY: Final = ("phase", "outcome")
# What tells one quarantined object from another, in the plan and in the ledger.
_NAMES_A_COPY: Final = ("etag", "version_id", "quarantine")


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The published log and the books: outcomes to rows and bytes, per phase.

    The log is null where no file was to be touched. The rows of phase `expire` are edits of
    history. `nothing_to_do` says why, where nothing was to be done.
    """

    published: PublishedTable | None
    by_outcome: dict[tuple[str, str], Totals]
    nothing_to_do: str | None = None

    @property
    def edited(self) -> bool:
        """Says whether edits of history were executed, whatever became of them."""
        return any(phase == EXPIRE for phase, _ in self.by_outcome)


@log_progress(DELETION_LOG, attrgetter("header.storage"))
def apply_plan(spark: SparkSession, context: RunContext, plan: StoredPlan, phases: Sequence[str] = PHASES) -> ApplyResult:
    """Executes the plan's rows of the given phases, or resumes where an earlier run of it stopped.

    Raises `GateRefused` where the plan is not approved, expired before it began, or is not of this
    storage or policy, and where the fresh mark does not support it. Nothing is changed then. The
    lakes are marked again after a restore and after edits of history. Those marks may refuse too,
    and so does a lost lease: what was done by then stays done and on record.

    A restore needs no approval.
    """
    header, state = plan.header, context.state
    already = nothing_to_do(plan)
    if already is not None:
        return ApplyResult(None, {}, already)
    refuse_apply(context, plan, phases)
    approved_uploads(state, plan)
    chosen = phases_of(header, phases)
    stale = context.clock.now() >= header.apply_before or header.policy_digest != context.config.policy_digest()
    stale = stale or context.storage(header.storage).quarantine != header.quarantine
    owner = plan.verdict.approved_by or current_user()
    lease = take_lease(context, header.storage, context.store(header.storage), header.plan_id, owner)
    verification_id = f"{header.plan_id}-{lease.token}"
    with release_on_exit(lease), ExitStack() as afterwards:
        _forget_dead(context, header.storage, lease.token)
        afterwards.callback(_forget, state, verification_id)
        resumed = has_begun(state, header)
        fresh = _marked(spark, context, plan, verification_id, only_ending=stale, resumed=resumed)
        lease.renew()  # the mark may have taken longer than a lease lasts
        log = open_log(state.files, log_directory(header, phases), header.plan_id, header.rows + header.uploads.count)
        execution = _Execution(spark, context, plan, log, lease, only_interrupted=stale and tuple(phases) != (RESTORE,))
        for phase in chosen:
            if phase == EXPIRE:
                if execution.expire(verification_id):
                    fresh = _marked(spark, context, plan, verification_id, only_ending=stale, resumed=resumed)
                execution.remember(verification_id)
                lease.renew()
                continue
            if phase == ABORT:
                execution.abort(fresh)
                continue
            execution.act(phase, fresh)
            if phase == RESTORE and len(chosen) > 1:  # what came back may name files that nobody knew to be needed
                fresh = _marked(spark, context, plan, verification_id, only_ending=stale, resumed=resumed)
                lease.renew()
        return execution.publish(chosen)


def nothing_to_do(plan: StoredPlan) -> str | None:
    """Returns why applying this plan would change nothing; null for a plan that may still be
    executed.
    """
    if plan.restored_at is not None:
        return f"files of this plan were restored at {plan.restored_at.isoformat()}; make a new plan"
    if plan.finished is not None:
        return f"this plan was applied in full at {plan.finished['at']}; applying it again changes nothing"
    return None


def refuse_apply(context: RunContext, plan: StoredPlan, phases: Sequence[str] = PHASES) -> None:
    """Raises `GateRefused` where the configuration or the state forbids to execute the plan."""
    header = plan.header
    begun = has_begun(context.state, header)
    too_late = context.clock.now() >= header.apply_before
    storage = context.storage(header.storage)
    refuse_historical(header)
    if storage.mode != "apply":
        raise GateRefused(
            f"storage {storage.name} is in mode plan, so nothing in it is changed. "
            "Set `mode: apply` for it in lakes.yaml, or pass --mode apply for this once."
        )
    refuse_other_clock(header, context.clock)
    refuse_rehearsal(context, header.storage)
    if storage.location != header.location or (storage.quarantine != header.quarantine and not begun):
        raise GateRefused(
            f"plan {header.plan_id} was made for {header.location} with quarantine {header.quarantine}; "
            f"the configuration now says {storage.location} and {storage.quarantine}. Make a new plan."
        )
    if tuple(phases) == (RESTORE,):
        return
    refuse_unapproved(plan)
    refuse_gates(header, plan.verdict.overrides)
    refuse_other_key(header, context.config)
    if header.policy_digest != context.config.policy_digest() and not begun:
        raise GateRefused(f"plan {header.plan_id} was made under another policy than the configuration now holds; make a new plan")
    if QUARANTINE in phases and EXPIRE not in phases and header.after_expiry.files and not is_expiry_complete(context, plan):
        raise GateRefused(
            f"plan {header.plan_id} frees {header.after_expiry.files:,} files by editing history, which is not done yet; "
            f"apply it whole, or `gc-assets apply {header.plan_id[:12]} --phase expire` first"
        )
    if too_late and not begun:
        raise GateRefused(
            f"plan {header.plan_id} could be applied until {header.apply_before.isoformat()}; make a new one with `gc-assets run`"
        )


def log_directory(header: PlanHeader, phases: Sequence[str]) -> str:
    """Returns where the execution is logged.

    A restore alone, which needs no approval, has its own place: it does not begin the plan.
    """
    return f"{header.storage}/restore/{header.plan_id}" if tuple(phases) == (RESTORE,) else execution_directory(header)


def phases_of(header: PlanHeader, phases: Sequence[str]) -> list[str]:
    """Returns those of `phases` in which the plan has something to do, in the order of execution."""
    of_files = {phase: phase in header.totals for phase in PHASES}
    asked = of_files | {EXPIRE: bool(header.expiry_actions), ABORT: header.uploads.count > 0}
    return [phase for phase in PHASES if phase in phases and asked[phase]]


def _again(context: RunContext, plan: StoredPlan, verification_id: str) -> RunContext:
    """Returns the night of the fresh mark.

    Nothing undoes a purge. So the mark before it computes every row of `live_files`, and takes none
    over from the nights that had the same files quarantined and planned.
    """
    config = context.config.model_copy(update={"full_every": 0}) if PURGE in plan.header.totals else context.config
    return replace(context, config=config, verification_id=verification_id, run_date=plan.header.run_date, as_of=plan.header.as_of)


@dataclass(frozen=True)
class _Rows:
    """The plan's rows, proven to be those that were approved. Few are held in this process (`here`),
    so what is judged is what was proven.
    """

    spark: SparkSession
    state: State
    plan: StoredPlan
    here: pa.Table | None

    @classmethod
    def proven(cls, spark: SparkSession, state: State, plan: StoredPlan) -> Self:
        """Raises `StateError` unless the rows are those whose digest went into the plan's id."""
        here = read_rows(state, DELETION_PLAN, plan.published) if is_small(spark) else None
        rows = cls(spark, state, plan, here)
        if here is not None:
            total = digest(here)
        else:
            hashed = row_hash(spark_schema(DELETION_PLAN.schema)).cast("decimal(38,0)")
            total = collect(rows.frame.agg(F.sum(hashed).alias("digest")))[0]["digest"]
        found = f"{int(total or 0) % 2**64:016x}"
        if found != plan.header.rows_digest:
            raise StateError(
                f"plan {plan.header.plan_id}: its rows have the digest {found}, it was approved with {plan.header.rows_digest}; "
                f"{plan.published.path} was changed after the plan was made. Make a new one with `gc-assets run`."
            )
        return rows

    @property
    def frame(self) -> DataFrame:
        if self.here is not None:
            return frame_from_arrow(self.spark, self.here)
        return read_table(self.spark, self.state, DELETION_PLAN, self.plan.published)

    def judged(self, phase: str, judge: Revalidation) -> DataFrame:
        """Returns the rows of a phase as the judge takes them, with `refused`."""
        schema = DELETION_PLAN.schema.append(pa.field(REFUSED, pa.string()))
        if self.here is None:
            return map_arrow(self.frame.filter(F.col("action") == phase), judge, schema)
        mine = self.here.filter(pc.equal(self.here.column("action"), phase))
        return frame_from_arrow(self.spark, pa.Table.from_batches(judge(iter(mine.to_batches())), schema))


@dataclass(frozen=True)
class _Fresh:
    """What a mark under the lease says of the storage.

    `live` and `refs` are its tables of every lake, `rows` are the plan's, and `judge` judges them.
    `frozen_at` is when the first ref was read. `unreadable` is what could not be read. `spark` is the
    session that fits their size.
    """

    spark: SparkSession
    again: RunContext
    storage: str
    live: Sequence[PublishedTable]
    refs: Sequence[PublishedTable]
    rows: _Rows
    judge: Revalidation
    frozen_at: datetime
    unreadable: tuple[Unreadable, ...]

    @cached_property
    def needed(self) -> DataFrame:
        """The keys that a lake needs (columns key, needed, is_live); `is_live` is false for a key
        that only expired history needs. Keys that wait for a table that cannot be read count as
        needed.

        Made when first asked for: edits of history put another mark in the place of this one.
        """
        live, held = (read(self.spark, self.again, self.storage, list(self.live)) for read in (live_keys, expired_keys))
        both = live.selectExpr("key", "lake", "true as is_live").unionByName(held.selectExpr("key", "lake", "false as is_live"))
        once = both.groupBy("key").agg(F.max("is_live").alias("is_live"), F.max_by("lake", "is_live").alias("lake"))
        live_again, in_history = "concat('live again: lake ', lake, ' needs it')", "concat('the history of lake ', lake, ' reaches it')"
        keys = once.selectExpr("key", f"if(is_live, {live_again}, {in_history}) as needed", "is_live")
        return add_deferred_rows(keys, lambda: self.rows.frame, self.again, self.storage, self.live, self.refs)


def _refuse_newly_unreadable(header: PlanHeader, unreadable: Sequence[Unreadable]) -> None:
    """Raises `LakeUnreadable` where a half applied plan may itself have moved what is needed to read
    a table.
    """
    known = {(item.lake, item.table_uuid) for item in header.unreadable}
    if new := [item for item in unreadable if (item.lake, item.table_uuid) not in known]:
        raise LakeUnreadable(
            f"plan {header.plan_id} was applied in part, and what it moved may be why: {'; '.join(item.message for item in new[:5])}. "
            f"Mend it, or `gc-assets restore --plan {header.plan_id[:12]}` first, then apply again"
        )


def _marked(
    spark: SparkSession, context: RunContext, plan: StoredPlan, verification_id: str, *, only_ending: bool, resumed: bool
) -> _Fresh:
    """Marks the lakes afresh. The refs are read under the lease.

    Checks again the gates that can change, with the approval's overrides, and raises `GateRefused`
    where one fails. A plan that is only brought to its end passes them.
    """
    header = plan.header
    again = _again(context, plan, verification_id)
    log_activity(f"marking {len(context.config.lakes):,} lakes afresh")
    tables = [mark(spark, again, lake.name) for lake in track(context.config.lakes, "lakes", len(context.config.lakes))]
    if resumed and not only_ending:
        _refuse_newly_unreadable(header, list_unreadable(tables))
    count, earlier = live_count(tables, header.storage), AcceptedRun.of(context, header)
    checks = [
        gates.live_set(count.files, 1),
        gates.live_drop(count, earlier.count(count), context.storage(header.storage).gates.max_live_drop),
        gates.lakes_present(earlier.missing_lakes(count)),
        gates.unreadable_tables(list_unreadable(tables), context.storage(header.storage).gates.max_unreadable),
        gates.never_read(list_unreadable(tables), header.storage),
        gates.storages_apart(context.overlapping_storages(header.storage)),
    ]
    aliases = planned_by_alias(
        spark, again, header.storage, tables, lambda: read_table(spark, context.state, DELETION_PLAN, plan.published)
    )
    checks.append(gates.links(len(aliases), aliases))
    overrides = plan.verdict.overrides
    failed = [gate for gate in checks if not gate.passed and not (gate.overridable and gate.name in overrides)]
    if failed and not only_ending:
        lines = "\n".join(f"  {gate.name}: {gate.message}" for gate in failed)
        raise GateRefused(f"plan {header.plan_id} no longer fits the lakes; make a new one:\n{lines}")
    session = choose_session(spark, *_size(context.state, plan, tables))
    rows = _Rows.proven(session, context.state, plan)
    refs = [again.table(LAKE_REFS, lake.name) for lake in again.config.lakes]
    frozen_at = min(table.summary(LakeRefsSummary).frozen_at for table in refs)
    judge = Revalidation.of(again, header, refs, tables)
    return _Fresh(session, again, header.storage, tables, refs, rows, judge, frozen_at, list_unreadable(tables))


def _size(state: State, plan: StoredPlan, live: Sequence[PublishedTable]) -> tuple[int, int]:
    """Returns how many rows, in how many files, an apply compares with a fresh mark: those of the
    plan, of what is needed and of the ledger.
    """
    parts = [*plan.published.parts(), *(part for table in live for side in (None, EXPIRED_SIDE) for part in table.parts(side))]
    waiting = LogReader.of(state, plan.header.storage)
    return sum(part.rows for part in parts) + waiting.rows, len(parts) + waiting.part_count


@dataclass
class _Execution:
    """One run of `apply`: what it did, phase by phase, and the log that it publishes."""

    spark: SparkSession
    context: RunContext
    plan: StoredPlan
    log: WriteAheadLog
    lease: Lease
    only_interrupted: bool
    by_outcome: dict[tuple[str, str], Totals] = field(default_factory=dict[tuple[str, str], Totals])
    written: list[WrittenParts] = field(default_factory=list[WrittenParts])
    # How many files the phases so far were to act on.
    asked: int = 0
    failed: frozenset[HistoryName] = frozenset()
    not_made: frozenset[HistoryName] = frozenset()

    def __post_init__(self) -> None:
        header = self.plan.header
        self.run = start_run(self.context, header.storage, DELETION_LOG, header.run_date)

    def act(self, phase: str, fresh: _Fresh) -> None:
        """Executes the plan's rows of a phase: few in this process, many in executors."""
        header = self.plan.header
        # A file may be purged so many days after its quarantine: no executor's clock makes it older.
        clock = self.context.clock.not_before_now()
        task = RowExecutor(
            self.context.store(header.storage), self.log, self.lease, clock, header.plan_id, self.run.run_id, self.only_interrupted
        )
        log_activity(f"{phase}: {header.totals[phase].files:,} files, {format_bytes(header.totals[phase].bytes)}")
        self.asked += header.totals[phase].files
        judged = self._judged(phase, fresh)
        few = self.log.shares == 1 and header.totals[phase].files <= engine.MAX_IN_PROCESS_ACTIONS
        with count_progress("files on record", self.log.count_outcomes, self.asked):
            for part in self._act_here(task, judged) if few else self._act_in_executors(task, judged, phase):
                for (_, outcome), total in part.totals.items():
                    self.by_outcome[phase, outcome] = self.by_outcome.get((phase, outcome), Totals()) + total
                self.written.append(part)
        require_balance(header.totals[phase].files, {outcome: total.rows for (of, outcome), total in self.by_outcome.items() if of == phase})

    def _act_here(self, task: RowExecutor, judged: DataFrame) -> Iterator[WrittenParts]:
        yield execute_in_process(task, collect_arrow(judged, EXECUTION_ROWS), self.run, self.context.state.files, TOTALS_BY)

    def _act_in_executors(self, task: RowExecutor, judged: DataFrame, phase: str) -> Iterator[WrittenParts]:
        """Metadata is one task, in the order of reference; of a hundred files one or two are
        metadata. All else is many tasks. Metadata goes first, and comes back last.
        """
        share, tasks = F.pmod(F.xxhash64("key"), F.lit(self.log.shares)), min(parallelism(self.spark), self.log.shares)
        names_others = F.coalesce(F.col("kind").isin(*RANKS), F.lit(False))
        there = {kind in RANKS for kind in self.plan.header.by_kind.get(phase, [*RANKS, UNNAMED])}
        if len(there) > 1:
            judged.persist()  # the joins are made once
        try:
            for metadata in sorted(there, reverse=phase != RESTORE):
                if metadata:
                    rows, sharers = order_in_one_task(judged.filter(names_others), phase, share), 1
                else:
                    rows = judged.filter(~names_others).repartition(tasks, share).sortWithinPartitions(share, "key")
                    sharers = max_parallel_tasks(self.spark, tasks)
                acted = rows.mapInArrow(BudgetedTask(task, sharers), OUTCOME_ROWS)
                yield write_frame(acted, DELETION_LOG, self.run, self.context.state, TOTALS_BY, counted=True)
        finally:
            judged.unpersist()

    def _judged(self, phase: str, fresh: _Fresh) -> DataFrame:
        """Returns the plan's rows of a phase, each with who needs it by now and whether it may go
        (columns `EXECUTION_ROWS`).

        A copy is in quarantine if the ledger holds the very object that the plan names.
        """
        header, state = self.plan.header, self.context.state
        days = self.context.storage(header.storage).quarantine_days
        waiting = quarantine_ledger(fresh.spark, state, header.storage, rehearsal=self.context.clock.is_rehearsal).select(
            "key",
            "source_plan_id",
            "quarantined_at",
            *[F.col(name).alias(f"held_{name}") for name in _NAMES_A_COPY],
        )
        is_held = reduce(and_, [F.col(name).eqNullSafe(F.col(f"held_{name}")) for name in _NAMES_A_COPY])
        early = F.col("quarantined_at") > F.lit(fresh.frozen_at - timedelta(days=days))
        too_early = F.concat(F.lit("in quarantine since "), F.col("quarantined_at").cast("string"), F.lit(f", not for {days} days yet"))
        failed, not_made = (F.col("after_expiry") & _is_one_of(histories) for histories in (self.failed, self.not_made))
        uncertain = F.concat(F.lit("an edit of the history of lake "), "held_by", F.lit(" was not made, which was to free it"))
        gone = sorted(header.refs_digests.keys() - {lake.name for lake in self.context.config.lakes})
        unheard = F.lit(f"lake {gone[0]} left the configuration, so nobody can say that it is not needed" if gone else None).cast("string")
        told = {
            "in_quarantine": F.col("quarantined_at").isNotNull() & is_held,
            REFUSED: F.coalesce(REFUSED, F.when((F.col("action") == PURGE) & early, too_early)),
            "retry": failed & ~F.coalesce("is_live", F.lit(False)),
            "needed": F.coalesce("needed", F.when(failed | not_made, uncertain), unheard),
        }
        return (
            fresh.rows.judged(phase, fresh.judge)
            .join(fresh.needed, "key", "left")
            .join(waiting, ["key", "source_plan_id"], "left")
            .withColumns(told)
            .select(*EXECUTION_ROWS.names)
        )

    def expire(self, verification_id: str) -> bool:
        """Makes the plan's edits of history.

        Returns true where any was left to be settled: what was marked before is then out of date.
        """
        again = _again(self.context, self.plan, verification_id)
        expired = expire_lakes(self.spark, self.context, again, self.plan, self.lease, only_interrupted=self.only_interrupted)
        self.by_outcome |= {(EXPIRE, verdict): Totals(count) for verdict, count in expired.counts.items()}
        self.failed, self.not_made = expired.failed, expired.not_made
        return expired.edited

    def remember(self, verification_id: str) -> None:
        """Publishes the snapshot histories of the edited lakes anew, from the fresh mark."""
        for lake in self.context.config.lakes:
            if self.context.kind(lake.name).has(SNAPSHOT_HISTORY) and lake.name in self.plan.header.expiry_actions:
                snapshot_history(self.spark, _again(self.context, self.plan, verification_id), lake.name)

    def abort(self, fresh: _Fresh) -> None:
        """Aborts the plan's uploads in parts. They are few, and this process asks for them."""
        rows = abort_uploads(
            self.context,
            self.plan,
            fresh.judge,
            fresh.unreadable,
            self.log,
            self.lease,
            self.run.run_id,
            only_interrupted=self.only_interrupted,
        )
        written = write_rows(pa.Table.from_batches([rows]), DELETION_LOG, self.run, self.context.state.files, totals_by=["outcome"])
        self.by_outcome |= {(ABORT, outcome): total for (outcome,), total in written.totals.items()}
        self.written.append(written)
        require_balance(self.plan.header.uploads.count, {outcome: total.rows for (outcome,), total in written.totals.items()})

    def publish(self, chosen: Sequence[str]) -> ApplyResult:
        """Publishes the log, with balanced books. Raises `GateRefused` where the lease was lost.

        The plan is finished where this run executed every phase of it and nothing failed.
        """
        self.lease.check()
        header, state, verdict = self.plan.header, self.context.state, self.plan.verdict
        of_files = [phase for phase in chosen if phase != EXPIRE]
        summary = DeletionLogSummary(
            plan_id=header.plan_id,
            phases=tuple(chosen),
            approved_by=verdict.approved_by,
            approval_events=verdict.events,
            overrides=verdict.overrides,
            by_outcome=_amounts(self.by_outcome, of_files),
            edits={verdict: total.rows for (phase, verdict), total in sorted(self.by_outcome.items()) if phase == EXPIRE},
        )
        published = None
        if of_files:
            together = WrittenParts(
                tuple(item for part in self.written for item in part.parts), sum(part.digest for part in self.written) % 2**64
            )
            planned = sum(header.uploads.count if phase == ABORT else header.totals[phase].files for phase in of_files)
            published = publish(
                state,
                self.run,
                together,
                self.context.clock,
                inputs=[self.plan.published],
                balances=[Balance(name="planned keys with an outcome", expected=planned, found=together.rows)],
                summary=summary,
                unsafe=self.context.unsafe,
            )
            _write_stats(state, header, self.by_outcome)
        if not any(self._failed(phase) for phase in chosen) and list(chosen) == phases_of(header, PHASES):
            finished = {"at": self.context.clock.now().isoformat(), "run_id": self.run.run_id, **summary.model_dump(mode="json")}
            record_finished(state, header, finished)
        return ApplyResult(published, self.by_outcome)

    def _failed(self, phase: str) -> int:
        return self.by_outcome.get((phase, FAILED), Totals()).rows


def _is_one_of(histories: Collection[HistoryName]) -> Column:
    names = [F.lit("/".join(part for part in history if part is not None)) for history in sorted(histories, key=str)]
    return F.array_contains(F.array(*names).cast("array<string>"), F.concat_ws("/", "held_by", "held_by_table"))


def _amounts(by_outcome: dict[tuple[str, str], Totals], phases: Sequence[str]) -> dict[str, Amount]:
    return {f"{phase}/{outcome}": total.amount for (phase, outcome), total in sorted(by_outcome.items()) if phase in phases}


def _write_stats(state: State, header: PlanHeader, by_outcome: dict[tuple[str, str], Totals]) -> None:
    lines = ["plan_id,phase,outcome,files,bytes"]
    lines += [f"{header.plan_id},{phase},{outcome},{total.rows},{total.size_bytes}" for (phase, outcome), total in sorted(by_outcome.items())]
    path = f"{header.storage}/{DELETION_LOG.name}/stats/{header.run_date.isoformat()}.csv"
    state.files.replace(path, ("\n".join(lines) + "\n").encode())


def _forget_dead(context: RunContext, storage_name: str, token: int) -> None:
    """Removes the marks of applies of the storage that were killed. A lease with an older token is
    over, so nobody reads or writes them any more.
    """
    left = [name.rpartition("-") for name in context.state.files.directories(VERIFICATION_MARKS)]
    dead = [(plan_id, number) for plan_id, _, number in left if number.isdecimal() and int(number) < token]
    ours = {plan.header.plan_id for plan in list_plans(context.config, storage_name, empty=True)} if dead else set[str]()
    for plan_id, number in dead:
        if plan_id in ours:
            _forget(context.state, f"{plan_id}-{number}")


def _forget(state: State, verification_id: str) -> None:
    if verification_id in state.files.directories(VERIFICATION_MARKS):
        state.files.delete_directory(f"{VERIFICATION_MARKS}/{verification_id}")
