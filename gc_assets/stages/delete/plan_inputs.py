"""Collect the published tables that a plan is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.deferred_rows import list_unreadable
from gc_assets.stages.delete.missing_files import find_junk_tables, find_missing, find_tolerated
from gc_assets.stages.records.fencing_tokens import quarantine_renewed_at
from gc_assets.stages.records.set_aside import with_set_aside
from gc_assets.stages.sweep.clock_lead import first_freeze
from gc_assets.stages.sweep.listings import Listing
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES
from gc_assets.state.summaries import OrphanFilesSummary


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a storage's plan for one run date.

    Attributes:
        orphans: The storage's `orphan_files`.
        listing: The listing of the storage, made by this run or an earlier one.
        live: `live_files` of all lakes.
        refs: `lake_refs` of all lakes.
        unreadable: Tables that the marks or the sweeps could not read. Each entry records whether a
            user has set the table aside.
        missing: Tables and lakes whose files are missing in other storages. `unreadable` includes
            them.
        tolerated: Tables and lakes with missing data files in this storage, of which so few are
            missing that the gates pass.
        doubtful: Tables with unreadable metadata under their claims in other storages.
        quarantine_renewed_at: When the quarantine time of all files was restarted, see
            `records/fencing_tokens.py`. None if it never was.
    """

    context: RunContext
    storage: str
    orphans: PublishedTable
    listing: Listing
    live: list[PublishedTable]
    refs: list[PublishedTable]
    unreadable: tuple[Unreadable, ...]
    missing: tuple[Unreadable, ...]
    tolerated: tuple[Unreadable, ...] = ()
    doubtful: tuple[Unreadable, ...] = ()
    quarantine_renewed_at: datetime | None = None

    @classmethod
    def of(cls, context: RunContext, storage_name: str) -> Self:
        orphans = context.table(ORPHAN_FILES, storage_name)
        listing = Listing.of(context, storage_name)
        live, refs = context.lake_tables(LIVE_FILES), context.lake_tables(LAKE_REFS)
        missing, tolerated = find_missing(context, storage_name), find_tolerated(context, orphans)
        unreadable = _distinct((*list_unreadable(live), *orphans.summary(OrphanFilesSummary).unreadable, *missing))
        doubtful = find_junk_tables(context, storage_name)
        renewed_at = quarantine_renewed_at(context, storage_name)
        unreadable = with_set_aside(context, unreadable)
        return cls(context, storage_name, orphans, listing, live, refs, unreadable, missing, tolerated, doubtful, renewed_at)

    @property
    def inventory(self) -> PublishedTable:
        """The `storage_inventory` with the listed objects, possibly of an earlier run."""
        return self.listing.inventory

    @property
    def lacking_files(self) -> tuple[Unreadable, ...]:
        """Tables and lakes whose files the plan leaves out, because some of them are missing."""
        return _distinct((*self.missing, *self.tolerated))

    @property
    def tables(self) -> list[PublishedTable]:
        return [self.orphans, self.inventory, *self.live, *self.refs]

    @property
    def blocks_purges(self) -> bool:
        """Whether an unreadable table, which no user has set aside, might use a quarantined file."""
        return any(item.blocks_purges for item in self.unreadable)

    @property
    def frozen_at(self) -> datetime:
        """The time at which the first ref of any lake was read."""
        return first_freeze(self.refs)

    @property
    def clock_lead(self) -> timedelta:
        """How far the host's clock was ahead of the storage's during the sweep."""
        return self.orphans.summary(OrphanFilesSummary).clock_lead


def _distinct(items: tuple[Unreadable, ...]) -> tuple[Unreadable, ...]:
    """Keep only the first item for each table. A table can lack files in several storages."""
    return tuple({(item.lake, item.table_uuid, item.table_name): item for item in reversed(items)}.values())[::-1]
