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

    The column route contains the name of the side table, or "" for live files.
    """

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, context: RunContext, keys: Collection[str]) -> LiveRows:
        """Look up the keys in the live files of every lake that has a run.

        A file outside all storages is looked up by its address.
        """
        tables = [table for lake in context.config.lakes if (table := context.find(LIVE_FILES, lake.name)) is not None]
        wanted = pa.array(sorted(set(keys)), pa.string())
        return cls(tuple(row for table in tables for row in LiveSet(context, table).rows_of(None, wanted).to_pylist()))

    def find(self, storage: str | None, key: str, route: str = "") -> Iterator[dict[str, Any]]:
        """Yield the rows of a file, one for each lake that needs it, in the order of the lakes."""
        return (row for row in self.rows if row["storage"] == storage and row["key"] == key and row[ROUTE] == route)
