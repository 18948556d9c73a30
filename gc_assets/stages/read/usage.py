"""Report how much space each table uses in a storage, split into live files and garbage.

Tables are read one part at a time, so only the sums are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from gc_assets.core.plan import Amount
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import batches, name_tables, read_matching_rows
from gc_assets.stages.read.dropped_tables import dropped_names
from gc_assets.stages.sweep.foreign_files import FOREIGN
from gc_assets.state.journal import PublishedTable
from gc_assets.state.listings import open_listing
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES, STORAGE_INVENTORY, Table
from gc_assets.state.side_tables import PINNED, PINNED_SIDE

# File sizes are not looked up in longer listings.
MAX_LISTED: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class TableUsage:
    """The space that one table uses in a storage.

    Attributes:
        table: The table name, or None if the lake is a single repository.
        live: Live files. A file shared by several tables is counted for one of them.
        garbage: Garbage files, keyed by reason.
        unsized: Number of live files of unknown size. They do not contribute to the bytes of
            `live`.
        is_dropped: True if the table is dropped. In this case, its name has a suffix.
    """

    storage: str
    lake: str
    table: str | None
    live: Amount
    garbage: Mapping[str, Amount]
    unsized: int = 0
    is_dropped: bool = False

    @property
    def all_garbage(self) -> Amount:
        return Amount.total(self.garbage.values())


def usage_by_table(context: RunContext, storages: Iterable[str]) -> list[TableUsage]:
    """Return how much space tables use in some storages, beginning with those with most garbage."""
    frozen, dropped = name_tables(context.state, context.lake_tables(LAKE_REFS)), dict[tuple[str, str | None], str]()
    live: dict[tuple[str, str, str | None], Amount] = {}
    for lake in context.config.lakes:
        totals = LiveSet(context, context.table(LIVE_FILES, lake.name)).totals
        for (storage, uuid), amount in totals.by_all("storage", "table_uuid").items():
            live[str(storage), lake.name, uuid] = amount
    garbage: dict[tuple[str, str, str | None], dict[str, Amount]] = {}
    wanted, unsized = set(storages), dict[tuple[str, str, str | None], int]()
    for storage in wanted:
        for lake in context.config.lakes:
            if (group := (storage, lake.name, None)) in live:
                found = find_unsized_files(context, storage, lake.name)
                live[group], unsized[group] = found.add_to(live[group]), found.unknown
        orphans = context.table(ORPHAN_FILES, storage)
        dropped = dropped_names(context, orphans) | dropped
        for (lake, uuid, reason), amount in _sums(context, ORPHAN_FILES, orphans, ["lake", "table_uuid", "reason"]):
            if reason != FOREIGN:  # foreign files are not the table's garbage
                garbage.setdefault((storage, str(lake), uuid), {})[str(reason)] = amount
    groups = [group for group in live.keys() | garbage.keys() if group[0] in wanted]
    names = dropped | frozen
    shares = [
        TableUsage(
            group[0],
            group[1],
            names.get(group[1:], group[2]),
            live.get(group, Amount()),
            garbage.get(group, {}),
            unsized.get(group, 0),
            is_dropped=group[1:] in dropped and group[1:] not in frozen,
        )
        for group in groups
    ]
    return sorted(shares, key=lambda item: (-item.all_garbage.bytes, -item.live.bytes, item.storage, item.lake, item.table or ""))


@dataclass(frozen=True, slots=True)
class UnsizedFiles:
    """Files of a lake's current state whose sizes the lake does not record, such as old metadata.

    Attributes:
        bytes: Total size in bytes according to the storage's listing.
        absent: Number of files that are not listed and need not exist.
        unknown: Number of files whose size is unknown. They must exist but are not listed, or the
            listing is missing or too long.
    """

    bytes: int = 0
    absent: int = 0
    unknown: int = 0

    def add_to(self, live: Amount) -> Amount:
        """Correct the amount of live files: add the listed sizes and subtract absent files."""
        return Amount(files=max(0, live.files - self.absent), bytes=live.bytes + self.bytes)


def find_unsized_files(context: RunContext, storage: str, lake: str) -> UnsizedFiles:
    """Look up the sizes that a lake does not record for its pinned files in a storage's listing."""
    rows = read_side_rows(context, context.table(LAKE_REFS, lake), PINNED_SIDE, PINNED)
    keys = {row["key"]: row["must_exist"] for row in rows if row["storage"] == storage and row["size_bytes"] is None}
    inventory = context.find(STORAGE_INVENTORY, storage) if keys else None
    listing = open_listing(context.state, inventory) if inventory is not None else None
    if listing is None or listing.rows > MAX_LISTED:
        return UnsizedFiles(unknown=len(keys))
    schema = pa.schema([STORAGE_INVENTORY.schema.field(name) for name in ("key", "size_bytes")])
    listed = read_matching_rows(context.state, schema, listing.paths(), "key", list(keys)).to_pylist()
    sizes = {row["key"]: row["size_bytes"] for row in listed if row["size_bytes"] is not None}
    absent = sum(key not in sizes and not must_exist for key, must_exist in keys.items())
    return UnsizedFiles(sum(sizes.values()), absent, len(keys) - len(sizes) - absent)


def _sums(context: RunContext, table: Table, published: PublishedTable, by: list[str]) -> Iterator[tuple[tuple[str | None, ...], Amount]]:
    """Group a table's rows and yield the number of files and bytes in each group."""
    parts = [
        pa.Table.from_batches([batch]).group_by(by).aggregate([([], "count_all"), ("size_bytes", "sum")])
        for batch in batches(context.state, table.schema, published.paths(), [*by, "size_bytes"])
    ]
    if not parts:
        return
    summed = pa.concat_tables(parts).group_by(by).aggregate([("count_all", "sum"), ("size_bytes_sum", "sum")])
    for row in summed.to_pylist():
        yield tuple(row[name] for name in by), Amount(files=row["count_all_sum"], bytes=row["size_bytes_sum_sum"] or 0)
