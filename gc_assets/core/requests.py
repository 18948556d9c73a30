"""Count object store requests by kind and price, and share request budgets.

Stores record each request, and callers open a tally around their work. Since many threads send
requests, tallies are process-wide, so concurrent tasks in one process count each other's requests.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

# In display order. COPY and PUT include multipart requests.
Kind = Literal["LIST", "GET", "HEAD", "PUT", "COPY", "DELETE"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Requests:
    """Number of requests by kind, and their price in USD (None if no request has a price)."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    usd: float | None = None

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __add__(self, other: Requests) -> Requests:
        priced = [usd for usd in (self.usd, other.usd) if usd is not None]
        return Requests(dict(Counter(self.counts) + Counter(other.counts)), sum(priced) if priced else None)

    def to_json(self) -> str:
        return json.dumps([dict(self.counts), self.usd])

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(*json.loads(text))

    def __str__(self) -> str:
        parts = [f"{self.counts[kind]:,} {kind}" for kind in KINDS if self.counts.get(kind)]
        return ", ".join(parts + ([f"about ${self.usd:,.4f}"] if self.usd is not None else []))


class Tally:
    """Requests since the tally was opened or last taken."""

    def __init__(self) -> None:
        self.sent = Requests()

    def take(self) -> Requests:
        """Return the requests and reset the tally."""
        with _LOCK:
            sent, self.sent = self.sent, Requests()
        return sent


_LOCK: Final = threading.Lock()
_OPEN: Final[list[Tally]] = []
_shares = [1]


def record_requests(sent: Requests) -> None:
    """Add requests to all open tallies in this process."""
    with _LOCK:
        for tally in _OPEN:
            tally.sent += sent


@contextmanager
def count_requests() -> Generator[Tally]:
    """Open a tally that counts the requests made within the context."""
    tally = Tally()
    with _LOCK:
        _OPEN.append(tally)
    try:
        yield tally
    finally:
        with _LOCK:
            _OPEN.remove(tally)


def budget_shares() -> int:
    """Return the number of processes that share each request budget, including this one."""
    return _shares[-1]


@contextmanager
def share_budget(processes: int) -> Generator[None]:
    """Set the number of processes that share each request budget within the context."""
    _shares.append(max(1, processes))
    try:
        yield
    finally:
        _shares.pop()
