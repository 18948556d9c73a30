"""Compute with times and ages without leaving the range of the calendar.

Servers and files may contain any number of days or seconds. For times outside the years 1 to 9999,
Python raises `OverflowError`. The functions in this module return the nearest possible value
instead.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_MAX_SECONDS: Final = timedelta.max.days * 86_400
# The latest time in microseconds since 1970.
LATEST_MICROS: Final = (LATEST - EPOCH) // MICROSECOND


def shift(moment: datetime, age: timedelta) -> datetime:
    """Return `moment + age`. If the age is negative, this is an earlier time."""
    try:
        return moment + age
    except OverflowError:
        return EARLIEST if age < timedelta(0) else LATEST


def days(count: int) -> timedelta:
    """Return an age of this number of days."""
    return seconds(count * 86_400)


def seconds(count: float) -> timedelta:
    """Return a duration in seconds, limited to the largest supported one."""
    return timedelta(seconds=max(-_MAX_SECONDS, min(count, _MAX_SECONDS)))


def from_timestamp(count: float) -> datetime:
    """Return the time at a number of seconds since 1970."""
    return shift(EPOCH, seconds(count))


def to_micros(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(count: int) -> datetime:
    """Return the time at a number of microseconds since 1970."""
    return shift(EPOCH, count * MICROSECOND)


def to_utc(moment: datetime) -> datetime:
    """Convert a time to UTC. If it does not have a time zone, it is assumed to be in UTC."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return EARLIEST if moment.year == 1 else LATEST


def format_time(moment: datetime) -> str:
    """Format a time for messages, such as `2026-11-26 06:48Z`."""
    return f"{to_utc(moment):%Y-%m-%d %H:%M}Z"


def format_minute(moment: datetime) -> str:
    """Format a time in UTC for people, such as `2026-11-26 06:48 UTC`."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"
