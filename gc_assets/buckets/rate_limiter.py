"""Limit the rate of requests of this process.

Each process may use its part of the configured requests per second. After the server responds with
SlowDown, the process halves its rate, and then raises it a little each second until the next
SlowDown (additive increase, multiplicative decrease: Chiu and Jain, 1989).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from gc_assets.core.requests import budget_shares

# A rate up to this is assumed not to overload a server, unless it responds with SlowDown again.
_MIN_EXCESSIVE_RATE: Final = 20.0
# The rate never falls below this.
_MIN_RATE: Final = 1.0
# Each second after a SlowDown adds this fraction of the excessive rate, and at least one request
# per second.
_RECOVERY_SHARE: Final = 0.05
# Further SlowDown responses within this time belong to requests sent before the rate was lowered.
_SLOW_DOWN_INTERVAL: Final = 1.0


class RateLimiter:
    """Spaces requests evenly. Thread-safe: threads wait for their turn one after another.

    Args:
        per_second: Requests per second of all processes that share the budget
            (`core.requests.sharers`), or None for no limit.
        now: The clock, in seconds.
        sleep: Called with the seconds to wait.
    """

    def __init__(
        self, per_second: float | None, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._per_second = per_second
        self._now, self._sleep = now, sleep
        self._next = 0.0
        self._lock = threading.Lock()
        self._sent = _RequestCounter()
        # Time of the last SlowDown, and the excessive rate at that time.
        self._slowed: tuple[float, float] | None = None

    def wait(self, requests: int = 1) -> None:
        """Wait until the next request may be sent.

        Args:
            requests: The number of requests that it counts as, because a server counts each key of
                a DeleteObjects request.
        """
        with self._lock:
            now = self._now()
            turn = max(self._next, now)
            rate = self._allowed_rate(turn)
            self._next = turn + requests / rate if rate is not None else turn
            self._sent.add(turn, requests)
        if turn > now:
            self._sleep(turn - now)

    def slow_down(self) -> None:
        """Halve the rate. Called when the server responds with SlowDown."""
        with self._lock:
            now = self._now()
            if self._slowed is not None and now - self._slowed[0] < _SLOW_DOWN_INTERVAL:
                return
            rate, observed = self._allowed_rate(now), max(_MIN_EXCESSIVE_RATE, self._sent.per_second(now))
            self._slowed = now, min(observed, rate) if rate is not None else observed

    @property
    def is_slowed(self) -> bool:
        """Return True if the server has ever responded with SlowDown."""
        return self._slowed is not None

    def _allowed_rate(self, now: float) -> float | None:
        """Return the allowed requests per second, or None if there is no limit."""
        share = self._per_second / budget_shares() if self._per_second is not None else None
        if self._slowed is None:
            return share
        since, excessive_rate = self._slowed
        elapsed = max(0.0, now - since)
        recovered = max(_MIN_RATE, excessive_rate / 2) + max(1.0, _RECOVERY_SHARE * excessive_rate) * elapsed
        return recovered if share is None else min(share, recovered)


class _RequestCounter:
    """Counts the requests of the current and the last second."""

    def __init__(self) -> None:
        self._since, self._count, self._last_second = 0.0, 0, 0.0

    def add(self, at: float, requests: int) -> None:
        self._roll(at)
        self._count += requests

    def per_second(self, at: float) -> float:
        """Return the number of requests in the last full second or the current one, if higher."""
        self._roll(at)
        return max(self._last_second, float(self._count))

    def _roll(self, at: float) -> None:
        elapsed = at - self._since
        if elapsed >= 1:
            self._since, self._count, self._last_second = at, 0, self._count / elapsed
