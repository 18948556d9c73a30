"""Show the dropped tables of a storage, from the sweep of a run date."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from gc_assets.core.dropped_tables import DroppedTable
from gc_assets.core.units import format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE


def read_dropped_tables(context: RunContext, storage_name: str) -> pa.Table:
    """Return the dropped tables of a run date (columns `DROPPED_TABLES`), those with most bytes first.

    Tables that a catalog lists are left out.

    Raises:
        StateError: If the run date has no sweep.
    """
    swept = context.table(ORPHAN_FILES, storage_name)
    rows = read_parts(context.state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES)
    found = [row for row in rows.to_pylist() if row["gone_since"] is not None]
    ordered = sorted(found, key=lambda row: (-(row["bytes"] or 0), row["lake"], row["table_name"] or "", row["table_uuid"]))
    return pa.Table.from_pylist(ordered, schema=DROPPED_TABLES)


def dropped_names(context: RunContext, swept: PublishedTable | None) -> dict[tuple[str, str | None], str]:
    """Return the names of the dropped tables of a sweep by lake and table uuid."""
    if swept is None or not swept.paths(DROPPED_TABLES_SIDE):
        return {}
    columns = ["lake", "table_uuid", "table_name", "gone_since"]
    rows = read_parts(context.state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES, columns).to_pylist()
    dropped = (row for row in rows if row["gone_since"] is not None and row["table_name"] is not None)
    return {(row["lake"], row["table_uuid"]): f"{row['table_name']} (dropped)" for row in dropped}


def short_row(row: dict[str, Any], lake_label: str) -> dict[str, Any]:
    """Return a row with the computed columns table, size and state."""
    table = f"{lake_label}: {row['table_name'] or row['table_uuid']}"
    times = {name: f"{row[name]:%Y-%m-%d %H:%M}Z" for name in ("last_seen", "gone_since")}
    return {**row, **times, "table": table, "size": format_bytes(row["bytes"] or 0), "state": describe_state(row)}


def describe_state(row: dict[str, Any]) -> str:
    """Return what happens to the files of a dropped table."""
    if not row["files"]:
        return "no files"
    return f"waits: {row['waits_for']}" if row["waits_for"] is not None else "planned"


def find_dropped_table(context: RunContext, storage_name: str, key: str, modified: datetime | None) -> DroppedTable | None:
    """Return the dropped table that a listed file belonged to in the sweep of a run date, or None."""
    from gc_assets.stages.sweep.dropped_tables import find_stored  # it imports Spark

    found = find_stored(context, storage_name)
    if modified is None or not found.tables:
        return None
    index = found.find(pa.array([key], pa.string()), pa.array([modified], TIMESTAMP))[0].as_py()
    return None if index is None else found.tables[index]


def describe(context: RunContext, item: DroppedTable) -> str:
    """Return a sentence fragment that names a dropped table."""
    lake = context.config.label_of(item.table.lake)
    return f"table {item.table.table_name or item.table.table_uuid} of lake {lake}"
