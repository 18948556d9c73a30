"""Record all snapshots of a lake, including those removed from the metadata by expiry.

The idea comes from Iceberg proposal 10646, "Extend Snapshot Reference Lifecycle". The history is
stored in the state, because other engines delete catalog properties that they do not support. Each
table is computed from the newest earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.commands import command
from gc_assets.core.errors import StateError, UsageError
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import Totals, collect, frame_from_arrow, publish, read_paths, read_table, write_frame
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.lakes.protocol import REMOVE_SNAPSHOT
from gc_assets.stages.mark.history_publication import publish_history
from gc_assets.stages.mark.lake_refs import read_frozen_refs
from gc_assets.state.compaction import Segments
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_LOG, LAKE_REFS, REACHABLE_SNAPSHOTS
from gc_assets.state.summaries import LakeRefsSummary, SnapshotHistorySummary

SNAPSHOT_HISTORY: Final = table_with(TableRole.HISTORY)
ID: Final = ("table_uuid", "snapshot_id")
REMOVED_BY_OTHER_TOOL: Final = "no longer listed when the table was read; another tool removed it"


@log_progress(SNAPSHOT_HISTORY)
def snapshot_history(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `snapshot_history` for a run date.

    The table contains all current snapshots. A removed snapshot stays in it for `history.keep`. A
    verification mark (made by an apply before it acts) replaces the newest table, to include the
    apply's own removals.
    """
    state = context.state
    inputs = [context.table(table, lake_name) for table in (LAKE_REFS, COMMIT_GRAPH, REACHABLE_SNAPSHOTS)]
    seen_at = inputs[0].summary(LakeRefsSummary).frozen_at
    newest = state.latest(lake_name, SNAPSHOT_HISTORY.name)
    day = context.run_date
    if newest is not None and context.verification_id is not None:
        day = max(day, newest.receipt.run_date)
    earlier = _newest(context, lake_name, day)
    edits = _expiry_logs(context, lake_name)
    spark = _choose_session(spark, edits, [*inputs, *([earlier] if earlier is not None else [])])
    listed = _list_snapshots(read_table(spark, state, COMMIT_GRAPH, inputs[1]), read_table(spark, state, REACHABLE_SNAPSHOTS, inputs[2]))
    known = read_table(spark, state, SNAPSHOT_HISTORY, earlier)
    missing = known.join(listed.select(*ID), list(ID), "left_anti")
    # Snapshots of unreadable tables are not expired.
    unread = [item.table_name for item in inputs[0].summary(LakeRefsSummary).unread]
    is_unread = F.coalesce(F.col("table_name").isin(unread), F.lit(False))
    removed, unknown = missing.filter(~is_unread), missing.filter(is_unread)
    expired = (
        _add_removals(spark, context, edits, removed)
        .select(
            *[name for name in SNAPSHOT_HISTORY.schema.names if name not in {"expired", "expired_at", "reason", "plan_id"}],
            F.lit(True).alias("expired"),
            F.coalesce("removed.at", "expired_at", F.lit(seen_at)).alias("expired_at"),
            F.coalesce("removed.reason", "reason", F.lit(REMOVED_BY_OTHER_TOOL)).alias("reason"),
            F.coalesce("removed.plan_id", "plan_id").alias("plan_id"),
        )
        .filter(F.col("expired_at") >= F.lit(seen_at - _retention_period(context, lake_name)))
    )
    rows = listed.unionByName(expired.select(*listed.columns)).unionByName(unknown.select(*listed.columns))
    run = start_run(context, lake_name, SNAPSHOT_HISTORY, day)
    log_activity(f"{inputs[1].rows:,} snapshots listed, {earlier.rows if earlier is not None else 0:,} known from earlier runs")
    written = write_frame(rows, SNAPSHOT_HISTORY, run, state, ["expired"])
    published = None
    # A repeated run of an earlier date also lists snapshots that were removed later, so its
    # history is not published.
    if newest is None or newest.receipt.run_date <= day:
        before = earlier.summary(SnapshotHistorySummary).published if earlier is not None else None
        sources = read_frozen_refs(context, lake_name, inputs[0]).sources
        published = publish_history(context, lake_name, written.paths(run), sources, _retention_period(context, lake_name), before)
    summary = SnapshotHistorySummary(
        listed=sum(total.rows for key, total in written.totals.items() if key == ("false",)),
        expired=sum(total.rows for key, total in written.totals.items() if key == ("true",)),
        published=published,
    )
    return publish(
        state, run, written, context.clock, inputs=[*inputs, *([earlier] if earlier else [])], summary=summary, unsafe=context.unsafe
    )


def record_removals(spark: SparkSession, context: RunContext, lake_name: str, plan_id: str, actions: pa.Table) -> PublishedTable:
    """Publish the newest snapshot history again, with the plan and reason of each removal.

    Args:
        context: The run context of the verification mark.
        plan_id: The plan that removes the snapshots.
        actions: The removals (columns of `expiry_plan`).

    Raises:
        StateError: If a snapshot to remove is missing from the history, so that its removal would
            not be recorded.
    """
    state = context.state
    newest = _newest(context, lake_name, context.clock.today())
    if newest is None:
        raise StateError(
            f"Cannot remove snapshots of lake {lake_name}: it has no snapshot_history in which to record them. Run "
            f"`{command('run', lake=lake_name, through='snapshot_history')}` first"
        )
    graph = context.table(COMMIT_GRAPH, lake_name)
    spark = _choose_session(spark, _expiry_logs(context, lake_name), [newest, graph])
    removed = actions.filter(pc.equal(actions.column("action"), REMOVE_SNAPSHOT)).select([*ID, "reason"])
    removals = frame_from_arrow(spark, removed).withColumnRenamed("reason", "removal_reason")
    known = read_table(spark, state, SNAPSHOT_HISTORY, newest)
    rows = known.join(removals, list(ID), "left").select(
        *[name for name in SNAPSHOT_HISTORY.schema.names if name not in {"reason", "plan_id"}],
        F.coalesce("removal_reason", "reason").alias("reason"),
        F.when(F.col("removal_reason").isNotNull(), plan_id).otherwise(F.col("plan_id")).alias("plan_id"),
    )
    run = start_run(context, lake_name, SNAPSHOT_HISTORY, newest.receipt.run_date)
    written = write_frame(rows, SNAPSHOT_HISTORY, run, state, ["plan_id"])
    if written.totals.get((plan_id,), Totals()).rows < removed.num_rows:
        listed = read_table(spark, state, COMMIT_GRAPH, graph).select("table_uuid", F.col("commit_id").alias("snapshot_id"))
        _refuse_unrecorded(lake_name, removals.join(listed, list(ID), "left_semi").join(known.select(*ID), list(ID), "left_anti"))
    return publish(
        state, run, written, context.clock, inputs=[newest], summary=newest.summary(SnapshotHistorySummary), unsafe=context.unsafe
    )


def _refuse_unrecorded(lake_name: str, snapshots: DataFrame) -> None:
    for row in collect(snapshots.limit(1)):
        raise StateError(
            f"Cannot remove snapshot {row['snapshot_id']} of table {row['table_uuid']} in lake {lake_name}: the snapshot is "
            "not in snapshot_history, so its removal would not be recorded. Start `gc-assets run` again"
        )


def _expiry_logs(context: RunContext, lake_name: str) -> Segments:
    """Find the logs of all edits to the lake's history."""
    return context.state.segments(context.state.history(lake_name, EXPIRY_LOG.name))


def _choose_session(spark: SparkSession, edits: Segments, tables: Sequence[PublishedTable]) -> SparkSession:
    """Choose a Spark session for a query over the given tables and all edit logs."""
    rows, files = sum(table.rows for table in tables), sum(len(table.paths()) for table in tables)
    return choose_session(spark, rows + sum(log.rows for log in edits.runs), files + len(edits.paths()))


def _newest(context: RunContext, lake_name: str, until: date) -> PublishedTable | None:
    return context.state.latest(lake_name, SNAPSHOT_HISTORY.name, before=until + timedelta(days=1))


def _retention_period(context: RunContext, lake_name: str) -> timedelta:
    keep = context.config.lake(lake_name).record_max_age
    if keep is None:
        raise UsageError(
            f"Cannot open snapshot_history of lake {lake_name}: its kind {context.kind(lake_name).name} has no such table. "
            "Choose a lake of kind iceberg"
        )
    return keep


def _list_snapshots(commits: DataFrame, reachable: DataFrame) -> DataFrame:
    """Select the snapshots that table metadata lists, as rows of `snapshot_history`."""
    reached = reachable.select("table_uuid", "commit_id", "refs")
    return commits.join(reached, ["table_uuid", "commit_id"]).select(
        "table_uuid",
        F.col("commit_id").alias("snapshot_id"),
        "table_name",
        F.get(F.col("parents"), F.lit(0)).alias("parent_id"),
        "committed_at",
        F.col("message").alias("operation"),
        "summary",
        F.get(F.col("content_roots"), F.lit(0))["address"].alias("manifest_list"),
        "refs",
        F.lit(False).alias("expired"),
        F.lit(None).cast("timestamp").alias("expired_at"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("string").alias("plan_id"),
    )


def _add_removals(spark: SparkSession, context: RunContext, edits: Segments, snapshots: DataFrame) -> DataFrame:
    """Add the column `removed` with the log entry of the plan that removed the snapshot, if any."""
    paths = edits.paths()
    if not paths:
        return snapshots.withColumn("removed", F.lit(None).cast("struct<at: timestamp, reason: string, plan_id: string>"))
    log = read_paths(spark, context.state.files, EXPIRY_LOG.schema, paths).filter("action = 'remove_snapshot' and outcome = 'done'")
    return snapshots.join(log.groupBy(*ID).agg(F.max(F.struct("at", "reason", "plan_id")).alias("removed")), list(ID), "left")
