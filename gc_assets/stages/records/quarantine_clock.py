"""Provide a reliable clock for the start of the quarantine time of files.

If the clock of a host is days behind, for example because its battery failed, files would be
recorded as quarantined days ago. The next run could then purge them immediately.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gc_assets.core.clock import MAX_SKEW, Clock
from gc_assets.core.units import format_duration
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import list_plans


def quarantine_clock(context: RunContext, storage_name: str) -> Clock:
    """Return a clock that is never behind `latest_time`. In a rehearsal, it is never behind now."""
    clock = context.clock.not_before_now()
    if clock.is_rehearsal:
        return clock
    latest = latest_time(context, storage_name)
    behind = latest - clock.now()
    if behind > MAX_SKEW:
        log_activity(
            f"the clock of this host is {format_duration(behind)} behind the store or the newest approved plan: "
            f"the quarantine time of files begins at {latest:%Y-%m-%d %H:%M}Z"
        )
    return replace(clock, not_before=latest)


def latest_time(context: RunContext, storage_name: str) -> datetime:
    """Return the latest of three times: the host's clock, the store's clock and the newest plan.

    Only approved plans are used, because a plan from the future cannot be approved. In a rehearsal,
    this is the fixed time of the rehearsal.
    """
    now = context.clock.now()
    if context.clock.is_rehearsal:
        return now
    approved = (plan.header for plan in list_plans(context.config, storage_name) if plan.verdict.is_approved)
    created = [header.created_at for header in approved if not header.rehearsal]
    return max(now, context.store(storage_name).now(), *created)
