"""Create Spark SQL views of the history of Iceberg tables, including expired snapshots.

The views read directly from published tables and do not write any data.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_paths, read_table
from gc_assets.stages.mark.snapshot_history import SNAPSHOT_HISTORY
from gc_assets.stages.read.browse import runs_of
from gc_assets.state.schemas import MANIFEST_ENTRIES

# Extends Iceberg's metadata table `snapshots`, which covers a single table and no expired
# snapshots. `table_name` is added as the first column and `expired` as the last one.
_ALL_SNAPSHOTS = """
SELECT table_name, committed_at, CAST(snapshot_id AS BIGINT) AS snapshot_id, CAST(parent_id AS BIGINT) AS parent_id,
       operation, manifest_list, summary, expired
FROM snapshot_history
"""
_EXPIRED_SNAPSHOTS = """
CREATE OR REPLACE TEMPORARY FUNCTION expired_snapshots(name STRING)
RETURNS TABLE (committed_at TIMESTAMP, snapshot_id BIGINT, parent_id BIGINT, operation STRING, manifest_list STRING,
               summary MAP<STRING, STRING>)
RETURN SELECT committed_at, snapshot_id, parent_id, operation, manifest_list, summary
       FROM all_snapshots WHERE expired AND table_name = expired_snapshots.name
"""


def history_views(spark: SparkSession, context: RunContext, lake_name: str) -> None:
    """Create the views `snapshot_history`, `manifest_entries` and `all_snapshots` for a lake.

    The views show the lake as of the run date, and replace the views of any other lake. This also
    creates the table function `expired_snapshots(table)`.

    Raises:
        StateError: If no run is published for the date.
    """
    state = context.state
    history = read_table(spark, state, SNAPSHOT_HISTORY, context.table(SNAPSHOT_HISTORY, lake_name))
    history.createOrReplaceTempView(SNAPSHOT_HISTORY.name)
    segments = runs_of(state, MANIFEST_ENTRIES, lake_name, context.run_date)
    entries = read_paths(spark, state.files, MANIFEST_ENTRIES.schema, [path for run in segments for path in run.paths()])
    entries.createOrReplaceTempView(MANIFEST_ENTRIES.name)
    spark.sql(_ALL_SNAPSHOTS).createOrReplaceTempView("all_snapshots")
    spark.sql(_EXPIRED_SNAPSHOTS)
