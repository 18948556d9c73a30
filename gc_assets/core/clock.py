"""The one place where the time is read (design 3.7).

`GC_ASSETS_UNSAFE_NOW` replaces the run's, the server's and the store's clock; it is read at the edge
(`resources/`, `cli/`) and arrives here as a value, so that stages and stores stay functions of their parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from time import time_ns


@dataclass(frozen=True, slots=True)
class Clock:
    """Tells the time, in UTC. `fixed` makes it a rehearsal's clock, which every plan and report then says."""

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
        """A number that grows from call to call, a rehearsal's too: it orders what one fixed moment cannot. Decides nothing."""
        return time_ns()

    def today(self) -> date:
        """The run date that is not historical."""
        return self.now().date()


def start_of(run_date: date) -> datetime:
    """The `as_of` of a run date: 00:00 UTC of that day."""
    return datetime.combine(run_date, time.min, tzinfo=UTC)
