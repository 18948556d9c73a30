"""Find when other storages that a storage's lakes use were listed.

Another catalog may store a table's data in one storage and its metadata in another. Metadata that
was written after a storage's last listing is unknown. Files are therefore only candidates if they
are older than the last listing of every storage that the same lakes use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.newest_sweeps import find_newest_sweep
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from gc_assets.state.summaries import StorageInventorySummary


def list_claiming_lakes(context: RunContext, tables: Sequence[PublishedTable]) -> dict[str, set[str]]:
    """Return the names of the lakes that claim files, keyed by storage.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for table in tables:
        rows = read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS, ["storage", "collect"])
        for name in rows.filter(rows.column("collect")).column("storage").unique().drop_null().to_pylist():
            found[name].add(table.receipt.owner)
    return dict(found)


def find_listing_time(context: RunContext, sweep: PublishedTable) -> datetime | None:
    """Return when a sweep's objects were listed, or None if the time is unknown."""
    state, owner = context.state, sweep.receipt.owner
    inventory = state.open_input(sweep, owner, STORAGE_INVENTORY.name)
    if inventory is None:  # an earlier release pruned it
        inventory = state.current(owner, STORAGE_INVENTORY.name, sweep.receipt.run_date)
    return None if inventory is None else inventory.summary(StorageInventorySummary).as_of


def find_oldest_listing(context: RunContext, storage_name: str, tables: Sequence[PublishedTable]) -> datetime | None:
    """Return the oldest listing time among the other storages that a storage's lakes use.

    Only storages in which this storage's lakes have claims too are considered. Storages that were
    never listed are ignored. Returns None if no other storage was listed.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
    """
    claimed = list_claiming_lakes(context, tables)
    mine = claimed.get(storage_name, set())
    others = {name for name in claimed if name != storage_name and claimed[name] & mine}
    return min(_find_last_listings(context, others), default=None) if others else None


def _find_last_listings(context: RunContext, names: set[str]) -> Iterator[datetime]:
    """Yield the time when each storage was listed for its last sweep, or by this run."""
    for name in names:
        sweep = find_newest_sweep(context, name)
        listing = context.find(STORAGE_INVENTORY, name) if sweep is None else None
        if sweep is not None:
            found = find_listing_time(context, sweep)
        else:
            found = None if listing is None else listing.summary(StorageInventorySummary).as_of
        if found is not None:
            yield found
