"""Test the client with a real server, and with a scripted server that injects failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.nessie.client import MAX_ATTEMPTS, NessieClient
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.scripted_server import CONFIG, GONE, Answer, serve_answers
from tests.lakes.nessie.server import Server
from tests.ports import free_port


def failing(times: int, status: int) -> Callable[[str, dict[str, str]], Answer]:
    left = [times]

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        left[0] -= 1
        return (status, {"message": "try later", "errorCode": "TOO_MANY_REQUESTS"}) if left[0] >= 0 else (200, CONFIG)

    return answer


def test_server_config_contains_default_branch_and_root_hash(nessie: Server) -> None:
    with NessieClient("shop", nessie.uri) as client:
        config = client.get_config()
        assert config.default_branch == "main"
        assert [reference.hash for reference in client.list_references()] == [config.no_ancestor]


def test_references_contain_number_of_commits(nessie: Server, tmp_path: Any) -> None:
    builder = NessieBuilder(nessie.uri, tmp_path)
    for number in range(3):
        builder.put(["t"], {"type": "UDF", "dialect": "d", "sqlText": str(number), **id_of(builder)})
    builder.tag("v1.0/rc_1")
    builder.branch("dev/feature")
    with NessieClient("shop", nessie.uri) as client:
        found = {reference.name: reference.metadata.total_commits for reference in client.list_references() if reference.metadata}
    assert found == {"main": 3, "v1.0/rc_1": 3, "dev/feature": 3}


def id_of(builder: NessieBuilder) -> dict[str, str]:
    known = builder.content(["t"])
    return {} if known is None else {"id": known["id"]}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_transient_error_is_retried(status: int) -> None:
    with serve_answers(failing(3, status)) as (client, requests):
        assert client.get_config().default_branch == "main"
    assert len(requests) == 4


def test_persistent_error_contains_request_and_server_message() -> None:
    with (
        serve_answers(failing(99, 503)) as (client, requests),
        pytest.raises(LakeUnreadable, match=r"/api/v2/config: status 503 .*try later"),
    ):
        client.get_config()
    assert len(requests) == MAX_ATTEMPTS


def test_unreachable_server_stops_the_run() -> None:
    with (
        NessieClient("shop", f"http://127.0.0.1:{free_port()}/api/v2", max_wait=0.01) as client,
        pytest.raises(LakeUnreadable, match=r"lake shop: GET .*config: no answer \(ConnectError"),
    ):
        client.get_config()


@pytest.mark.parametrize("status, advice", [(401, "set a valid `token`"), (403, "LIST_COMMIT_LOG"), (404, "clean-up removed this history")])
def test_refused_request_is_not_retried_and_error_suggests_solution(status: int, advice: str) -> None:
    refused = pytest.raises(LakeUnreadable, match=f"status {status} .*{advice}")
    with serve_answers(lambda path, _: (status, {"message": "no"})) as (client, requests), refused:
        client.read_log("ab12")
    assert len(requests) == 1


def test_error_does_not_contain_access_token() -> None:
    with (
        pytest.raises(LakeUnreadable) as refused,
        NessieClient("shop", f"http://127.0.0.1:{free_port()}", SecretStr("s3cret"), 0.01) as client,
    ):
        client.get_config()
    assert "s3cret" not in str(refused.value)


def test_repeated_page_token_is_refused() -> None:
    page = {"hasMore": True, "token": "again", "references": []}
    with (
        serve_answers(lambda path, _: (200, page)) as (client, requests),
        pytest.raises(LakeUnreadable, match="repeats the page token 'again'"),
    ):
        list(client.list_references())
    assert len(requests) == 2


def test_incomplete_page_without_token_is_refused() -> None:
    page = {"hasMore": True, "references": []}
    with serve_answers(lambda path, _: (200, page)) as (client, _), pytest.raises(LakeUnreadable, match="gives no page token"):
        list(client.list_references())


def test_all_pages_are_read_even_if_some_are_empty() -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        number = int(parameters.get("page-token", "0"))
        items = [{"type": "BRANCH", "name": f"b{number}", "hash": "aa", "unknown": 1}] if number % 2 else []
        return 200, {"hasMore": number < 6, "token": str(number + 1), "references": items}

    with serve_answers(answer) as (client, _):
        assert [reference.name for reference in client.list_references()] == ["b1", "b3", "b5"]


def test_client_waits_for_restart_between_pages() -> None:
    downtime = [GONE, GONE, 503]

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        number = int(parameters.get("page-token", "0"))
        if number == 1 and downtime:
            return downtime.pop(0), {}
        return 200, {
            "hasMore": number < 2,
            "token": str(number + 1),
            "references": [{"type": "BRANCH", "name": f"b{number}", "hash": "aa"}],
        }

    with serve_answers(answer) as (client, requests):
        assert [reference.name for reference in client.list_references()] == ["b0", "b1", "b2"]
    assert len(requests) == 6


NO_REFERENCE = b'{"references": [{"type": "BRANCH"}]}'
UNKNOWN_TYPE = b'{"references": [{"type": "FORK", "name": "x", "hash": "a"}]}'


@pytest.mark.parametrize("body", [b"<html>", NO_REFERENCE, UNKNOWN_TYPE])
def test_response_that_does_not_match_api_v2_is_refused(body: bytes) -> None:
    with serve_answers(lambda path, _: (200, body)) as (client, _), pytest.raises(LakeUnreadable, match="the answer does not match API v2"):
        list(client.list_references())


def test_server_with_api_v1_only_is_refused() -> None:
    old = {**CONFIG, "maxSupportedApiVersion": 1}
    with serve_answers(lambda path, _: (200, old)) as (client, _), pytest.raises(LakeUnreadable, match="gc-assets needs v2"):
        client.get_config()
