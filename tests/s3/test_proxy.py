"""Each fault of the proxy, seen by a client without retries."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import wait
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError, ResponseStreamingError

from tests.depth import in_turn
from tests.process_kills import PROCESSES
from tests.s3.proxy import (
    Fault,
    Proxy,
    Rule,
    always,
    answer_error_in_200,
    answer_slow_down,
    call_after,
    call_before,
    call_instead,
    cut_body,
    delay,
    drop_answer,
    drop_request,
    lists,
    nth,
    repeat_answer_to,
    rewrite,
    run_proxy,
)
from tests.s3.servers import SERVERS, S3Server, shared_server

pytestmark = in_turn

ODD = "k//a b/./%2F+\u00e9\x01&'"


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> S3Server:
    return shared_server(request.param)


def client_without_retries(proxy: Proxy, **more: Any) -> Any:
    return proxy.server.client(retries={"total_max_attempts": 1}, **more)


def list_keys(server: S3Server, bucket: str) -> list[str]:
    return [item["Key"] for item in server.client().list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_proxy_without_rules_changes_nothing(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server) as proxy:
        client = client_without_retries(proxy)
        client.put_object(Bucket=bucket, Key="k", Body=b"body", Metadata={"a": "b"})
        client.put_object(Bucket=bucket, Key="empty", Body=b"")
        assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == 4
        assert client.get_object(Bucket=bucket, Key="k", Range="bytes=1-2")["Body"].read() == b"od"
        assert client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})["CopyObjectResult"]
        client.delete_object(Bucket=bucket, Key="k")
        assert list_keys(proxy.server, bucket) == ["copy", "empty"]
        with pytest.raises(ClientError, match="404"):
            client.head_object(Bucket=bucket, Key="k")
        with pytest.raises(ClientError, match="AccessDenied"):
            proxy.server.as_stranger().client().list_objects_v2(Bucket=bucket)


def test_keys_with_special_characters_pass_through_the_proxy(ceph: S3Server) -> None:
    bucket = ceph.bucket()
    with run_proxy(ceph) as proxy:
        client_without_retries(proxy).put_object(Bucket=bucket, Key=ODD, Body=b"x")
        assert list_keys(proxy.server, bucket) == [ODD] == list_keys(ceph, bucket)


def test_proxy_records_requests_with_batch_keys(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server) as proxy:
        client = client_without_retries(proxy)
        client.put_object(Bucket=bucket, Key="a&b", Body=b"x")
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a&b"}, {"Key": "\u00e9 \"'<>\n"}]})
        client.list_objects_v2(Bucket=bucket, Prefix="a b")
    assert [(request.number, request.method, request.keys) for request in proxy.requests] == [
        (1, "PUT", ()),
        (2, "POST", ("a&b", "\u00e9 \"'<>\n")),
        (3, "GET", ()),
    ]
    assert proxy.requests[0].target == f"/{bucket}/a%26b"
    assert proxy.requests[2].query["prefix"] == "a b"


def test_delayed_request_is_executed(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(always, delay(0.3))) as proxy:
        start = time.monotonic()
        client_without_retries(proxy).put_object(Bucket=bucket, Key="k", Body=b"x")
        assert time.monotonic() - start >= 0.3
        assert list_keys(server, bucket) == ["k"]


def test_client_timeout_ends_before_the_server_acts(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(always, delay(3))) as proxy:
        with pytest.raises(ReadTimeoutError):
            client_without_retries(proxy, read_timeout=0.1).put_object(Bucket=bucket, Key="k", Body=b"x")
        assert list_keys(server, bucket) == []
        deadline = time.monotonic() + 60
        while list_keys(server, bucket) == [] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list_keys(server, bucket) == ["k"]


@pytest.mark.parametrize("fault,done", [(drop_request, False), (drop_answer, True)])
def test_proxy_can_drop_the_connection_before_or_after_execution(server: S3Server, fault: Fault, done: bool) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(always, fault)) as proxy, pytest.raises(ConnectionClosedError):
        client_without_retries(proxy).put_object(Bucket=bucket, Key="k", Body=b"x")
    assert list_keys(server, bucket) == ["k"] * done


def test_slow_down_answer_prevents_execution(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(always, answer_slow_down)) as proxy:
        with pytest.raises(ClientError, match="SlowDown"):
            client_without_retries(proxy).put_object(Bucket=bucket, Key="k", Body=b"x")
        assert list_keys(proxy.server, bucket) == []


def test_proxy_can_truncate_a_response_body(server: S3Server) -> None:
    bucket = server.bucket()
    server.client().put_object(Bucket=bucket, Key="k", Body=b"x" * 100_000)
    with run_proxy(server, Rule(always, cut_body)) as proxy:
        client = client_without_retries(proxy)
        with pytest.raises(ResponseStreamingError, match="IncompleteRead"):
            client.get_object(Bucket=bucket, Key="k")["Body"].read()
        assert len(client.get_object(Bucket=bucket, Key="k")["Body"].read()) == 100_000


def test_proxy_can_repeat_an_earlier_response(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(nth(3), repeat_answer_to(1))) as proxy:
        assert list_keys(proxy.server, bucket) == []
        client_without_retries(proxy).put_object(Bucket=bucket, Key="k", Body=b"x")
        assert list_keys(proxy.server, bucket) == []
        assert list_keys(proxy.server, bucket) == ["k"]


def test_proxy_can_answer_an_error_with_status_200(server: S3Server) -> None:
    """botocore handles the operations for which S3 documents this, such as a copy."""
    bucket = server.bucket()
    server.client().put_object(Bucket=bucket, Key="k", Body=b"x")
    with run_proxy(server, Rule(always, answer_error_in_200)) as proxy, pytest.raises(ClientError, match="InternalError"):
        client_without_retries(proxy).copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    assert list_keys(server, bucket) == ["k"]


def test_proxy_can_rewrite_a_response(server: S3Server) -> None:
    bucket = server.bucket()
    server.client().put_object(Bucket=bucket, Key="k", Body=b"x")
    with run_proxy(server, Rule(lists, rewrite(lambda body: body.replace(b"<Key>k<", b"<Key>other<")))) as proxy:
        assert list_keys(proxy.server, bucket) == ["other"]


def test_first_matching_rule_applies_a_limited_number_of_times(server: S3Server) -> None:
    bucket = server.bucket()
    with run_proxy(server, Rule(lists, answer_slow_down, times=2), Rule(always, drop_request)) as proxy:
        client = client_without_retries(proxy)
        for expected in ("SlowDown", "SlowDown", "Connection was closed"):
            with pytest.raises(Exception, match=expected):
                client.list_objects_v2(Bucket=bucket)
        assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def writes_three(server: S3Server, bucket: str) -> None:
    for number in range(3):
        server.client().put_object(Bucket=bucket, Key=str(number), Body=b"x")


@pytest.mark.parametrize(
    "hook,written", [(call_instead, ["0"]), (call_before, ["0", "1"]), (call_after, ["0", "1"])], ids=["instead", "before", "after"]
)
def test_process_can_be_killed_before_or_after_any_request(ceph: S3Server, hook: Any, written: list[str]) -> None:
    bucket = ceph.bucket()
    with run_proxy(ceph) as proxy:
        child = PROCESSES.Process(target=writes_three, args=(proxy.server, bucket))

        def kill() -> None:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            wait([child.sentinel])

        proxy.rules.append(Rule(nth(2), hook(kill)))
        child.start()
        child.join()
        deadline = time.monotonic() + 60
        while list_keys(ceph, bucket) != written and time.monotonic() < deadline:
            time.sleep(0.02)
    assert child.exitcode == -signal.SIGKILL
    assert list_keys(ceph, bucket) == written
    assert len(proxy.requests) == 2
