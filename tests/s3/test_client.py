"""All threads of a process share one client and one rate limiter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from gc_assets.buckets.requests import get_rate_limiter
from gc_assets.config.s3 import S3Config
from gc_assets.s3.client import get_client

THREADS = 8


def test_concurrent_threads_share_one_client_and_rate_limiter() -> None:
    settings, barrier = S3Config(endpoint="http://127.0.0.1:9", region="of-this-test"), Barrier(THREADS)

    def get_both(_: int) -> tuple[Any, Any]:
        barrier.wait()
        return get_client(settings, "read"), get_rate_limiter(settings)

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(get_both, range(THREADS)))
    assert {id(client) for client, _ in found} == {id(get_client(settings, "read"))}
    assert {id(limiter) for _, limiter in found} == {id(get_rate_limiter(settings))}
