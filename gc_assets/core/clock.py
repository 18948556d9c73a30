"""Provide the current time. No other module reads the system clock.

In a rehearsal (a test with an artificial time), the environment variable `GC_ASSETS_UNSAFE_NOW`
replaces the clocks of the run, of servers and of stores. Only `resources/` and `cli/` read this
variable. All other code receives a clock as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from time import sleep, time_ns
from typing import Final

# Maximum difference between clocks. It is well below the minimum grace period of 24 hours, and well
# above the difference that network file systems normally have.
MAX_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that returns UTC times.

    Attributes:
        fixed: The time of a rehearsal, or None for the real time. Plans and reports of a rehearsal
            are marked as such.
        not_before: `now` never returns an earlier time than this.
    """

    fixed: datetime | None = None
    not_before: datetime | None = None

    def __post_init__(self) -> None:
        if self.fixed is not None and self.fixed.tzinfo is None:
            raise ValueError(f"a clock needs a time zone, found {self.fixed!r}")

    @property
    def is_rehearsal(self) -> bool:
        return self.fixed is not None

    def now(self) -> datetime:
        if self.fixed is not None:
            return self.fixed.astimezone(UTC)
        now = datetime.now(UTC)
        return now if self.not_before is None else max(now, self.not_before)

    def not_before_now(self) -> Clock:
        """Return a clock that never returns an earlier time than now, even on another machine.

        Spark executors use such a clock. If the clock of an executor's machine were days behind,
        the records that it writes would otherwise look days older.
        """
        return replace(self, not_before=self.now())

    def sequence_number(self) -> int:
        """Return a number that increases with each call, even if the time is fixed.

        Use it to order records that have the same time.
        """
        return time_ns()

    def wait_for_next_second(self) -> None:
        """Wait until the next second begins, unless the time is fixed.

        Some stores report times in whole seconds. After waiting, anything written will have a later
        time than files written before.
        """
        if self.fixed is None:
            sleep(1 - time_ns() % 1_000_000_000 / 1_000_000_000)

    def today(self) -> date:
        """Return the current UTC date. A run for any other date is historical."""
        return self.now().date()


def start_of_day(run_date: date) -> datetime:
    """Return 00:00 UTC of a run date, which is the default for its `as_of`."""
    return datetime.combine(run_date, time.min, tzinfo=UTC)
