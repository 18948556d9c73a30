"""Decide whether a run lists a storage again or uses the last listing.

A run that uses an earlier listing does not list the storage. Its only candidates are listed files
that metadata has ever referenced (`named_candidates.py`). Its plan does not purge files, because
files and metadata that appeared since the listing are unknown.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from gc_assets._version import __version__
from gc_assets.core.errors import StateError, StoreError
from gc_assets.core.units import format_duration
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.ledger import LogReader
from gc_assets.stages.sweep.report_look_up import ReportLookUp
from gc_assets.state.journal import PublishedTable
from gc_assets.state.listings import open_listing
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.state.summaries import StorageInventorySummary
from gc_assets.stores.listing import NoLookUp, RequestLookUp
from gc_assets.stores.protocol import LookUp, Report


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a storage, as listed by this run or an earlier one.

    Attributes:
        inventory: The `storage_inventory` that contains the rows.
        is_earlier: True if an earlier run listed the storage.
        as_of: Time after which changes may be missing from the rows. None if this run listed the
            storage itself.
        report: The inventory report from which the rows come.
    """

    inventory: PublishedTable
    is_earlier: bool
    as_of: datetime | None
    report: Report | None

    @classmethod
    def of(cls, context: RunContext, storage_name: str) -> Self:
        """Return the listing that is used for this run date."""
        published = context.table(STORAGE_INVENTORY, storage_name)
        inventory, summary = open_listing(context.state, published), published.summary(StorageInventorySummary)
        is_earlier = summary.earlier is not None
        name, as_of = summary.report, summary.report_as_of
        report = Report(name, as_of) if name is not None and as_of is not None else None
        return cls(inventory, is_earlier, summary.as_of if is_earlier else as_of, report)

    def look_up(self, context: RunContext, storage_name: str) -> LookUp:
        """Return a lookup for objects that are not in the listing."""
        if self.report is not None:
            return ReportLookUp(context.store(storage_name), self.report, LogReader.of(context.state, storage_name))
        return RequestLookUp(context.store(storage_name)) if self.is_earlier else NoLookUp()


def find_earlier_listing(context: RunContext, storage_name: str) -> tuple[PublishedTable | None, str | None]:
    """Decide whether the run uses an earlier listing of the storage instead of a new one.

    Returns:
        The earlier listing, or None if the storage must be listed. If it must be listed, the second
        item explains why a configured earlier listing cannot be used.
    """
    config = context.storage(storage_name).listing
    if config is None:
        return None, None
    found = _find_usable(context, storage_name, config.every)
    return (found, None) if isinstance(found, PublishedTable) else (None, found)


def require_newer_report(context: RunContext, storage_name: str, report: Report) -> None:
    """Check that a report is not older than the report or listing used by the last run.

    An older report lacks metadata of foreign tables that the last run may have found, so their
    files could look like garbage.

    Raises:
        StoreError: If it is older.
    """
    last = context.state.latest(storage_name, STORAGE_INVENTORY.name, before=context.run_date + timedelta(days=1))
    used = last.summary(StorageInventorySummary) if last is not None else None
    if used is None or used.location != context.storage(storage_name).location:
        return
    as_of, source = used.report_as_of, f"used {used.report} from"
    if as_of is None and used.rehearsal == context.clock.is_rehearsal:
        as_of, source = used.listed_at, "listed the storage at"
    if as_of is not None and report.as_of < as_of:
        raise StoreError(
            f"report {report.name} is from {report.as_of.isoformat()}, but the last run {source} {as_of.isoformat()}. "
            "Wait for a newer report, or remove `inventory` to list the storage"
        )


def has_earlier_listing(context: RunContext) -> bool:
    """Check whether the run uses an earlier listing of at least one storage.

    A damaged listing counts as none, because only the runs of its own storage need it.
    """
    return any(_has_earlier_listing(context, storage.name) for storage in context.config.storages)


def _has_earlier_listing(context: RunContext, storage_name: str) -> bool:
    try:
        return find_earlier_listing(context, storage_name)[0] is not None
    except StateError:
        return False


def describe_listing(context: RunContext, storage_name: str) -> str | None:
    """Return a sentence about the listing that is used for this run date.

    Returns None if the run listed the storage as configured, or if it has no inventory.
    """
    published = context.find(STORAGE_INVENTORY, storage_name)
    if published is None:
        return None
    summary = published.summary(StorageInventorySummary)
    if summary.earlier is not None and summary.as_of is not None:
        return f"not listed. The listing of {summary.as_of:%Y-%m-%d %H:%M} UTC is used, so only files that were ever referenced are found."
    return None if summary.listed_because is None else f"listed, because {summary.listed_because}."


def _find_usable(context: RunContext, storage_name: str, every: timedelta) -> PublishedTable | str:
    """Return the last listing, or the reason why it cannot be used."""
    last = context.state.latest(storage_name, STORAGE_INVENTORY.name, before=context.run_date + timedelta(days=1))
    if last is None:
        return "there is no earlier listing"
    try:
        listing = open_listing(context.state, last)
    except StateError:
        return "the last listing is missing in the state, or damaged"
    summary, day = listing.summary(StorageInventorySummary), listing.receipt.run_date
    if summary.listed_at is None or summary.settings != listing_settings(context, storage_name):
        return f"the settings of the storage, or the release of gc-assets, changed since the listing of {day}"
    if summary.rehearsal != context.clock.is_rehearsal:
        return f"the listing of {day} was made {'by a rehearsal' if summary.rehearsal else 'with the real clock'}"
    if summary.listed_at > context.clock.now():
        return f"the listing of {day} is later than the current time"
    if context.state.is_overtaken(last):
        return f"the run of {last.receipt.run_date} was made before one of an earlier date, so a host's clock was wrong"
    if context.run_date - day >= every:
        return f"the listing of {day} is at least {format_duration(every)} old"
    return listing


def listing_settings(context: RunContext, storage_name: str) -> str:
    """Return a digest of the release and the settings on which the rows of a listing depend."""
    storage = context.storage(storage_name)
    endpoint = context.config.endpoint_of(storage.location)
    reports = storage.inventory.model_dump(mode="json") if storage.inventory is not None else None
    return hashlib.sha256(json.dumps([__version__, storage.location, endpoint, reports]).encode()).hexdigest()
