"""Compute the tables that only one kind of lake has."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.lakes.kind import KindTable, TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.stages.mark.lakefs.stages import SPARK_STAGES as LAKEFS_SPARK_STAGES
from gc_assets.stages.mark.lakefs.stages import STAGES, SparkStage
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.state.journal import PublishedTable

# Stages that need Spark, by table name. `STAGES` contains the other ones.
SPARK_STAGES: Final[dict[str, SparkStage]] = {table_with(TableRole.HISTORY).name: snapshot_history, **LAKEFS_SPARK_STAGES}


def needs_spark(kind_table: KindTable) -> bool:
    """Check whether the table's stage needs a Spark session."""
    return kind_table.table.name in SPARK_STAGES


def make_kind_table(spark: SparkSession | None, context: RunContext, lake_name: str, kind_table: KindTable) -> PublishedTable:
    """Publish a table of a single kind. `spark` may be None if `needs_spark` returns False."""
    name = kind_table.table.name
    if name in SPARK_STAGES:
        if spark is None:
            raise TypeError(f"Cannot compute {name}: its stage needs a Spark session")
        return SPARK_STAGES[name](spark, context, lake_name)
    return (
        STAGES[name](context, lake_name)
        if name in STAGES
        else log_progress(kind_table.table)(_publish_rows)(context, lake_name, kind_table)
    )


def _publish_rows(context: RunContext, lake_name: str, kind_table: KindTable) -> PublishedTable:
    """Publish the rows that the kind's own function computes from the tables listed in `after`."""
    if kind_table.rows is None:
        raise TypeError(f"no stage computes {kind_table.table.name}: give its KindTable `rows`, or add a stage in {__name__}")
    state = context.state
    inputs = {table.name: context.table(table, lake_name) for table in kind_table.after}
    rows = kind_table.rows({table.name: read_rows(state, table, inputs[table.name]) for table in kind_table.after})
    run = start_run(context, context.group(lake_name), kind_table.table)
    written = write_rows(rows, kind_table.table, run, state.files)
    return publish(state, run, written, context.clock, inputs=list(inputs.values()), unsafe=context.unsafe)
