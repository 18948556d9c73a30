"""Executes one approved plan: lease, fresh mark, then restore, quarantine and purge, with intents and outcomes on record.

Acts and never decides: the rows are the plan's, less what the fresh mark found live again.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core import gates
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError
from gc_assets.core.paths import overlapping
from gc_assets.core.plan import PlanHeader
from gc_assets.core.receipts import Balance, Published, State
from gc_assets.schemas import DELETION_LOG, DELETION_PLAN, LIVE_FILES
from gc_assets.stages.approvals import StoredPlan, execution_directory, refuse_gates, refuse_historical
from gc_assets.stages.deletion_plan import PURGE, QUARANTINE, RESTORE
from gc_assets.stages.live_files import EXPIRED_SIDE
from gc_assets.stages.mark import mark
from gc_assets.stages.night import RECHECK, Night
from gc_assets.stages.quarantine_ledger import quarantine_ledger
from gc_assets.stages.tables import Totals, Written, collect, parallelism, publish, read_table, row_hash, spark_schema, write_frame
from gc_assets.stores.execution import balance, execute, outcome_rows, planned_rows
from gc_assets.stores.lease import LocalLease, acquire
from gc_assets.stores.protocol import ABSENT, CHANGED, DENIED, DONE, FAILED, Planned, Quarantine, Result
from gc_assets.stores.quarantine import open_quarantine
from gc_assets.stores.write_ahead import WriteAheadLog, open_log

ACT_COLUMNS: Final = ("key", "action", "size_bytes", "etag", "version_id", "source_plan_id", "quarantine", "live_in", "in_quarantine")
# The order of design 6.4; `expire` comes between restore and quarantine where a plan has expiry actions.
PHASES: Final = (RESTORE, QUARANTINE, PURGE)


@dataclass(frozen=True, slots=True)
class Applied:
    """The published log and the books: outcomes to rows and bytes, per phase. `nothing_to_do` says why where nothing was."""

    published: Published | None
    books: dict[tuple[str, str], Totals]
    nothing_to_do: str | None = None


def apply_plan(spark: SparkSession, night: Night, plan: StoredPlan, phases: Sequence[str] = PHASES) -> Applied:
    """Executes the plan's rows of the given phases, or resumes where an earlier run of it stopped.

    Raises `GateRefused` where the plan is not approved, expired before it began, not of this storage or policy, or where
    the fresh mark no longer supports it; nothing is changed then. A restore needs no approval.
    """
    header, state = plan.header, night.state
    already = nothing_to_do(plan)
    if already is not None:
        return Applied(None, {}, already)
    refuse_apply(night, plan, phases)
    stale = night.clock.now() >= header.apply_before or header.policy_digest != night.config.policy_digest()
    stale = stale or night.storage(header.storage).quarantine != header.quarantine
    owner = plan.approval.by if plan.approval is not None else getpass.getuser()
    lease = acquire(header.location, header.plan_id, owner, night.clock)
    recheck = f"{header.plan_id}-{lease.token}"
    try:
        live = _protected(spark, night, plan, recheck, only_ending=stale)
        lease.renew()  # the mark may have taken longer than a lease lasts
        log = open_log(state.files, log_directory(header, phases), header.plan_id, header.rows)
        rows = read_table(spark, state, DELETION_PLAN, plan.published)
        _same_rows(rows, plan)
        return _execute(spark, night, plan, rows, live, log, lease, phases, only_interrupted=stale and tuple(phases) != (RESTORE,))
    finally:
        _forget(state, recheck)
        lease.release()


def nothing_to_do(plan: StoredPlan) -> str | None:
    """Why applying this plan would change nothing; null for one that may still be executed."""
    if plan.restored_at is not None:
        return f"files of this plan were restored at {plan.restored_at.isoformat()}; make a new plan"
    if plan.finished is not None:
        return f"this plan was applied in full at {plan.finished['at']}; applying it again changes nothing"
    return None


def refuse_apply(night: Night, plan: StoredPlan, phases: Sequence[str] = PHASES) -> None:
    """Raises `GateRefused` where the plan must not be executed, from what the configuration and the state say."""
    header = plan.header
    begun = any(item.name == "log.json" for item in night.state.files.list(execution_directory(header)))
    too_late = night.clock.now() >= header.apply_before
    storage = night.storage(header.storage)
    refuse_historical(header)
    if storage.mode != "apply":
        raise GateRefused(
            f"storage {storage.name} is in mode plan, so nothing in it is changed. "
            "Set `mode: apply` for it in lakes.yaml, or pass --mode apply for this once."
        )
    if header.rehearsal != night.clock.is_rehearsal:
        made = "a rehearsal (GC_ASSETS_UNSAFE_NOW)" if header.rehearsal else "the real clock"
        raise GateRefused(f"plan {header.plan_id} was made under {made}, and now the clock is another; make a new plan")
    if storage.location != header.location or (storage.quarantine != header.quarantine and not begun):
        raise GateRefused(
            f"plan {header.plan_id} was made for {header.location} with quarantine {header.quarantine}; "
            f"the configuration now says {storage.location} and {storage.quarantine}. Make a new plan."
        )
    if tuple(phases) == (RESTORE,):
        return
    if plan.approval is None:
        raise GateRefused(f"plan {header.plan_id} is not approved; approve it with `gc-assets approve {header.plan_id[:12]} --by WHO`")
    refuse_gates(header, plan.approval.overrides)
    if header.policy_digest != night.config.policy_digest() and not begun:
        raise GateRefused(f"plan {header.plan_id} was made under another policy than the configuration now holds; make a new plan")
    if too_late and not begun:
        raise GateRefused(
            f"plan {header.plan_id} could be applied until {header.apply_before.isoformat()}; make a new one with `gc-assets run`"
        )


def _same_rows(rows: DataFrame, plan: StoredPlan) -> None:
    """Raises `StateError` unless the rows are those whose digest the plan's id was made of."""
    total = collect(rows.agg(F.sum(row_hash(rows.schema).cast("decimal(38,0)")).alias("digest")))[0]["digest"]
    found = f"{int(total or 0) % 2**64:016x}"
    if found != plan.header.rows_digest:
        raise StateError(
            f"plan {plan.header.plan_id}: its rows have the digest {found}, it was approved with {plan.header.rows_digest}; "
            f"{plan.published.path} was changed after the plan was made. Make a new one with `gc-assets run`."
        )


def log_directory(header: PlanHeader, phases: Sequence[str]) -> str:
    """Where the execution is logged. Putting back alone, which needs no approval, does not begin the plan."""
    return f"{header.storage}/restore/{header.plan_id}" if tuple(phases) == (RESTORE,) else execution_directory(header)


def _protected(spark: SparkSession, night: Night, plan: StoredPlan, recheck: str, *, only_ending: bool) -> DataFrame:
    """Keys of the storage that a lake needs as of now, live or in history that a ref reaches, from refs read under the lease.

    Gates that can change are checked again, with the approval's overrides; a plan that is only brought to its end passes them.
    """
    header = plan.header
    again = replace(night, recheck=recheck, run_date=header.run_date, as_of=header.as_of)
    tables = [mark(spark, again, lake.name) for lake in night.config.lakes]
    count = sum(table.receipt.facts["by_storage"].get(header.storage, {"files": 0})["files"] for table in tables)
    checks = [
        gates.live_set(count, 1),
        gates.live_drop(count, header.live_files, night.storage(header.storage).gates.max_live_drop),
        gates.storages_apart(overlapping(night.real_locations())),
    ]
    overrides = plan.approval.overrides if plan.approval is not None else ()
    failed = [gate for gate in checks if not gate.passed and not (gate.overridable and gate.name in overrides)]
    if failed and not only_ending:
        lines = "\n".join(f"  {gate.name}: {gate.message}" for gate in failed)
        raise GateRefused(f"plan {header.plan_id} no longer fits the lakes; make a new one:\n{lines}")
    frames = [read_table(spark, night.state, LIVE_FILES, table, side) for table in tables for side in (None, EXPIRED_SIDE)]
    everything = frames[0]
    for frame in frames[1:]:
        everything = everything.unionByName(frame)
    return everything.filter(F.col("storage") == header.storage).groupBy("key").agg(F.max("lake").alias("live_in"))


def _execute(
    spark: SparkSession,
    night: Night,
    plan: StoredPlan,
    rows: DataFrame,
    live: DataFrame,
    log: WriteAheadLog,
    lease: LocalLease,
    phases: Sequence[str],
    *,
    only_interrupted: bool,
) -> Applied:
    header, state = plan.header, night.state
    books: dict[tuple[str, str], Totals] = {}
    written: list[Written] = []
    run = state.start(header.storage, DELETION_LOG.name, header.run_date, night.clock)
    ledger = quarantine_ledger(spark, state, header.storage)
    waiting = ledger.select("key", "source_plan_id", F.lit(True).alias("in_quarantine"))
    chosen = [phase for phase in PHASES if phase in phases and phase in header.totals]
    for phase in chosen:
        task = Act(header.location, log, lease, night.clock, header.plan_id, only_interrupted)
        share = F.pmod(F.xxhash64("key"), F.lit(log.shares))
        ordered = (
            rows.filter(F.col("action") == phase)
            .join(live, "key", "left")
            .join(waiting, ["key", "source_plan_id"], "left")
            .select(*ACT_COLUMNS)
            .repartition(min(parallelism(spark), log.shares), share)
            .sortWithinPartitions(share, "key")
        )
        part = write_frame(ordered.mapInArrow(task, spark_schema(DELETION_LOG.schema)), DELETION_LOG, run, state, ["phase", "outcome"])
        for key, total in part.totals.items():
            books[(key[0], key[1])] = total
        balance(header.totals[phase].files, {key[1]: total.rows for key, total in part.totals.items()})
        written.append(part)
    together = Written(tuple(item for part in written for item in part.parts), sum(part.digest for part in written) % 2**64)
    planned = sum(header.totals[phase].files for phase in chosen)
    facts = {
        "plan_id": header.plan_id,
        "phases": chosen,
        "approved_by": plan.approval.by if plan.approval is not None else None,
        "overrides": list(plan.approval.overrides) if plan.approval is not None else [],
        "books": {
            f"{phase}/{outcome}": {"files": total.rows, "bytes": total.size_bytes} for (phase, outcome), total in sorted(books.items())
        },
    }
    balances = [Balance(name="planned keys with an outcome", expected=planned, found=together.rows)]
    published = publish(state, run, together, night.clock, inputs=[plan.published], balances=balances, facts=facts, unsafe=night.unsafe)
    _write_stats(state, header, books)
    failed = sum(total.rows for (_, outcome), total in books.items() if outcome == "failed")
    if not failed and set(chosen) == set(header.totals):
        finished = {"at": night.clock.now().isoformat(), "run_id": run.run_id, **facts}
        state.files.replace(f"{execution_directory(header)}/finished.json", json.dumps(finished, indent=1).encode())
    return Applied(published, books)


def _write_stats(state: State, header: PlanHeader, books: dict[tuple[str, str], Totals]) -> None:
    lines = ["plan_id,phase,outcome,files,bytes"]
    lines += [f"{header.plan_id},{phase},{outcome},{total.rows},{total.size_bytes}" for (phase, outcome), total in sorted(books.items())]
    path = f"{header.storage}/{DELETION_LOG.name}/stats/{header.run_date.isoformat()}.csv"
    state.files.replace(path, ("\n".join(lines) + "\n").encode())


def _forget(state: State, recheck: str) -> None:
    if recheck in state.files.directories(RECHECK):
        state.files.delete_directory(f"{RECHECK}/{recheck}")


@dataclass(frozen=True)
class _OnlyInterrupted:
    """Past the plan's time, or under another policy, only what a crash left in the middle is brought to its end."""

    inner: Quarantine

    def act(self, batch: Sequence[Planned], resumed: Collection[str] = ()) -> list[Result]:
        ended = iter(self.inner.act([planned for planned in batch if planned.key in resumed], resumed))
        late = Result(DENIED, "the plan was out of date before this key was reached")
        return [next(ended) if planned.key in resumed else late for planned in batch]


@dataclass(frozen=True)
class _PutBack:
    """For keys that came back to life: what an earlier run of the plan may have moved is put back, all else is left alone."""

    inner: Quarantine
    plan_id: str
    why: Mapping[str, str]

    def act(self, batch: Sequence[Planned], resumed: Collection[str] = ()) -> list[Result]:
        moved = [
            replace(row, action=RESTORE, source_plan_id=self.plan_id) for row in batch if row.key in resumed and row.action == QUARANTINE
        ]
        restored = dict(zip([row.key for row in moved], self.inner.act(moved), strict=True))
        return [self._result(row, restored.get(row.key)) for row in batch]

    def _result(self, row: Planned, restored: Result | None) -> Result:
        if restored is not None and restored.verdict not in {DONE, ABSENT, CHANGED}:
            return Result(FAILED, f"{self.why[row.key]}, and putting it back failed: {restored.error}")
        return Result(CHANGED, self.why[row.key])


@dataclass(frozen=True)
class Act:
    """Executes the rows of a partition (columns `ACT_COLUMNS`) through the write-ahead log; runs in executors.

    A row that the fresh mark found needed is never quarantined or purged, nor is one purged that is no longer in quarantine:
    its outcome is `changed`, and what a killed run may have moved of it is put back. What an earlier run settled stays on record.
    """

    location: str
    log: WriteAheadLog
    lease: LocalLease
    clock: Clock
    plan_id: str
    only_interrupted: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            spared = dict(self._spared(batch))
            modes = batch.column("quarantine").to_pylist()
            rows = list(zip(planned_rows(batch), modes, strict=True))
            for mode in sorted(set(modes)):
                quarantine = open_quarantine(mode, self.location, self.plan_id)
                mine = [row for row, its in rows if its == mode]
                doing = _OnlyInterrupted(quarantine) if self.only_interrupted else quarantine
                wanted = execute([row for row in mine if row.key not in spared], doing, self.log, self.lease, self.clock)
                back = _PutBack(quarantine, self.plan_id, spared)
                kept = execute([row for row in mine if row.key in spared], back, self.log, self.lease, self.clock)
                yield outcome_rows([*wanted, *kept], self.plan_id, mode)

    def _spared(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        columns = ("key", "action", "live_in", "in_quarantine")
        for key, action, lake, in_quarantine in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            if action != RESTORE and lake is not None:
                yield key, f"live again: lake {lake} needs it"
            elif action == PURGE and not in_quarantine:
                yield key, "no longer in quarantine"
