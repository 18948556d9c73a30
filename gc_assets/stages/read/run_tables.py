"""Summarise a run for each table: its policy in words, its snapshots and its files.

Tables are read one part at a time, so only the sums are kept in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.compute as pc

from gc_assets.core.plan import Amount
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import REMOVE_SNAPSHOT, RETAINED
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.mark.shared_tables import EDIT_COLUMNS, SharedTables, read_expiry
from gc_assets.stages.read.usage import TableUsage, usage_by_table
from gc_assets.stages.sweep.probe import PROTECTED, UNOWNED
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary

# Counting by table means reading all files again at the end of a run, which takes too long for
# larger lakes.
MAX_COUNTED_FILES: Final = 5_000_000
# Notes about the files counted by `unowned_files`.
UNOWNED_NOTES: Final = (
    "No lake claims them, so they are not planned.",
    "If a table was dropped before the first run, see Foreign tables in docs/safety.md.",
)
# Name for a lake's files that do not belong to a commit, such as current table metadata.
CURRENT_STATE: Final = "current state"
_EXPIRED: Final = "expired"


@dataclass(frozen=True, slots=True)
class RunTable:
    """Summary of one table in a run.

    Attributes:
        table: The table name, `CURRENT_STATE`, or None if the lake is a single repository.
        policy: The table's retention policy in words.
        kept: Number of snapshots or commits that are retained. Snapshots that only another lake
            with the same table retains are included.
        expiring: Number of snapshots or commits that no policy retains.
        live: Live files, which remain after the expiry. None if they were not counted.
        expired: Files that only expired history needs.
        garbage: All other garbage, without foreign files.
        unsized: Number of live files of unknown size.
        reclaimable_usd: Monthly price of the expired files and the garbage, or None if no price is
            configured.
    """

    lake: str
    table: str | None
    policy: str
    kept: int
    expiring: int
    live: Amount | None = None
    expired: Amount = field(default_factory=Amount)
    garbage: Amount = field(default_factory=Amount)
    reclaimable_usd: float | None = None
    unsized: int = 0

    @property
    def present(self) -> Amount | None:
        """The files that exist before the expiry, or None if they were not counted."""
        return Amount.total((self.live, self.expired)) if self.live is not None else None


def summarize_tables(context: RunContext, lakes: Sequence[str], storages: Sequence[str], *, with_dropped: bool = False) -> list[RunTable]:
    """Summarise the tables of a run, beginning with the tables that have most garbage.

    Args:
        lakes: Lakes that have published `live_files`.
        storages: Storages that have a plan. Only their files are counted.
        with_dropped: If True, dropped tables get their own entries. Otherwise, their files are
            included in `CURRENT_STATE`.
    """
    shared = SharedTables.of(context, lakes)
    found = [table for lake in lakes for table in _policies(context, lake, shared)]
    named = {(item.lake, item.table) for item in found}
    files = sum(context.table(LIVE_FILES, lake).summary(LiveFilesSummary).files for lake in lakes)
    counted = bool(storages) and files <= MAX_COUNTED_FILES
    usages = _group_usages(usage_by_table(context, storages) if counted else (), named, with_dropped=with_dropped)
    found += [RunTable(lake, name, "", 0, 0) for lake, name in usages.keys() - named if name is not None and lake in lakes]
    found += [RunTable(lake, CURRENT_STATE, "", 0, 0) for lake in lakes if (lake, None) in usages and (lake, None) not in named]
    tables = [None if item.table == CURRENT_STATE and (item.lake, item.table) not in named else item.table for item in found]
    rows = [_add_files(context, item, usages[item.lake, table]) if counted else item for item, table in zip(found, tables, strict=True)]
    return sorted(rows, key=lambda item: (-item.expired.bytes - item.garbage.bytes, -item.expiring, item.lake, item.table or ""))


def _group_usages(
    found: Iterable[TableUsage], named: Collection[tuple[str, str | None]], *, with_dropped: bool
) -> dict[tuple[str, str | None], list[TableUsage]]:
    """Group the space that tables use by lake and table. The table is None if its name is unknown."""
    usages: dict[tuple[str, str | None], list[TableUsage]] = {key: [] for key in named}
    for usage in found:
        is_row = with_dropped and usage.is_dropped
        usages.setdefault((usage.lake, usage.table if is_row or (usage.lake, usage.table) in usages else None), []).append(usage)
    return usages


def _add_files(context: RunContext, item: RunTable, usages: Sequence[TableUsage]) -> RunTable:
    garbage = [(reason, amount) for usage in usages for reason, amount in usage.garbage.items()]
    prices = [context.config.storage(usage.storage).usd_per_month(usage.all_garbage.bytes) for usage in usages]
    known = [price for price in prices if price is not None]
    return replace(
        item,
        reclaimable_usd=sum(known) if known else None,
        live=Amount.total(usage.live for usage in usages),
        unsized=sum(usage.unsized for usage in usages),
        expired=Amount.total(amount for reason, amount in garbage if reason == _EXPIRED),
        garbage=Amount.total(amount for reason, amount in garbage if reason != _EXPIRED),
    )


def unowned_files(context: RunContext, storage: str) -> Amount:
    """Return the number and size of the files in a storage that no lake claims."""
    return context.table(ORPHAN_FILES, storage).summary(OrphanFilesSummary).storage_breakdown.get(UNOWNED, Amount())


def claims_outside(context: RunContext, lake: str) -> list[str]:
    """Return a lake's claimed prefixes outside all storages, whose files are not collected."""
    claims = read_side_rows(context, context.table(LAKE_REFS, lake), CLAIMS_SIDE, CLAIMS)
    return sorted({row["address"] for row in claims if row["storage"] is None and row["collect"]})


def protected_files(context: RunContext, storage: str) -> Amount:
    """Return the number and size of claimed, unused files that only a `protect` pattern keeps."""
    return context.table(ORPHAN_FILES, storage).summary(OrphanFilesSummary).storage_breakdown.get(PROTECTED, Amount())


def _policies(context: RunContext, lake: str, shared: SharedTables) -> Iterator[RunTable]:
    """Yield the tables of a lake with their policies and snapshot counts.

    A snapshot that another lake retains counts as kept.
    """
    kind, config = context.kind(lake), context.config.lake(lake)
    sources = read_side_rows(context, context.table(LAKE_REFS, lake), SOURCES_SIDE, SOURCES)
    tables = {row["table_uuid"]: (row["table_name"], row["properties"]) for row in sources}
    states = read_rows(context.state, REACHABLE_SNAPSHOTS, context.table(REACHABLE_SNAPSHOTS, lake), columns=["table_uuid", "state"])
    retained = pc.equal(states.column("state"), RETAINED)
    kept = Counter(states.filter(retained).column("table_uuid").to_pylist())
    expiring = Counter(states.filter(pc.invert(retained)).column("table_uuid").to_pylist())
    by_others = {} if shared.is_empty else shared.find_kept_edits(lake, read_expiry(context, lake, EDIT_COLUMNS))
    keeping = {uuid: by.lake for (uuid, *_), by in by_others.items()}
    removals = Counter(uuid for uuid, action, *_ in by_others if action == REMOVE_SNAPSHOT)
    for uuid, (name, properties) in tables.items():
        policy, still_kept = kind.describe_retention(config, properties), removals[uuid]
        if uuid in keeping:
            policy = f"{policy}; lake {context.config.label_of(keeping[uuid])} keeps more"
            still_kept = expiring[uuid] if uuid is None else still_kept
        yield RunTable(lake, name, policy, kept[uuid] + still_kept, expiring[uuid] - still_kept)
