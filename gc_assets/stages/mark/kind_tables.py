"""Makes the tables that only one kind of lake has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import KindTable
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.stages.mark.lakefs.lifecycle_objects import lifecycle_objects
from gc_assets.stages.mark.lakefs.potential_commits import potential_commits
from gc_assets.stages.mark.lakefs.uncommitted_objects import uncommitted_objects
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.state.journal import PublishedTable

Stage = Callable[[RunContext, str], PublishedTable]
SparkStage = Callable[[SparkSession, RunContext, str], PublishedTable]

# Stages of boxes whose kind gives no Arrow function: first without Spark, then with it.
STAGES: Final[dict[str, Stage]] = {UNCOMMITTED_OBJECTS.name: uncommitted_objects}
SPARK_STAGES: Final[dict[str, SparkStage]] = {
    SNAPSHOT_HISTORY.name: snapshot_history,
    POTENTIAL_COMMITS.name: potential_commits,
    LIFECYCLE_OBJECTS.name: lifecycle_objects,
}


def needs_spark(kind_table: KindTable) -> bool:
    """Says whether a stage that asks for a Spark session makes the box."""
    return kind_table.table.name in SPARK_STAGES


def make_kind_table(spark: SparkSession | None, context: RunContext, lake_name: str, kind_table: KindTable) -> PublishedTable:
    """Publishes the box's table of a run date. The session may be null where the box needs none."""
    name = kind_table.table.name
    if name in SPARK_STAGES:
        if spark is None:
            raise TypeError(f"{name} is made with Spark")
        return SPARK_STAGES[name](spark, context, lake_name)
    return (
        STAGES[name](context, lake_name) if name in STAGES else log_progress(kind_table.table)(_from_rows)(context, lake_name, kind_table)
    )


def _from_rows(context: RunContext, lake_name: str, kind_table: KindTable) -> PublishedTable:
    """Publishes what the kind's own function makes of the lake's tables."""
    if kind_table.rows is None:
        raise TypeError(f"nothing makes {kind_table.table.name}: give its KindBox `rows`, or write a stage and enter it in {__name__}")
    state = context.state
    inputs = {table.name: context.table(table, lake_name) for table in kind_table.after}
    rows = kind_table.rows({table.name: read_rows(state, table, inputs[table.name]) for table in kind_table.after})
    run = start_run(context, context.group(lake_name), kind_table.table)
    written = write_rows(rows, kind_table.table, run, state.files)
    return publish(state, run, written, context.clock, inputs=list(inputs.values()), unsafe=context.unsafe)
