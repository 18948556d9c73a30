"""Counts the requests that this process sends to object stores, by kind and by price, and holds
which share of a budget of requests the process may use.

A store counts where it sends. Whoever wants to know opens a tally around the work. Requests are
sent from many threads, so tallies belong to the process and not to a thread: two pieces of work
that run at the same time in one process each count both.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

# In the order in which they are shown. COPY and PUT are also the parts of large objects.
Kind = Literal["LIST", "GET", "HEAD", "PUT", "COPY", "DELETE"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Requests:
    """How many requests were sent of each kind, and what they cost. `usd` is null where no request
    has a price.
    """

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
        told = [f"{self.counts[kind]:,} {kind}" for kind in KINDS if self.counts.get(kind)]
        return ", ".join(told + ([f"about ${self.usd:,.4f}"] if self.usd is not None else []))


class Tally:
    """What was sent since it was opened, or since it was last taken."""

    def __init__(self) -> None:
        self.sent = Requests()

    def take(self) -> Requests:
        """Returns what was sent, and begins anew."""
        with _LOCK:
            sent, self.sent = self.sent, Requests()
        return sent


_LOCK: Final = threading.Lock()
_OPEN: Final[list[Tally]] = []
_shares = [1]


def record(sent: Requests) -> None:
    """Adds requests to every tally that is open in this process."""
    with _LOCK:
        for tally in _OPEN:
            tally.sent += sent


@contextmanager
def counted() -> Generator[Tally]:
    """Opens a tally for as long as the context lasts."""
    tally = Tally()
    with _LOCK:
        _OPEN.append(tally)
    try:
        yield tally
    finally:
        with _LOCK:
            _OPEN.remove(tally)


def sharers() -> int:
    """Returns how many processes share each budget of requests, this one included."""
    return _shares[-1]


@contextmanager
def shared_by(processes: int) -> Generator[None]:
    """Says for as long as the context lasts how many processes share each budget of requests."""
    _shares.append(max(1, processes))
    try:
        yield
    finally:
        _shares.pop()
