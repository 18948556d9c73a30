"""Provide the clock that dates the beginning of the time in quarantine.

If a host's clock is days behind, for example after its battery failed, files would seem to have
been quarantined days ago. The next run could then purge them immediately.
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
    """Return a clock that never returns an earlier time than `latest_time`.

    In a rehearsal, it never returns an earlier time than now.
    """
    clock = context.clock.not_before_now()
    if clock.is_rehearsal:
        return clock
    latest = latest_time(context, storage_name)
    behind = latest - clock.now()
    if behind > MAX_SKEW:
        log_activity(
            f"the clock of this host is {format_duration(behind)} behind the store or the newest approved plan: "
            f"the time in quarantine begins at {latest:%Y-%m-%d %H:%M}Z"
        )
    return replace(clock, not_before=latest)


def latest_time(context: RunContext, storage_name: str) -> datetime:
    """Return the latest time of this host's clock, the store's clock and the newest approved plan.

    Approved plans are reliable, because a plan from the future cannot be approved. In a rehearsal,
    the result is the fixed time.
    """
    now = context.clock.now()
    if context.clock.is_rehearsal:
        return now
    approved = (plan.header for plan in list_plans(context.config, storage_name) if plan.verdict.is_approved)
    created = [header.created_at for header in approved if not header.rehearsal]
    return max(now, context.store(storage_name).now(), *created)
