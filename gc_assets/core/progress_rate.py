"""Progress, rate and remaining time of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The rate is unknown during the first seconds.
_MIN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProgressRate:
    """Task progress: `done` of `total` units, measured `seconds` after the first `first` units.

    `total` is None if it is unknown.
    """

    unit: str
    done: int
    total: int | None
    seconds: float
    first: int = 0

    @property
    def share(self) -> float | None:
        """Completed fraction of the task, between 0 and 1."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def rate(self) -> float | None:
        """Units per second, or None if the rate is not known yet."""
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
    """Format a duration with its two largest units, e.g. `8 s`, `2 min 5 s` or `3 h 12 min`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, second = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {second} s" if second else "")
    hours, minute = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minute} min" if minute else "")
