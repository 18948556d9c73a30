"""Describe what an acceptance of a table or prefix changes, by the results of the last run."""

from __future__ import annotations

import pyarrow.compute as pc

from gc_assets.config.models import Config
from gc_assets.core.foreign import HIDDEN_PATH, OTHER_FORMAT, has_hidden_directory
from gc_assets.stages.records.dead_tables import DeadTable
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.summaries import OrphanFilesSummary


def describe_accepted_prefix(config: Config, storage: str, prefix: str) -> str:
    """Describe which foreign files of the last run an acceptance of a prefix is about."""
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
        return f"The record changes nothing now: {found} no foreign file under {prefix}. Notes of a run name the locations to accept."
    text = f"{found.capitalize()} {files:,} foreign files under {prefix}."
    if not inner:
        return text
    return (
        f"{text} The record may not change {inner:,} of them: a hidden directory, or a dataset of another format, needs a record that "
        "names it or a directory in it."
    )


def describe_dead_table(config: Config, storage: str, record: DeadTable) -> str | None:
    """Return a message if the last run found no metadata of this table under the prefix, or None."""
    swept = State.of(config).latest(storage, ORPHAN_FILES.name)
    if swept is None:
        return None
    summary = swept.summary(OrphanFilesSummary)
    found = [item for item in summary.foreign_metadata if item.startswith(record.prefix) and record.table_uuid in item.lower()]
    if found or summary.foreign_metadata_count > len(summary.foreign_metadata):
        return None
    return (
        f"The record changes nothing now: the run of {swept.receipt.run_date} found no metadata of table {record.table_uuid} under "
        f"{record.prefix} that refuses a plan. Copy the uuid and the location from the message of the gate foreign_metadata."
    )
