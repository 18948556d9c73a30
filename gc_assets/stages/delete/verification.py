"""Make the verification mark of an apply, which marks all lakes again while holding the lease.

Gates whose result may have changed are evaluated again, and the plan's rows are verified against
the approved digest. See docs/adr/0002-three-marks-in-an-apply.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core import gates
from gc_assets.core.commands import command
from gc_assets.core.errors import GateRefused, LakeUnreadable, StateError
from gc_assets.core.gates import without_override
from gc_assets.core.hashing import digest
from gc_assets.core.plan import GateResult, PlanHeader, Unreadable
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity, track
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session, is_small
from gc_assets.engine.tables import (
    collect,
    frame_from_arrow,
    map_arrow,
    read_rows,
    read_table,
    row_hash,
    spark_schema,
)
from gc_assets.stages.delete.deferred_rows import add_deferred_rows, add_foreign_rows, list_unreadable
from gc_assets.stages.delete.foreign_findings import ForeignFindings
from gc_assets.stages.delete.foreign_rows import ForeignRows
from gc_assets.stages.delete.live_set import check_live_set
from gc_assets.stages.delete.revalidate import REFUSED, Revalidation
from gc_assets.stages.delete.uploads import planned_uploads
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.records.accepted_runs import AcceptedRun
from gc_assets.stages.records.ledger import LogReader
from gc_assets.stages.records.plans import StoredPlan, has_started, override_command
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.stages.sweep.clock_lead import find_clock_lead, first_freeze
from gc_assets.stages.sweep.dropped_tables import DROPPED
from gc_assets.stages.sweep.link_aliases import planned_by_alias
from gc_assets.stages.sweep.link_targets import find_link_targets
from gc_assets.stages.sweep.live_filter import live_count
from gc_assets.stages.sweep.needed_keys import find_needed, strongest_need
from gc_assets.stages.sweep.tail_matches import planned_by_unknown_address
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN, LAKE_REFS


def verification_context(context: RunContext, plan: StoredPlan, verification_id: str) -> RunContext:
    """Build the run context in which an apply marks all lakes again (verification mark).

    A mark in this context reads the refs again. It reuses only the cache of decoded containers,
    after it has compared the needed ones with their current objects.
    """
    return replace(context, verification_id=verification_id, run_date=plan.header.run_date, as_of=plan.header.as_of)


@dataclass(frozen=True)
class PlanRows:
    """The rows of a plan after their digest has been verified.

    Small plans are kept in memory, so that the executed rows are exactly the verified ones.
    """

    spark: SparkSession
    state: State
    plan: StoredPlan
    in_memory: pa.Table | None

    @classmethod
    def verify(cls, spark: SparkSession, state: State, plan: StoredPlan) -> Self:
        """Read the rows of a plan and verify their digest.

        Raises:
            StateError: If the digest differs from the approved one in the plan's header.
        """
        in_memory = read_rows(state, DELETION_PLAN, plan.published) if is_small(spark) else None
        rows = cls(spark, state, plan, in_memory)
        if in_memory is not None:
            total = digest(in_memory)
        else:
            hashed = row_hash(spark_schema(DELETION_PLAN.schema)).cast("decimal(38,0)")
            total = collect(rows.frame.agg(F.sum(hashed).alias("digest")))[0]["digest"]
        found = f"{int(total or 0) % 2**64:016x}"
        if found != plan.header.rows_digest:
            raise StateError(
                f"Cannot apply plan {plan.header.plan_id[:12]}: its rows in {plan.published.path} were changed after the plan was "
                f"made (digest {found}, approved {plan.header.rows_digest}). Make a new plan with `gc-assets run`."
            )
        return rows

    @property
    def frame(self) -> DataFrame:
        if self.in_memory is not None:
            return frame_from_arrow(self.spark, self.in_memory)
        return read_table(self.spark, self.state, DELETION_PLAN, self.plan.published)

    def revalidate(self, phase: str, revalidation: Revalidation) -> DataFrame:
        """Select the rows of a phase and add the `refused` column."""
        schema = DELETION_PLAN.schema.append(pa.field(REFUSED, pa.string()))
        if self.in_memory is None:
            return map_arrow(self.frame.filter(F.col("action") == phase), revalidation, schema)
        mine = self.in_memory.filter(pc.equal(self.in_memory.column("action"), phase))
        return frame_from_arrow(self.spark, pa.Table.from_batches(revalidation(iter(mine.to_batches())), schema))


@dataclass(frozen=True)
class VerificationMark:
    """The result of marking all lakes again during an apply.

    Attributes:
        spark: A session suitable for the number of rows and files.
        context: The run context of the mark.
        live: `live_files` of all lakes.
        refs: `lake_refs` of all lakes.
        revalidation: Checks plan rows against this mark.
        frozen_at: The time at which the first ref was read, by the storage's clock if the host's is
            ahead.
        foreign: Foreign metadata that the newest sweeps found.
    """

    spark: SparkSession
    context: RunContext
    storage: str
    live: Sequence[PublishedTable]
    refs: Sequence[PublishedTable]
    rows: PlanRows
    revalidation: Revalidation
    frozen_at: datetime
    unreadable: tuple[Unreadable, ...]
    foreign: ForeignFindings

    @cached_property
    def needed(self) -> DataFrame:
        """Keys that must stay, with the columns key, needed and is_live.

        These are the keys that a lake needs, and deferred keys. `needed` contains the reason.
        `is_live` is false if only expired history needs the key, and None if it is deferred. The
        frame is built on first use, because this mark may be replaced before it is needed, by one
        made after history edits.
        """
        rows = self.rows.frame if self.rows.in_memory is None else self.rows.in_memory
        by_name = find_needed(self.spark, self.context, self.storage, self.live, rows)
        found = reduce(DataFrame.unionByName, find_link_targets(self.spark, self.context, self.storage, self.live), by_name)
        need = F.max_by(F.struct("lake", "is_live", "respelled"), strongest_need()).alias("need")
        grouped = found.groupBy("key").agg(need).select("key", "need.*")
        exact = "if(is_live, concat('live again: lake ', lake, ' needs it'), concat('the history of lake ', lake, ' reaches it'))"
        whose = "if(is_live, concat('lake ', lake, ' needs '), concat('the history of lake ', lake, ' reaches '))"
        doubt = f"concat('may be needed under another spelling: ', {whose}, respelled)"
        keys = grouped.selectExpr("key", f"if(respelled is null, {exact}, {doubt}) as needed", "is_live")
        has_dropped = DROPPED in self.rows.plan.header.by_reason
        keys = add_deferred_rows(keys, self._load_rows, self.context, self.storage, self.live, self.refs, has_dropped=has_dropped)
        return add_foreign_rows(keys, self._load_rows, self.foreign.prefixes, self.foreign.doubtful)

    def _load_rows(self) -> DataFrame:
        return self.rows.frame


def make_verification_mark(
    spark: SparkSession, context: RunContext, plan: StoredPlan, verification_id: str, *, ungated: bool, resumed: bool
) -> VerificationMark:
    """Compute the live files of all lakes again during an apply. The caller must hold the lease.

    Args:
        ungated: If True, ignore the gates. Only for applies that do not remove anything.
        resumed: True if an earlier apply has already executed part of the plan.

    Raises:
        GateRefused: If a gate fails and the approval does not override it.
        LakeUnreadable: If a table has become unreadable since the plan was partly applied.
        StateError: If the plan's rows differ from the approved ones.
    """
    header = plan.header
    mark_context = verification_context(context, plan, verification_id)
    log_activity(f"marking {count_of(len(context.config.lakes), 'lake')} again")
    tables = [mark(spark, mark_context, lake.name) for lake in track(context.config.lakes, "lakes", len(context.config.lakes))]
    if resumed and not ungated:
        _refuse_newly_unreadable(header, list_unreadable(tables))
    refs = mark_context.lake_tables(LAKE_REFS)
    evidence = ForeignFindings.of_newest(mark_context, header.storage, [*refs, *tables])
    failed = _failed_gates(spark, context, mark_context, plan, refs, tables, evidence)
    if failed and not ungated:
        raise GateRefused(_describe_mismatch(context, plan, failed))
    session = choose_session(spark, *_size(context.state, plan))
    rows = PlanRows.verify(session, context.state, plan)
    lead = find_clock_lead(mark_context, header.storage, refs)
    unreadable = with_set_aside(context, list_unreadable(tables))
    foreign = ForeignRows.of(
        session, mark_context, header, [*refs, *tables], tables, rows.frame, planned_uploads(context.state, plan.published)
    )
    revalidation = Revalidation.of(mark_context, header, refs, tables, lead, foreign)
    frozen_at = first_freeze(refs) - lead
    return VerificationMark(session, mark_context, header.storage, tables, refs, rows, revalidation, frozen_at, unreadable, evidence)


def _failed_gates(
    spark: SparkSession,
    context: RunContext,
    mark_context: RunContext,
    plan: StoredPlan,
    refs: list[PublishedTable],
    tables: list[PublishedTable],
    foreign: ForeignFindings,
) -> list[GateResult]:
    """Evaluate the gates whose result may have changed since the plan was made.

    Returns:
        Failed gates, except those that the approval overrides.
    """
    header = plan.header
    limits = context.storage(header.storage).gates
    count, earlier = live_count(tables, header.storage), AcceptedRun.of(context, header)
    checks = [
        check_live_set(mark_context, header.storage, refs, tables, planned=1),
        gates.live_drop(count, earlier.count(count), limits.max_live_drop),
        gates.lakes_present(earlier.missing_lakes(count)),
        gates.unreadable_tables(with_set_aside(context, list_unreadable(tables)), limits.max_unreadable),
        gates.storages_apart(context.overlapping_storages(header.storage)),
        gates.foreign_metadata(foreign.count, foreign.samples),
    ]
    aliases = planned_by_alias(
        spark, mark_context, header.storage, tables, lambda: read_table(spark, context.state, DELETION_PLAN, plan.published)
    )
    checks.append(gates.links(len(aliases), aliases))
    unknown = planned_by_unknown_address(
        spark,
        mark_context,
        header.storage,
        tables,
        header.rows,
        lambda session: _unneeded_rows(session, mark_context, plan, tables),
    )
    checks.append(gates.unknown_addresses(unknown.addresses, unknown.files, unknown.samples, unknown.hidden))
    overrides = plan.verdict.overrides
    return [gate for gate in checks if not gate.passed and not (gate.overridable and gate.name in overrides)]


def _describe_mismatch(context: RunContext, plan: StoredPlan, failed: Sequence[GateResult]) -> str:
    """Explain why the lakes no longer match the plan, and what the user can do about it."""
    header, now = plan.header, context.clock.now()
    findings = [f"  {gate.name}: {without_override(gate)}" for gate in failed]
    advice = "If this was not intended, repair the lakes and apply the plan again."
    names = tuple(sorted({*plan.verdict.overrides, *(gate.name for gate in failed)}))
    approval = override_command(header, names) if all(gate.overridable for gate in failed) else None
    if approval is not None and now < header.approve_before:
        advice += f" To apply it anyway: `{approval}`, then apply it again."
    if header.run_date == context.clock.today():
        advice += " A run of the same date (UTC) reads the refs recorded for that date, so only a run of a later date makes a new plan."
    else:
        advice += " To make a new plan: `gc-assets run`."
    if has_started(context.state, header):
        advice += f" To end the plan without further changes: `{command('apply', header.plan_id[:12], end=True)}`."
    return "\n".join([f"plan {header.plan_id[:12]} no longer matches the lakes:", *findings, advice])


def _unneeded_rows(spark: SparkSession, mark_context: RunContext, plan: StoredPlan, tables: list[PublishedTable]) -> DataFrame:
    """Return a plan's rows without files that are live, or may be live under another spelling.

    Such files are not removed, so it does not matter which other names they have.
    """
    rows = read_table(spark, mark_context.state, DELETION_PLAN, plan.published)
    live = find_needed(spark, mark_context, plan.header.storage, tables, rows).filter("is_live")
    return rows.join(live.select("key"), "key", "left_anti")


def _refuse_newly_unreadable(header: PlanHeader, unreadable: Sequence[Unreadable]) -> None:
    """Refuse to resume a plan that may itself have made a table unreadable.

    Raises:
        LakeUnreadable: If a table is unreadable that was readable when the plan was made.
    """
    known = {(item.lake, item.table_uuid or item.table_name) for item in header.unreadable}
    if new := [item for item in unreadable if (item.lake, item.table_uuid or item.table_name) not in known]:
        names = "; ".join(item.message for item in new[:5])
        raise LakeUnreadable(
            f"Cannot resume plan {header.plan_id[:12]}: it was applied in part, and files that it moved may be the cause: {names}. "
            f"Repair the table, or run `{command('restore', plan=header.plan_id[:12])}`, then apply the plan again."
        )


def _size(state: State, plan: StoredPlan) -> tuple[int, int]:
    """Return how many rows and files the plan and the ledger have together."""
    parts, log = plan.published.parts(), LogReader.of(state, plan.header.storage)
    return sum(part.rows for part in parts) + log.rows, len(parts) + log.part_count
