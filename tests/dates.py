"""Dates for tests, which must not run over midnight UTC, because plans for an earlier day are historical."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import sleep


def now_before_midnight(minutes: float) -> datetime:
    """Return the current time. Wait for the next day if fewer minutes are left of this day."""
    now, duration = datetime.now(UTC), timedelta(minutes=minutes)
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
    if now + duration >= midnight:
        sleep((midnight - now).total_seconds() + 1)
    return datetime.now(UTC)


def next_noon(days: int) -> datetime:
    """Return the first noon UTC that is at least this many days ahead. A rehearsal from then on ends on the same date."""
    return datetime.combine((datetime.now(UTC) + timedelta(days=days, hours=12)).date(), datetime.min.time(), UTC) + timedelta(hours=12)
