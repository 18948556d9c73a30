"""List and describe dropped tables, as recorded by the sweep of a run date."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from gc_assets.config.models import Config
from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import IF_ACCEPTED, READ_BEFORE_WRITE, REPOSITORY, DroppedTable
from gc_assets.core.errors import UsageError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.units import count_of, format_bytes
from gc_assets.engine.run_context import RunContext
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE
from gc_assets.state.summaries import DroppedTableSummary

# Appended to the names of dropped tables in lists of tables.
_DROPPED_MARK: Final = " (dropped)"


def read_dropped_tables(context: RunContext, storage_name: str) -> pa.Table:
    """Read the dropped tables of a run date, beginning with the largest.

    Tables that a catalog still lists are left out.

    Returns:
        Rows with the `DROPPED_TABLES` columns.

    Raises:
        StateError: If the storage has not been swept on the run date.
    """
    swept = context.table(ORPHAN_FILES, storage_name)
    rows = read_parts(context.state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES)
    found = [row for row in rows.to_pylist() if row["gone_since"] is not None]
    ordered = sorted(found, key=lambda row: (-(row["bytes"] or 0), row["lake"], row["table_name"] or "", row["table_uuid"]))
    return pa.Table.from_pylist(ordered, schema=DROPPED_TABLES)


def dropped_names(context: RunContext, swept: PublishedTable | None) -> dict[tuple[str, str | None], str]:
    """Return the names to display of a sweep's dropped tables, keyed by lake and table UUID."""
    if swept is None or not swept.paths(DROPPED_TABLES_SIDE):
        return {}
    columns = ["lake", "table_uuid", "table_name", "gone_since"]
    rows = read_parts(context.state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES, columns).to_pylist()
    dropped = (row for row in rows if row["gone_since"] is not None and row["table_name"] is not None)
    return {(row["lake"], row["table_uuid"]): f"{row['table_name']}{_DROPPED_MARK}" for row in dropped}


def short_row(row: dict[str, Any], lake_label: str) -> dict[str, Any]:
    """Add the columns table, size and state to a row of `DROPPED_TABLES`, and format its times."""
    table = f"{lake_label}: {row['table_name'] or row['table_uuid']}"
    times = {name: f"{row[name]:%Y-%m-%d %H:%M}Z" for name in ("last_seen", "gone_since")}
    return {**row, **times, "table": table, "size": format_bytes(row["bytes"] or 0), "state": describe_state(row)}


def describe_state(row: dict[str, Any]) -> str:
    """Describe what happens to the files of a dropped table."""
    if not row["files"]:
        return "no files"
    return f"waits: {row['waits_for']}" if row["waits_for"] is not None else "planned"


def accept_command(table_uuid: str, waits_for: str | None) -> str | None:
    """Return the command that accepts a dropped table as dead, or None if this would not help."""
    if waits_for is None or not waits_for.endswith(READ_BEFORE_WRITE):
        return None
    return command("accept", table_uuid, by="YOUR_NAME")


def describe_dropped(context: RunContext, item: DroppedTableSummary, grace_cutoff: datetime, *, is_accepted: bool) -> str:
    """Describe a dropped table, its files and what they wait for, in one sentence.

    Args:
        is_accepted: True if the run is accepted. Only then has the waiting time of the table begun.
    """
    name = f"{context.config.label_of(item.lake)}: {item.table_name or item.table_uuid}"
    # All files of the table are older than the last run that read it.
    younger = ". Files younger than the grace period follow later" if item.last_seen > grace_cutoff else ""
    waits_for = item.waits_for.removesuffix(IF_ACCEPTED) if item.waits_for is not None and is_accepted else item.waits_for
    state = f"is planned{younger}" if waits_for is None else f"waits: {waits_for}"
    return f"Dropped {item.noun} {name}, {count_of(item.files, 'file')} ({format_bytes(item.bytes)}), {state}."


def find_dropped_locations(config: Config, table: str) -> tuple[str, list[str]]:
    """Look up a dropped table by name in the last run of each storage.

    Args:
        table: UUID or name of the table, optionally with the lake, such as `sales: db.orders`.

    Returns:
        The UUID of the table and its locations.

    Raises:
        UsageError: If no dropped table or more than one matches.
    """
    state = State.of(config)
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages], config.address_aliases())
    found: dict[str, list[str]] = {}
    for storage in config.storages:
        swept = state.latest(storage.name, ORPHAN_FILES.name)
        paths = swept.paths(DROPPED_TABLES_SIDE) if swept is not None else []
        for row in read_parts(state.files, paths, DROPPED_TABLES).to_pylist():
            lake = config.label_of(row["lake"])
            names = {row["table_uuid"], row["table_name"], f"{lake}: {row['table_name']}", f"{lake}/{row['table_name']}"}
            if row["gone_since"] is not None and table in names:
                addresses = [resolver.address(storage.name, prefix) for prefix in row["prefixes"]]
                found[row["table_uuid"]] = [*found.get(row["table_uuid"], ()), *addresses]
    if not found:
        raise UsageError(f"no run found a dropped table {table!r}. Pass its LOCATION, or list them with `gc-assets show dropped_tables`.")
    if len(found) > 1:
        raise UsageError(f"several dropped tables are named {table!r}. Choose one by its uuid: {', '.join(sorted(found))}")
    return next(iter(found.items()))


def find_dropped_table(context: RunContext, storage_name: str, key: str, modified: datetime | None) -> DroppedTable | None:
    """Find the dropped table that a listed file belongs to.

    Returns:
        The table, or None. A table that has adopted the file takes precedence.
    """
    from gc_assets.stages.sweep.adopted_files import read_adopted_files  # these modules import Spark
    from gc_assets.stages.sweep.dropped_tables import find_stored

    found = find_stored(context, storage_name)
    if modified is None or not found.tables:
        return None
    if (adopter := read_adopted_files(context, storage_name).find_owner(key, found.tables)) is not None:
        return adopter
    index = found.find(pa.array([key], pa.string()), pa.array([modified], TIMESTAMP))[0].as_py()
    return None if index is None else found.tables[index]


def describe(context: RunContext, item: DroppedTable) -> str:
    """Return a phrase with the name of a dropped table and how it was found to be dropped."""
    lake = context.config.label_of(item.table.lake)
    how = "server no longer has" if item.table.noun == REPOSITORY else "catalog no longer lists"
    return f"{item.table.noun} {item.table.table_name or item.table.table_uuid} of lake {lake}, which its {how}"
