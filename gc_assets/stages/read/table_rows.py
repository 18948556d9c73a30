"""Read the rows of any published table, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.browse import batches, find_path_edits, paths_of, runs_of
from gc_assets.state.schemas import LIVE_FILES, Table
from gc_assets.state.side_tables import EDITS_SIDE
from gc_assets.state.summaries import LiveFilesSummary


def read_table_rows(
    context: RunContext, table: Table, group: str, columns: Collection[str] | None = None, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield up to `limit` rows of a table as of the run date.

    Raises:
        StateError: If no run is published for the date.
    """
    paths = paths_of(context.state, table, group, context.run_date)
    if table is LIVE_FILES:
        from gc_assets.stages.mark.live_set import LiveSet  # this module imports PySpark, which other tables do not need

        return LiveSet(context, context.table(table, group)).batches("", None if columns is None else list(columns), limit)
    return batches(context.state, table.schema, paths, columns, limit)


def count_table_rows(context: RunContext, table: Table, group: str) -> int:
    """Count a table's rows as of the run date. Only receipts are read, not the rows themselves."""
    if table is LIVE_FILES:
        return context.table(table, group).summary(LiveFilesSummary).files
    edits = find_path_edits(context.state, table, group, context.run_date)
    more = 0 if edits is None else sum(part.rows for part in edits.parts(EDITS_SIDE))
    return sum(run.rows for run in runs_of(context.state, table, group, context.run_date)) + more
