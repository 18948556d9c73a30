"""Look up files in `live_files` by key, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import ROUTE
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.schemas import LIVE_FILES


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Rows of `live_files` for a set of keys, including rows of expired and dangling history.

    The column `_route` contains the name of the side table, or "" for live files.
    """

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, context: RunContext, keys: Collection[str]) -> LiveRows:
        """Look up keys in the tables `live_files` of all lakes that have a run.

        A file outside all storages is looked up by its address.
        """
        tables, wanted = context.find_lake_tables(LIVE_FILES), pa.array(sorted(set(keys)), pa.string())
        return cls(tuple(row for table in tables for row in LiveSet(context, table).rows_of(None, wanted).to_pylist()))

    def find(self, storage: str | None, key: str, route: str = "") -> Iterator[dict[str, Any]]:
        """Yield the rows of a file in one side table or among live files, one for each lake."""
        return (row for row in self.rows if row["storage"] == storage and row["key"] == key and row[ROUTE] == route)
