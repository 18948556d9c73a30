"""Answers to conditional deletes that AWS gives and Ceph does not: 404, 409 and 501.

Source: Amazon S3 User Guide, "Conditional deletes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gc_assets.buckets.protocol import Deletion
from gc_assets.config.connections import Connections
from gc_assets.core.errors import ObjectChanged
from gc_assets.core.phases import Action
from gc_assets.s3.bucket import S3Bucket
from gc_assets.stores.protocol import QuarantineMode, Traits
from gc_assets.stores.s3.objects import S3Objects
from tests.s3.proxy import Exchange, Request, Rule, error_answer, run_proxy
from tests.s3.servers import is_ceph_conditional, shared_server
from tests.stores.s3.bucket_actions import act, open_through_proxy, plan_rows
from tests.stores.s3_bench import S3Bench, open_s3_bench

EXPECTED_TRAITS = {
    True: Traits(create_if_absent=True, replace_if_match=True, rename=False, delete_if_match="batch"),
    False: Traits(create_if_absent=True, replace_if_match=True, rename=False, delete_if_match="none"),
}
MOVES = [("trash", "quarantine"), ("deferred", "purge")]


@pytest.fixture
def bench() -> Iterator[S3Bench]:
    with open_s3_bench("ceph") as opened:
        yield opened


def is_delete(request: Request) -> bool:
    return request.method == "DELETE"


def answer_instead(status: int, code: str, hook: Callable[[], object] = lambda: None) -> Callable[[Exchange], None]:
    """Call the hook and answer, without forwarding the request."""

    def fault(exchange: Exchange) -> None:
        hook()
        exchange.reply(error_answer(status, code))

    return fault


def test_probe_detects_supported_conditional_requests(bench: S3Bench) -> None:
    assert bench.store.probe() == EXPECTED_TRAITS[is_ceph_conditional()]
    assert bench.everything() == set()


@pytest.mark.skipif(not is_ceph_conditional(), reason="the probe sends no etags in batches to this server")
def test_probe_detects_server_that_rejects_etags_in_batch_deletes(bench: S3Bench) -> None:
    """Some servers reject the element, which the first DeleteObjects of the probe contains."""
    rejected = Rule(lambda request: request.method == "POST", answer_instead(400, "MalformedXML"))
    with open_through_proxy(bench, rejected) as (store, _):
        assert store.probe().delete_if_match == "one"
    assert rejected.times == 0
    assert bench.everything() == set()


@pytest.mark.parametrize("mode, action", MOVES)
def test_delete_without_conditional_support_compares_etag_again(bench: S3Bench, mode: QuarantineMode, action: Action) -> None:
    bench.put("a", b"old")
    rows = plan_rows(bench, "a")
    with open_through_proxy(bench, Rule(is_delete, answer_instead(501, "NotImplemented"))) as (store, proxy):
        assert act(store, mode, rows, action) == ["done"]
        assert [request.method for request in proxy.requests[-3:]] == ["DELETE", "HEAD", "DELETE"]
    assert bench.get("a") is None


@pytest.mark.parametrize("mode, action", MOVES)
def test_object_written_after_an_unsupported_condition_is_kept(bench: S3Bench, mode: QuarantineMode, action: Action) -> None:
    bench.put("a", b"old")
    rows = plan_rows(bench, "a")
    fault = answer_instead(501, "NotImplemented", partial(bench.put, "a", b"new"))
    with open_through_proxy(bench, Rule(is_delete, fault)) as (store, _):
        assert act(store, mode, rows, action) == ["changed"]
    assert bench.get("a") == b"new"


@pytest.mark.parametrize("mode, action", MOVES)
@pytest.mark.parametrize("status, code", [(404, "NoSuchKey"), (409, "ConditionalRequestConflict")])
def test_object_deleted_by_another_process_counts_as_deleted(
    bench: S3Bench, mode: QuarantineMode, action: Action, status: int, code: str
) -> None:
    bench.put("a", b"old")
    rows = plan_rows(bench, "a")
    fault = answer_instead(status, code, lambda: bench.client.delete_object(Bucket=bench.bucket, Key=f"{bench.prefix}a"))
    with open_through_proxy(bench, Rule(is_delete, fault)) as (store, proxy):
        assert act(store, mode, rows, action) == ["done"]
        assert len([request for request in proxy.requests if request.method == "DELETE"]) == 1


def test_replaced_object_is_not_deleted(bench: S3Bench) -> None:
    bench.put("a", b"old")
    address = f"{bench.store.location}a"
    with run_proxy(shared_server("ceph"), Rule(is_delete, answer_instead(412, "PreconditionFailed"))) as proxy:
        objects = S3Objects(Connections.of(proxy.server.settings))
        etag = objects.read_with_etag(address)[1]
        with pytest.raises(ObjectChanged, match="has just been replaced and was left alone"):
            objects.remove(address, etag)
    assert bench.get("a") == b"old"


VERDICTS = [
    ("AccessDenied", "denied"),
    ("PreconditionFailed", "changed"),
    ("NotImplemented", "unsupported"),
    ("InternalError", "failed"),
]


@pytest.mark.parametrize("code, verdict", VERDICTS)
def test_batch_delete_has_an_outcome_for_each_key(bench: S3Bench, code: str, verdict: str) -> None:
    def refuse_first(exchange: Exchange) -> None:
        answer = error_answer(200, "")
        keys = [f"<Error><Key>{exchange.request.keys[0]}</Key><Code>{code}</Code><Message>m</Message></Error>"]
        keys += [f"<Deleted><Key>{key}</Key></Deleted>" for key in exchange.request.keys[1:]]
        body = f'<?xml version="1.0" encoding="UTF-8"?><DeleteResult>{"".join(keys)}</DeleteResult>'
        exchange.reply(type(answer)(200, answer.headers, body.encode()))

    with run_proxy(shared_server("ceph"), Rule(lambda request: bool(request.keys), refuse_first)) as proxy:
        bucket = S3Bucket(bench.bucket, "plain/", proxy.server.settings)
        first, second = bucket.delete([Deletion("a", token="0" * 32), Deletion("b")])
    assert (first.verdict, second.verdict) == (verdict, "done")
    assert first.reason == f"{code}: m"
