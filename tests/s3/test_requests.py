"""Requests are counted as the server receives them, and SlowDown reduces their rate."""

from __future__ import annotations

from collections import Counter

import pytest

from gc_assets.buckets.requests import get_rate_limiter
from gc_assets.config.s3 import S3Config
from gc_assets.core.requests import Requests, count_requests
from gc_assets.s3 import pages
from gc_assets.s3.client import get_client, request_kind
from tests.s3.proxy import Proxy, Rule, always, answer_slow_down, lists, run_proxy
from tests.s3.servers import S3Server


def count_by_kind(proxy: Proxy) -> dict[str, int]:
    """Return the received requests by billing category."""
    counts = Counter[str]()
    for request in proxy.requests:
        is_batch = request.method == "POST" and bool(request.keys)
        counts["LIST" if lists(request) else "DELETE" if is_batch else request.method] += 1
    return dict(counts)


def test_requests_and_retries_are_counted_by_kind(ceph: S3Server) -> None:
    bucket = ceph.bucket()
    with run_proxy(ceph, Rule(always, answer_slow_down), Rule(lists, answer_slow_down)) as proxy, count_requests() as tally:
        client = get_client(proxy.server.settings, "change")
        for key in ("a", "b", "c"):
            client.put_object(Bucket=bucket, Key=key, Body=b"x")
        client.head_object(Bucket=bucket, Key="a")
        client.get_object(Bucket=bucket, Key="a")["Body"].read()
        assert sum(len(page.keys) for page in pages.list_objects(proxy.server.settings, bucket, "")) == 3
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in ("a", "b")]})
        client.delete_object(Bucket=bucket, Key="c")
        assert tally.sent.counts == count_by_kind(proxy) == {"PUT": 4, "HEAD": 1, "GET": 1, "LIST": 2, "DELETE": 2}


def test_copy_object_is_counted_as_copy(ceph: S3Server) -> None:
    bucket = ceph.bucket()
    ceph.client().put_object(Bucket=bucket, Key="a", Body=b"x")
    settings = ceph.settings.model_copy(update={"prices": {"COPY": 5.0}})
    with count_requests() as tally:
        get_client(settings, "change").copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a"})
        get_client(settings, "change").head_object(Bucket=bucket, Key="b")
    assert tally.sent == Requests({"COPY": 1, "HEAD": 1}, 5.0 / 1e6)


def test_s3_operations_map_to_billing_categories() -> None:
    categories = {"ListParts": "LIST", "GetBucketVersioning": "GET", "UploadPartCopy": "COPY", "UploadPart": "PUT"}
    categories |= {"CompleteMultipartUpload": "PUT", "AbortMultipartUpload": "DELETE", "DeleteObjects": "DELETE"}
    assert {operation: request_kind(operation) for operation in categories} == categories


def test_requests_have_a_price_on_aws_or_if_configured() -> None:
    assert S3Config().usd_per_million("LIST") == 5.0
    assert S3Config(endpoint="https://s3.example.org").usd_per_million("LIST") is None
    assert S3Config(endpoint="https://s3.example.org", prices={"GET": 1.5}).usd_per_million("GET") == 1.5


@pytest.mark.parametrize("by_listing", [False, True])
def test_slow_down_response_slows_later_requests(ceph: S3Server, by_listing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, slowed = ceph.bucket(), list[bool]()
    with run_proxy(ceph, Rule(always, answer_slow_down)) as proxy:
        settings = proxy.server.settings
        monkeypatch.setattr(get_rate_limiter(settings), "slow_down", lambda: slowed.append(True))
        if by_listing:
            list(pages.list_objects(settings, bucket, ""))
        else:
            get_client(settings, "read").head_bucket(Bucket=bucket)
    assert slowed


def test_each_deleted_key_counts_against_the_rate_limit(ceph: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, waited = ceph.bucket(), list[int]()
    settings = ceph.settings.model_copy(update={"max_requests_per_second": 1e6})
    monkeypatch.setattr(get_rate_limiter(settings), "wait", lambda requests=1: waited.append(requests))
    get_client(settings, "change").delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"<Key>{number}"} for number in range(30)]})
    assert waited == [30]
