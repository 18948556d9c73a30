"""Compute the rate and the remaining time of a task from its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# During the first seconds, the rate is too unreliable to be shown.
_MIN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProgressRate:
    """The progress of a task.

    Attributes:
        unit: Noun for the counted units, in the plural.
        done: Number of completed units.
        total: Number of all units, or None if unknown.
        seconds: Time since the measurement began.
        first: Number of units that were already complete at that time.
    """

    unit: str
    done: int
    total: int | None
    seconds: float
    first: int = 0

    @property
    def share(self) -> float | None:
        """The completed fraction of the task, between 0 and 1. None if the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def rate(self) -> float | None:
        """Units per second, or None if it is too early to compute a rate."""
        known = self.seconds >= _MIN_SECONDS and self.done > self.first
        return (self.done - self.first) / self.seconds if known else None

    @property
    def seconds_left(self) -> float | None:
        rate = self.rate
        return max(self.total - self.done, 0) / rate if rate is not None and self.total is not None else None

    def __str__(self) -> str:
        of = f" of {self.total:,}" if self.total is not None else ""
        parts = [f"{self.done:,}{of} {self.unit}"]
        if (rate := self.rate) is not None:
            parts.append(f"{rate:,.0f} a second" if rate >= 1 else f"{rate * 60:,.1f} a minute")
        if (left := self.seconds_left) is not None:
            parts.append(f"{format_seconds(left)} left")
        return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """Format a duration with at most two units, such as `8 s`, `2 min 5 s` or `3 h 12 min`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, second = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {second} s" if second else "")
    hours, minute = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minute} min" if minute else "")
