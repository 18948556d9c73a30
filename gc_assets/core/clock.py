"""The one place where the time is read (design 3.7).

`GC_ASSETS_UNSAFE_NOW` replaces the run's, the server's and the store's clock; it is read at the
edge (`resources/`, `cli/`) and arrives here as a value, so that stages and stores stay functions of
their parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from time import time_ns
from typing import Final

# By which the clock of a store may differ. Far below the 24 h floor of the grace period, far above
# what a network file system's clock should be off.
MAX_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Clock:
    """Tells the time, in UTC. With `fixed` it is a rehearsal's clock, and every plan and report
    says so.
    """

    fixed: datetime | None = None

    def __post_init__(self) -> None:
        if self.fixed is not None and self.fixed.tzinfo is None:
            raise ValueError(f"a clock needs a time zone, found {self.fixed!r}")

    @property
    def is_rehearsal(self) -> bool:
        return self.fixed is not None

    def now(self) -> datetime:
        return self.fixed.astimezone(UTC) if self.fixed is not None else datetime.now(UTC)

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
