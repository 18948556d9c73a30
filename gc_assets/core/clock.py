"""The only module that reads the time.

`GC_ASSETS_UNSAFE_NOW` overrides the run, server and store clocks. It is read by `resources/` and
`cli/` and passed explicitly, so that stages and stores depend only on their arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from time import sleep, time_ns
from typing import Final

# Maximum clock skew of a store, well below the minimum grace period of 24 hours and well above the
# skew of a network file system.
MAX_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Clock:
    """UTC clock.

    Attributes:
        fixed: Fixed time for a rehearsal. All its plans and reports are marked as rehearsals.
        not_before: Earliest time returned by `now`.
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

        Another machine's clock may be days behind, which would make its records look days older.
        """
        return replace(self, not_before=self.now())

    def sequence_number(self) -> int:
        """Return a number that increases with each call, even if the time is fixed.

        Used to order records with the same time.
        """
        return time_ns()

    def wait_for_next_second(self) -> None:
        """Wait until the next whole second begins, unless the time is fixed.

        Stores may report times in whole seconds. After the wait, the current time is in a later
        second than all files written before it.
        """
        if self.fixed is None:
            sleep(1 - time_ns() % 1_000_000_000 / 1_000_000_000)

    def today(self) -> date:
        """Return the current UTC date, the only run date that is not historical."""
        return self.now().date()


def start_of_day(run_date: date) -> datetime:
    """Return 00:00 UTC of a run date, its default `as_of`."""
    return datetime.combine(run_date, time.min, tzinfo=UTC)
