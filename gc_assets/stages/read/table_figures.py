"""Compute metrics of each table, which are attached to the assets that write the tables.

Tables are read one part at a time, so only the sums are kept in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from gc_assets.core.plan import Amount
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import name_tables
from gc_assets.stages.read.run_tables import CURRENT_STATE, summarize_tables
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES
from gc_assets.state.summaries import LiveFilesSummary, OrphanFilesSummary

# Live data files below this size are counted as small.
SMALL_FILE_BYTES: Final = 32 * 2**20
# Counting small files means reading all rows again at the end of a run, so larger lakes are
# skipped.
_MAX_COUNTED_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TableFigures:
    """Metrics of one table or a whole lake.

    Attributes:
        table: The table name, or None for a whole lake.
        expired: Files that only expired history needs.
        garbage: All other garbage, without foreign files.
        reclaimable_usd: Monthly price of expired files and garbage, or None if no price is
            configured.
        snapshots: Number of snapshots or commits, including expiring ones.
        expiring: Number of snapshots or commits that the policy does not retain.
        small_files: Number of live data files below `SMALL_FILE_BYTES`, or None if not counted.
        unreadable: Why the table could not be read, or None if it could. If set, all other metrics
            are incomplete.
    """

    lake: str
    table: str | None
    live: Amount
    expired: Amount
    garbage: Amount
    reclaimable_usd: float | None
    snapshots: int
    expiring: int
    small_files: int | None
    unreadable: str | None = None

    @property
    def garbage_share(self) -> float:
        """The fraction of the table's bytes that no retained snapshot needs. 0 for empty tables."""
        unneeded = self.expired.bytes + self.garbage.bytes
        return unneeded / (unneeded + self.live.bytes) if unneeded else 0.0


def table_figures(context: RunContext, lakes: Collection[str]) -> list[TableFigures]:
    """Compute the metrics of some lakes and their tables.

    A lake is left out if it has live files in a storage without a sweep on this run date, because
    its garbage is unknown then.
    """
    swept = [storage.name for storage in context.config.storages if context.find(ORPHAN_FILES, storage.name) is not None]
    marked = [lake.name for lake in context.config.lakes if context.find(LIVE_FILES, lake.name) is not None]
    if len(marked) < len(context.config.lakes):
        return []  # a sweep needs the live sets of all lakes
    known = [lake for lake in marked if lake in lakes and _storages_of(context, lake) <= set(swept)]
    found = _tables(context, known, swept) if known else []
    return [*(_sum(lake, [item for item in found if item.lake == lake]) for lake in known), *(item for item in found if item.table)]


def reporting_storage(context: RunContext, lake: str) -> str:
    """Return the storage whose plan reports the metrics of a lake.

    This is the first storage with live files of the lake, or the first one configured.
    """
    found = _storages_of(context, lake) if context.find(LIVE_FILES, lake) is not None else set[str | None]()
    names = [storage.name for storage in context.config.storages]
    return next((name for name in names if name in found), names[0])


def _storages_of(context: RunContext, lake: str) -> set[str | None]:
    totals = LiveSet(context, context.table(LIVE_FILES, lake)).totals
    return {storage for (storage,), amount in totals.by_all("storage").items() if amount.files and storage}


def _tables(context: RunContext, lakes: Collection[str], storages: Collection[str]) -> list[TableFigures]:
    """Compute metrics for each table. Files that do not belong to a table have their own entry."""
    unreadable = _unreadable(context, lakes, storages)
    small = {lake: _count_small_files(context, lake) for lake in lakes}
    rows = summarize_tables(context, list(lakes), list(storages))
    found = list[TableFigures]()
    for row in rows:
        if row.live is None:
            continue  # too many files to count by table
        table = None if row.table == CURRENT_STATE else row.table
        counts = small[row.lake]
        found.append(
            TableFigures(
                row.lake,
                table,
                row.live,
                row.expired,
                row.garbage,
                row.reclaimable_usd,
                row.kept + row.expiring,
                row.expiring,
                None if counts is None else counts[table],
                unreadable.get((row.lake, table)) or unreadable.get((row.lake, None)),
            )
        )
    return found


def _unreadable(context: RunContext, lakes: Collection[str], storages: Collection[str]) -> dict[tuple[str, str | None], str]:
    """Return why tables could not be read, keyed by lake and table name.

    The table name is None if the whole lake could not be read.
    """
    marked = [item for lake in lakes for item in context.table(LIVE_FILES, lake).summary(LiveFilesSummary).unreadable]
    swept = [item for name in storages for item in context.table(ORPHAN_FILES, name).summary(OrphanFilesSummary).unreadable]
    return {(item.lake, item.table_name): item.why for item in [*swept, *marked]}


def _sum(lake: str, tables: Iterable[TableFigures]) -> TableFigures:
    items = list(tables)
    prices = [item.reclaimable_usd for item in items if item.reclaimable_usd is not None]
    counts = [item.small_files for item in items if item.small_files is not None]
    return TableFigures(
        lake,
        None,
        Amount.total(item.live for item in items),
        Amount.total(item.expired for item in items),
        Amount.total(item.garbage for item in items),
        sum(prices) if prices else None,
        sum(item.snapshots for item in items),
        sum(item.expiring for item in items),
        sum(counts) if len(counts) == len(items) else None,
        next((item.unreadable for item in items if item.unreadable), None),
    )


def _count_small_files(context: RunContext, lake: str) -> Counter[str | None] | None:
    """Count small live data files for each table, or return None if the lake is too large for that."""
    table = context.table(LIVE_FILES, lake)
    if table.summary(LiveFilesSummary).files > _MAX_COUNTED_ROWS:
        return None
    names, found = name_tables(context.state, context.lake_tables(LAKE_REFS)), Counter[str | None]()
    for batch in LiveSet(context, table).batches(columns=["table_uuid", "kind", "size_bytes"]):
        kinds = batch.column("kind")
        is_data = pc.or_(pc.equal(kinds, Kind.DATA), pc.equal(kinds, Kind.OBJECT))
        small = pc.and_(is_data, pc.less(batch.column("size_bytes"), SMALL_FILE_BYTES))
        for row in batch.filter(small).column("table_uuid").value_counts().to_pylist():
            found[names.get((lake, row["values"]))] += row["counts"]
    return found
