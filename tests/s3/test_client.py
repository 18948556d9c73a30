"""Clients of a process, and the errors that a retry cannot end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gc_assets.buckets.requests import get_rate_limiter
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import is_permanent
from gc_assets.s3.client import get_client, to_os_error, translate_errors

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


@pytest.mark.parametrize(
    "status, code, permanent",
    [
        (400, "InvalidRequest", True),
        (400, "InvalidStorageClass", True),
        (403, "AccessDenied", True),
        (403, "QuotaExceeded", True),
        (400, "RequestTimeout", False),
        (400, "ExpiredToken", False),
        (400, "400", False),
        (403, "RequestTimeTooSkewed", False),
        (403, "InvalidAccessKeyId", False),
        (404, "NoSuchBucket", False),
        (409, "OperationAborted", False),
        (412, "PreconditionFailed", False),
        (429, "TooManyRequests", False),
        (500, "InternalError", False),
        (503, "SlowDown", False),
    ],
)
def test_refused_request_is_permanent_unless_it_may_succeed_later(status: int, code: str, permanent: bool) -> None:
    error = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
    assert is_permanent(to_os_error(error, "s3://b/a")) is permanent


def test_request_that_the_client_cannot_send_is_permanent() -> None:
    client = get_client(S3Config(endpoint="http://127.0.0.1:9", region="of-this-test"), "read")
    with pytest.raises(OSError, match="Expires") as refused, translate_errors("s3://b/a"):
        client.put_object(Bucket="b", Key="a", Expires="never")
    assert is_permanent(refused.value)
