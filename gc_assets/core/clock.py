"""The one place where the time is read (design 3.7).

`GC_ASSETS_UNSAFE_NOW` replaces the run's, the server's and the store's clock; it is read at the
edge (`resources/`, `cli/`) and arrives here as a value, so that stages and stores stay functions of
their parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from time import time_ns
from typing import Final

# By which the clock of a store may differ. Far below the 24 h floor of the grace period, far above
# what a network file system's clock should be off.
MAX_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Clock:
    """Tells the time, in UTC. With `fixed` it is a rehearsal's clock, and every plan and report
    says so. It tells no time before `not_before`.
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

    def onwards(self) -> Clock:
        """Returns a clock that tells no time before this moment, wherever it is read. The clock of
        another machine may be days behind, and what it notes would look that much older.
        """
        return replace(self, not_before=self.now())

    def order(self) -> int:
        """Returns a number that grows from call to call, even with a fixed time. It orders what one
        fixed moment cannot, and decides nothing.
        """
        return time_ns()

    def today(self) -> date:
        """The run date that is not historical."""
        return self.now().date()


def start_of(run_date: date) -> datetime:
    """Returns the `as_of` of a run date: 00:00 UTC of that day."""
    return datetime.combine(run_date, time.min, tzinfo=UTC)
