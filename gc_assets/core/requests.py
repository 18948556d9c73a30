"""Count object store requests and their price, and divide request budgets between processes.

Stores record every request that they send. To count the requests of an operation, the caller opens
a tally (counter) for its duration. Because one task may send requests from many threads, a tally
counts all requests of the process, including those of tasks that run at the same time.
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
    """The number of requests of each kind, and their price in USD, or None if prices are unknown."""

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
    """Counts requests from the time it was opened, or since `take` was last called."""

    def __init__(self) -> None:
        self.sent = Requests()

    def take(self) -> Requests:
        """Return the requests counted so far and start again at zero."""
        with _LOCK:
            sent, self.sent = self.sent, Requests()
        return sent


_LOCK: Final = threading.Lock()
_OPEN: Final[list[Tally]] = []
_shares = [1]


def record_requests(sent: Requests) -> None:
    """Add requests to every open tally in this process."""
    with _LOCK:
        for tally in _OPEN:
            tally.sent += sent


@contextmanager
def count_requests() -> Generator[Tally]:
    """Count the requests that this process sends inside the `with` block."""
    tally = Tally()
    with _LOCK:
        _OPEN.append(tally)
    try:
        yield tally
    finally:
        with _LOCK:
            _OPEN.remove(tally)


def budget_shares() -> int:
    """Return the number of processes between which request budgets are divided, at least 1."""
    return _shares[-1]


@contextmanager
def share_budget(processes: int) -> Generator[None]:
    """Divide request budgets between this number of processes inside the `with` block."""
    _shares.append(max(1, processes))
    try:
        yield
    finally:
        _shares.pop()
