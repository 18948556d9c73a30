"""Determine how far the host's clock was ahead of a storage's clock when a run read the lakes.

The times of files come from the storage's clock. If the host's clock is days ahead, a new file
looks older than the grace period, and a quarantined file seems to have waited long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.errors import GcError
from gc_assets.core.units import format_duration
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import PublishedTable
from gc_assets.state.summaries import LakeRefsSummary

_NO_LEAD = timedelta(0)


def first_freeze(refs: Sequence[PublishedTable]) -> datetime:
    """Return when the first ref of any lake was read, by the clock of the host."""
    return min(table.summary(LakeRefsSummary).frozen_at for table in refs)


def find_clock_lead(context: RunContext, storage_name: str, refs: Sequence[PublishedTable]) -> timedelta:
    """Return how far the host's clock is ahead of a storage's clock, with one request to the store.

    Subtract this from the time at which refs were read before you compare it with times of files or
    with times in quarantine. If the host's clock was set back since then, the result is such that
    this time is not later than now.

    A run continues with the host's clock if the store's clock cannot be read, because the apply of
    its plan must read it.

    Returns:
        Zero in a rehearsal, or if the difference is at most `MAX_SKEW`.

    Raises:
        OSError, StoreError: If the store's clock cannot be read during an apply.
    """
    if context.clock.is_rehearsal:
        return _NO_LEAD
    frozen_at = first_freeze(refs)
    try:
        store_time = context.store(storage_name).now()
    except (GcError, OSError) as error:
        if context.verification_id is not None:
            raise
        log_activity(f"the clock of storage {storage_name} cannot be read, so this run uses the host's clock: {error}")
        return _NO_LEAD
    lead = max(context.clock.now(), frozen_at) - store_time
    if lead <= MAX_SKEW:
        return _NO_LEAD
    log_activity(describe_clock_lead(storage_name, frozen_at, lead))
    return lead


def describe_clock_lead(storage_name: str, frozen_at: datetime, lead: timedelta) -> str:
    """Return a message with both times of reading the first ref, and the next step."""
    minutes = timedelta(minutes=round(lead / timedelta(minutes=1)))
    return (
        f"The host's clock is {format_duration(minutes)} ahead of the clock of storage {storage_name}: the lakes were read at "
        f"{frozen_at:%Y-%m-%d %H:%M}Z by the host's clock, and at {frozen_at - lead:%Y-%m-%d %H:%M}Z by the storage's. "
        "The grace period and the quarantine time end by the storage's clock, but files that this host quarantines wait "
        f"{format_duration(minutes)} longer until they are purged. Set the host's clock, then run again."
    )
