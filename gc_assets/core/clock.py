"""The only module that reads the time.

`GC_ASSETS_UNSAFE_NOW` replaces the clocks of the run, the server and the store. `resources/` and
`cli/` read it and pass it as a value, so that stages and stores are functions of their arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from time import time_ns
from typing import Final

# The maximum clock skew of a store: far below the minimum grace period of 24 hours, and far above
# the skew of a network file system.
MAX_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Clock:
    """A UTC clock.

    Attributes:
        fixed: The fixed time of a rehearsal. Every plan and report repeats that it is one.
        not_before: The earliest time that `now` returns.
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
        """Return a clock that never returns a time before now, on whatever machine it runs.

        The clock of another machine may be days late, and its records would then look days older.
        """
        return replace(self, not_before=self.now())

    def sequence_number(self) -> int:
        """Return a number that grows from call to call, even if the time is fixed.

        It orders records with the same time and has no other meaning.
        """
        return time_ns()

    def today(self) -> date:
        """The current date (UTC): the only run date that is not historical."""
        return self.now().date()


def start_of_day(run_date: date) -> datetime:
    """Return 00:00 UTC of a run date, its default `as_of`."""
    return datetime.combine(run_date, time.min, tzinfo=UTC)
