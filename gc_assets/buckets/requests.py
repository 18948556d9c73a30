"""Helpers for sending requests to object stores: caching, counting, pausing and concurrency."""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, ParamSpec, TypeVar

from gc_assets.buckets.rate_limiter import RateLimiter
from gc_assets.config.connections import StoreSettings
from gc_assets.core.requests import Kind, Requests, record_requests

# How many requests of a batch are sent concurrently.
MAX_CONCURRENT: Final = 16
_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


class PerProcess(Generic[_P, _R]):
    """A decorator that caches what a function creates, such as clients, in each process.

    Threads share the cached values. A forked process creates its own, because it must not use the
    sockets of its parent. All arguments must be hashable.
    """

    def __init__(self, create: Callable[_P, _R]) -> None:
        functools.update_wrapper(self, create)
        self._lock = threading.RLock()
        os.register_at_fork(before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release)

        @functools.lru_cache(maxsize=64)
        def create_in(_: int, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            return create(*args, **kwargs)

        self._create_in = create_in
        self.cache_clear = create_in.cache_clear

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            return self._create_in(os.getpid(), *args, **kwargs)


@PerProcess
def get_rate_limiter(settings: StoreSettings) -> RateLimiter:
    """Return the rate limiter that all requests of this process with these settings share."""
    return RateLimiter(settings.max_requests_per_second)


def count_request(settings: StoreSettings, kind: Kind) -> None:
    """Count a request that is about to be sent."""
    price = settings.usd_per_million(kind)
    record_requests(Requests({kind: 1}, None if price is None else price / 1e6))


def pause_before_retry(attempt: int) -> None:
    """Sleep before the next attempt, longer each time. The first attempt has the number 0."""
    time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1))  # noqa: S311  (spreads requests, no secret)


def map_concurrently(values: Iterable[_T], call: Callable[[_T], _R]) -> list[_R]:
    """Call a function with each value, using several threads.

    The results are in the order of the values.
    """
    values = list(values)
    if len(values) <= 1:
        return [call(value) for value in values]
    with ThreadPoolExecutor(min(MAX_CONCURRENT, len(values))) as pool:
        return list(pool.map(call, values))
