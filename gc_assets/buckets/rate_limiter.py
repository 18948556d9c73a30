"""Limit how many requests this process sends per second.

Several processes share the configured rate, and each of them may use its part. If the server
responds with the error SlowDown, the process halves its rate. It then raises the rate a little each
second until the next SlowDown (additive increase, multiplicative decrease: Chiu and Jain, 1989).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from gc_assets.core.requests import budget_shares

# A lower rate is assumed not to overload a server, unless it keeps responding with SlowDown.
_MIN_EXCESSIVE_RATE: Final = 20.0
# The rate never falls below this limit.
_MIN_RATE: Final = 1.0
# After a SlowDown, the rate grows each second by this fraction of the excessive rate, but at least
# by one request per second.
_RECOVERY_SHARE: Final = 0.05
# Within this time, further SlowDown responses are ignored. Their requests were sent before the rate
# was lowered.
_SLOW_DOWN_INTERVAL: Final = 1.0


class RateLimiter:
    """Spaces requests evenly. It is thread-safe, because threads wait for their turn.

    Args:
        per_second: How many requests all processes that share the budget may send per second. None
            for no limit.
        now: The clock, in seconds.
        sleep: Called with the number of seconds to wait.
    """

    def __init__(
        self, per_second: float | None, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._per_second = per_second
        self._now, self._sleep = now, sleep
        self._next = 0.0
        self._lock = threading.Lock()
        self._sent = _RequestCounter()
        # When the last SlowDown arrived, and the rate that had caused it.
        self._slowed: tuple[float, float] | None = None

    def wait(self, requests: int = 1) -> None:
        """Wait until the next request may be sent.

        Args:
            requests: How many requests the next one counts as. For example, servers count every key
                in a DeleteObjects request.
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
        """Halve the rate, because the server has responded with SlowDown."""
        with self._lock:
            now = self._now()
            if self._slowed is not None and now - self._slowed[0] < _SLOW_DOWN_INTERVAL:
                return
            rate, observed = self._allowed_rate(now), max(_MIN_EXCESSIVE_RATE, self._sent.per_second(now))
            self._slowed = now, min(observed, rate) if rate is not None else observed

    def _allowed_rate(self, now: float) -> float | None:
        """Compute how many requests per second are allowed. Returns None if there is no limit."""
        share = self._per_second / budget_shares() if self._per_second is not None else None
        if self._slowed is None:
            return share
        since, excessive_rate = self._slowed
        elapsed = max(0.0, now - since)
        recovered = max(_MIN_RATE, excessive_rate / 2) + max(1.0, _RECOVERY_SHARE * excessive_rate) * elapsed
        return recovered if share is None else min(share, recovered)


class _RequestCounter:
    """Counts the requests that were sent in the current second and in the last one."""

    def __init__(self) -> None:
        self._since, self._count, self._last_second = 0.0, 0, 0.0

    def add(self, at: float, requests: int) -> None:
        self._roll(at)
        self._count += requests

    def per_second(self, at: float) -> float:
        """Return the number of requests in the last second, or in the current one if it is higher."""
        self._roll(at)
        return max(self._last_second, float(self._count))

    def _roll(self, at: float) -> None:
        elapsed = at - self._since
        if elapsed >= 1:
            self._since, self._count, self._last_second = at, 0, self._count / elapsed
