"""One client and one pace for all threads of a process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from gc_assets.config.s3 import S3Config
from gc_assets.s3.client import get_client, get_rate_limiter

THREADS = 8


def test_concurrent_threads_share_one_client_and_rate_limiter() -> None:
    settings, begin = S3Config(endpoint="http://127.0.0.1:9", region="of-this-test"), Barrier(THREADS)

    def asked(_: int) -> tuple[Any, Any]:
        begin.wait()
        return get_client(settings, "read"), get_rate_limiter(settings)

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(asked, range(THREADS)))
    assert {id(client) for client, _ in found} == {id(get_client(settings, "read"))}
    assert {id(pace) for _, pace in found} == {id(get_rate_limiter(settings))}
