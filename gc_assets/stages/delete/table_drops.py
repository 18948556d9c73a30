"""Find the tables that lost the most live files since the last accepted run.

The `live_drop` gate lists them in its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.delete.expired_since import find_input
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES

MAX_DROPS: Final = 5


@dataclass(frozen=True, slots=True)
class TableDrop:
    """A table or repository with fewer live files than in the last accepted run.

    Attributes:
        name: Names of the lake and the table.
        before: Number of live files in the accepted run. Files that the policy has expired since
            then are subtracted.
        now: Number of live files in this run.
    """

    name: str
    before: int
    now: int

    def __str__(self) -> str:
        return f"{self.name} ({self.before:,} to {self.now:,} files)"


def find_table_drops(
    context: RunContext,
    storage_name: str,
    accepted: PublishedTable,
    live: Iterable[PublishedTable],
    expired: Mapping[tuple[str, str | None], int],
) -> list[TableDrop]:
    """Return up to `MAX_DROPS` tables, beginning with the largest drop.

    Args:
        accepted: `deletion_plan` of the last accepted run.
        live: `live_files` of all lakes in this run.
        expired: Number of files expired by the policy since that run, by lake and table UUID.
    """
    drops: list[TableDrop] = []
    for now in live:
        lake = now.receipt.owner
        earlier = find_input(context, accepted, LIVE_FILES, lake)
        if earlier is None:
            continue
        try:
            before, after, names = _count(context, storage_name, earlier), _count(context, storage_name, now), _read_names(context, earlier)
        except StateError:  # the message then has no table names
            continue
        for uuid, files in before.items():
            if uuid is None and len(before) > 1:  # these files are metadata of the tables
                continue
            name = context.config.label_of(lake) + ("" if uuid is None else f": {names.get(uuid) or uuid}")
            drops.append(TableDrop(name, files - expired.get((lake, uuid), 0), after.get(uuid, 0)))
    found = [drop for drop in drops if drop.before > drop.now]
    return sorted(found, key=lambda drop: (drop.now - drop.before, drop.name))[:MAX_DROPS]


def _count(context: RunContext, storage_name: str, table: PublishedTable) -> dict[str | None, int]:
    totals = LiveSet(context, table).totals.by_all("storage", "table_uuid")
    return {uuid: amount.files for (storage, uuid), amount in totals.items() if storage == storage_name}


def _read_names(context: RunContext, live: PublishedTable) -> dict[str, str]:
    """Map the UUIDs of a lake's tables to their names in an earlier run."""
    refs = find_input(context, live, LAKE_REFS, live.receipt.owner)
    if refs is None:
        return {}
    rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"])
    rows = rows.filter(pc.is_valid(rows.column("table_name")))
    return {row["table_uuid"]: row["table_name"] for row in rows.to_pylist()}
