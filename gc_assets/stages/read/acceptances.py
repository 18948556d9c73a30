"""Describe the effect of accepting a table or prefix, based on the results of the last run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from gc_assets.config.models import Config
from gc_assets.core.foreign import HIDDEN_PATH, OTHER_FORMAT, has_hidden_directory
from gc_assets.core.printable import show
from gc_assets.core.units import count_of, format_bytes
from gc_assets.stages.records.dead_tables import DeadTable, accepted_prefixes_of, read_table_id
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE, KNOWN_VIEWS, KNOWN_VIEWS_SIDE
from gc_assets.state.summaries import OrphanFilesSummary


def describe_accepted_prefix(config: Config, storage: str, prefix: str) -> str:
    """Describe which foreign files of the last run can be planned if a prefix is accepted."""
    state = State.of(config)
    swept = state.latest(storage, ORPHAN_FILES.name)
    if swept is None:
        return f"No run has listed the foreign files of storage {storage} yet, so the effect is unknown."
    files = inner = 0
    for path in swept.paths():
        rows = read_parts(state.files, [path], ORPHAN_FILES.schema, ["key", "foreign_rule"])
        is_mine = pc.and_(pc.is_valid(rows.column("foreign_rule")), pc.starts_with(rows.column("key"), prefix))
        for row in rows.filter(is_mine).to_pylist():
            is_hidden = row["foreign_rule"] == HIDDEN_PATH and has_hidden_directory(row["key"].removeprefix(prefix))
            files, inner = files + 1, inner + (is_hidden or row["foreign_rule"] == OTHER_FORMAT)
    found = f"the run of {swept.receipt.run_date} found"
    if not files:
        return f"The record has no effect yet: {found} no foreign files under {prefix}. The notes of a run list the locations to accept."
    text = f"{found.capitalize()} {files:,} foreign files under {prefix}."
    if not inner:
        return text
    return (
        f"{text} The record may not apply to {inner:,} of them: a hidden directory, or a dataset of another format, needs a record "
        "for it or for a directory in it."
    )


def describe_dead_table(config: Config, storage: str, record: DeadTable) -> str | None:
    """Describe the effect of accepting that a table is dead (no longer used by any catalog).

    Returns:
        A message if the table or view was dropped according to the last run, or if the acceptance
        has no effect because that run found no metadata of the table under the prefix. None in all
        other cases.
    """
    state = State.of(config)
    swept = state.latest(storage, ORPHAN_FILES.name)
    if swept is None:
        return None
    rows = read_parts(state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES).to_pylist()
    if row := next((row for row in rows if row["gone_since"] is not None and read_table_id(row["table_uuid"]) == record.table_uuid), None):
        return _describe_dropped(row, accepted_prefixes_of(state, storage, record.table_uuid))
    views = read_parts(state.files, swept.paths(KNOWN_VIEWS_SIDE), KNOWN_VIEWS).to_pylist()
    if view := next((row for row in views if row["gone_since"] is not None and read_table_id(row["uuid"]) == record.table_uuid), None):
        return f"The next run plans the metadata of the dropped view {show(view['name'])} under {record.prefix}, unless a catalog lists it."
    summary = swept.summary(OrphanFilesSummary)
    mine = [item for item in summary.foreign_metadata if item.startswith(record.prefix)]
    spellings = (show(record.table_uuid), record.table_uuid.replace("-", ""))
    found = [item for item in mine if any(spelling in item.lower() for spelling in spellings)]
    if found or summary.foreign_metadata_count > len(summary.foreign_metadata):
        return None
    return (
        f"The record has no effect yet: the run of {swept.receipt.run_date} did not find metadata of table {record.table_uuid} under "
        f"{record.prefix} that blocks a plan. Copy the uuid and the location from the message of the gate foreign_metadata."
    )


def _describe_dropped(row: dict[str, Any], accepted: Sequence[str]) -> str:
    """Describe the effect of accepted prefixes on a dropped table (a row of `DROPPED_TABLES`)."""
    if other := [prefix for prefix in row["prefixes"] if not prefix.startswith(tuple(accepted))]:
        return (
            f"The dropped table {row['table_name']} also has files under {other[0]}. Accept that location too, or leave out LOCATION to "
            "accept all of them."
        )
    found = f"{count_of(row['files'] or 0, 'file')} ({format_bytes(row['bytes'] or 0)})"
    return (
        f"The next run plans the files of the dropped table {row['table_name']}, {found} in the last run, unless a table uses them or "
        "another reason to wait remains."
    )
