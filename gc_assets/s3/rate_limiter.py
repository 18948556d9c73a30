"""How fast this process asks: at most its share of so many requests a second, and slower where the
server asks for it.

A server that says SlowDown is asked half as often as before, and then each second a little more
often, until it says so again (additive increase, multiplicative decrease: Chiu and Jain, 1989).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from gc_assets.core.requests import budget_shares

# A process that asks for this many requests a second is not what is too much for a server, unless
# the server says so again.
_HARMLESS: Final = 20.0
# A server that is asked this seldom is asked no more seldom.
_SLOWEST: Final = 1.0
# Each second after a SlowDown adds this share of the speed that was too fast, and at least one
# request a second.
_REGAINED: Final = 0.05
# Answers to requests that were sent before the process slowed down say nothing new.
_ONCE_IN: Final = 1.0


class RateLimiter:
    """Spaces requests evenly. Safe to use from threads, which wait for their turn one after the
    other.

    `per_second` is the budget of all processes that share it (`core.requests.sharers`). A request
    may count as several: a server counts each key of a DELETE of many.
    """

    def __init__(
        self, per_second: float | None, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._per_second = per_second
        self._now, self._sleep = now, sleep
        self._next = 0.0
        self._lock = threading.Lock()
        self._sent = _Sent()
        # When the server last asked for fewer, and the speed that it found too fast.
        self._slowed: tuple[float, float] | None = None

    def wait(self, requests: int = 1) -> None:
        """Returns when the next request may be sent."""
        with self._lock:
            now = self._now()
            turn = max(self._next, now)
            speed = self._speed(turn)
            self._next = turn + requests / speed if speed is not None else turn
            self._sent.add(turn, requests)
        if turn > now:
            self._sleep(turn - now)

    def slow_down(self) -> None:
        """Halves the speed. The server has asked for it."""
        with self._lock:
            now = self._now()
            if self._slowed is not None and now - self._slowed[0] < _ONCE_IN:
                return
            speed, sent = self._speed(now), max(_HARMLESS, self._sent.per_second(now))
            self._slowed = now, min(sent, speed) if speed is not None else sent

    @property
    def is_slowed(self) -> bool:
        """Says whether the server ever asked for fewer requests."""
        return self._slowed is not None

    def _speed(self, now: float) -> float | None:
        """Returns how many requests a second may be sent. Null: as many as one likes."""
        share = self._per_second / budget_shares() if self._per_second is not None else None
        if self._slowed is None:
            return share
        since, too_fast = self._slowed
        passed = max(0.0, now - since)
        regained = max(_SLOWEST, too_fast / 2) + max(1.0, _REGAINED * too_fast) * passed
        return regained if share is None else min(share, regained)


class _Sent:
    """How many requests were sent lately."""

    def __init__(self) -> None:
        self._since, self._count, self._before = 0.0, 0, 0.0

    def add(self, at: float, requests: int) -> None:
        self._roll(at)
        self._count += requests

    def per_second(self, at: float) -> float:
        """Returns the requests of the last whole second, or of this one if they are more by now."""
        self._roll(at)
        return max(self._before, float(self._count))

    def _roll(self, at: float) -> None:
        passed = at - self._since
        if passed >= 1:
            self._since, self._count, self._before = at, 0, self._count / passed
