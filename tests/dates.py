"""Days for tests. None of their stories falls over midnight (UTC), after which what was today is a historical run date."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


def now_before_midnight(minutes: float) -> datetime:
    """Now, where that many minutes are left of the day; else it waits for the next one. A story of theirs ends on the day it began."""
    now, story = datetime.now(UTC), timedelta(minutes=minutes)
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
    if now + story >= midnight:
        time.sleep((midnight - now).total_seconds() + 1)
    return datetime.now(UTC)


def next_noon(days: int) -> datetime:
    """The first noon that is at least so many days ahead: what a rehearsal begins at it, it ends on the same date."""
    return datetime.combine((datetime.now(UTC) + timedelta(days=days, hours=12)).date(), datetime.min.time(), UTC) + timedelta(hours=12)
