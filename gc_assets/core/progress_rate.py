"""How far a piece of work is, how fast it goes, and when it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The first moments of a piece of work tell nothing about its rate.
_KNOWN_AFTER_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ProgressRate:
    """`done` of `total` units, `seconds` after `first` of them were done. `total` is null where
    nobody knows it.
    """

    unit: str
    done: int
    total: int | None
    seconds: float
    first: int = 0

    @property
    def share(self) -> float | None:
        """What part of the work is done, between 0 and 1."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def rate(self) -> float | None:
        """Units a second, null as long as it is not known."""
        known = self.seconds >= _KNOWN_AFTER_SECONDS and self.done > self.first
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
    """Returns a length of time in its two largest units: `8 s`, `2 min 5 s`, `3 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {second} s" if second else "")
    hours, minute = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minute} min" if minute else "")
