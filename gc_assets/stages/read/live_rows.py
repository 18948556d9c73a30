"""Read rows of `live_files` without Spark: all of them, or those of some keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import batches, runs_of
from gc_assets.state.schemas import LIVE_FILES, Table
from gc_assets.state.summaries import LiveFilesSummary


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Files with some keys that lakes need or needed, as rows of `live_files` with their route."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, context: RunContext, keys: Collection[str]) -> LiveRows:
        """Look up the keys in all lakes that have a run. External files have their address as key."""
        tables = [table for lake in context.config.lakes if (table := context.find(LIVE_FILES, lake.name)) is not None]
        wanted = pa.array(sorted(set(keys)), pa.string())
        return cls(tuple(row for table in tables for row in LiveSet(context, table).rows_of(None, wanted).to_pylist()))

    def find(self, storage: str | None, key: str, route: str = "") -> Iterator[dict[str, Any]]:
        """Yield the rows of a file, one for each lake, in the order of the lakes."""
        return (row for row in self.rows if row["storage"] == storage and row["key"] == key and row[ROUTE] == route)


def read_table_rows(
    context: RunContext, table: Table, group: str, columns: Collection[str] | None = None, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as of the run date, at most `limit` rows.

    Raises:
        StateError: If no run is published for the date.
    """
    runs = runs_of(context.state, table, group, context.run_date)
    if table is LIVE_FILES:
        return LiveSet(context, context.table(table, group)).batches("", None if columns is None else list(columns), limit)
    return batches(context.state, table.schema, [path for run in runs for path in run.paths()], columns, limit)


def count_table_rows(context: RunContext, table: Table, group: str) -> int:
    """Count the rows of a table as of the run date, from the receipts."""
    if table is LIVE_FILES:
        return context.table(table, group).summary(LiveFilesSummary).files
    return sum(run.rows for run in runs_of(context.state, table, group, context.run_date))
