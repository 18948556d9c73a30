"""How fast this process asks: at most so many requests a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """Spaces requests evenly. Safe to use from threads, which wait for their turn one after the
    other.
    """

    def __init__(
        self, per_second: float | None, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._gap = 1 / per_second if per_second else 0.0
        self._now, self._sleep = now, sleep
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when the next request may be sent."""
        if not self._gap:
            return
        with self._lock:
            now = self._now()
            turn = max(self._next, now)
            self._next = turn + self._gap
        if turn > now:
            self._sleep(turn - now)
