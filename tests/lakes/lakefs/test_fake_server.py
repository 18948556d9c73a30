"""The fake server returns the recorded responses of a real server to requests of `lakefs-sdk`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lakefs_sdk.api.branches_api import BranchesApi
from lakefs_sdk.api.internal_api import InternalApi
from lakefs_sdk.api.objects_api import ObjectsApi
from lakefs_sdk.api.repositories_api import RepositoriesApi
from lakefs_sdk.api.tags_api import TagsApi
from lakefs_sdk.api_client import ApiClient
from lakefs_sdk.configuration import Configuration
from lakefs_sdk.exceptions import ApiException
from lakefs_sdk.models.tag_creation import TagCreation

from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, FakeServer
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import DATA, NAMES, Recording


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recording, ApiClient]]:
    recording = Recording(request.param)
    with FakeServer(recorded_repository(recording, recording.namespace)).running() as url:
        yield recording, ApiClient(Configuration(host=f"{url}/api/v1", username=KEY_ID, password=SECRET))


def replay(served: tuple[Recording, ApiClient], subject: str, suffix: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Yield the query, the path between repository and `suffix`, and the response of recorded requests."""
    recording, _ = served
    for exchange in recording.exchanges(subject):
        request, response = exchange["request"], exchange["response"]
        if request["method"] == "GET" and request["path"].endswith(suffix) and response["status"] == 200 and not request.get("auth"):
            yield request["query"], request["path"], response["body"]


def paging(query: dict[str, str]) -> dict[str, Any]:
    return {name: int(value) if name == "amount" else value == "true" if name == "show_hidden" else value for name, value in query.items()}


def test_fake_server_returns_recorded_branches(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    matches = 0
    for query, _, expected in replay(served, "branches", "/branches"):
        assert BranchesApi(client).list_branches(recording.name, **paging(query)).to_dict() == expected
        matches += 1
    assert matches > 1


def test_fake_server_returns_recorded_uncommitted_changes(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    for _, path, expected in replay(served, "staging_diff", "/diff"):
        found = BranchesApi(client).diff_branch(recording.name, path.split("/branches/")[1].split("/")[0]).to_dict()
        paths = [[(row["path"], row["type"]) for row in rows["results"]] for rows in (found, expected)]
        assert paths[0] == paths[1]


def test_fake_server_returns_recorded_tags(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    matches = [TagsApi(client).list_tags(recording.name, **paging(q)).to_dict() == e for q, _, e in replay(served, "tags", "/tags")]
    assert matches
    assert all(matches)


def test_fake_server_returns_recorded_object_listings(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    branches = recording.expected["branches"]
    matches = 0
    for query, path, expected in replay(served, "objects", "/objects/ls"):
        ref = path.split("/refs/")[1].split("/")[0]
        if ref in branches:
            found = ObjectsApi(client).list_objects(recording.name, ref, **paging(query)).to_dict()
            assert found["pagination"] == expected["pagination"]
            assert found["results"] == expected["results"]
            matches += 1
    assert matches > 5


def test_fake_server_returns_recorded_repository_and_rules(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    ((_, _, expected), *_) = replay(served, "repository", f"/repositories/{recording.name}")
    assert RepositoriesApi(client).get_repository(recording.name).to_dict() == expected
    ((_, _, rules), *_) = replay(served, "gc_rules", "/settings/gc_rules")
    if rules["branches"]:
        assert RepositoriesApi(client).get_gc_rules(recording.name).to_dict() == rules
    ((_, _, grace), *_) = replay(served, "config", "/config/garbage-collection")
    assert InternalApi(client).get_garbage_collection_config().to_dict() == grace


def test_fake_server_returns_recorded_refs_dump(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    api = RepositoriesApi(client)
    task = api.dump_submit(recording.name)
    first, second = (api.dump_status(recording.name, task.id).to_dict() for _ in range(2))
    recorded = [exchange["response"]["body"] for exchange in recording.exchanges("dump") if exchange["request"]["query"]]
    assert first.keys() == recorded[0].keys()
    assert not first["done"]
    assert second["refs"] == recorded[-1]["refs"]


def test_fake_server_returns_recorded_errors(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    errors = {e["request"]["path"]: e["response"] for e in recording.exchanges("errors")}
    missing = errors["/api/v1/repositories/no-such-repository"]
    with pytest.raises(ApiException) as found:
        RepositoriesApi(client).get_repository("no-such-repository")
    assert (found.value.status, missing["body"]["message"] in str(found.value.body)) == (missing["status"], True)
    unknown_user = ApiClient(Configuration(host=client.configuration.host, username=KEY_ID, password=KEY_ID))
    with pytest.raises(ApiException) as refused:
        RepositoriesApi(unknown_user).get_repository(recording.name)
    assert refused.value.status == 401
    assert "error authenticating request" in str(refused.value.body)


@pytest.mark.parametrize("prefix_wins, shown", [(True, "committed"), (False, "staged")])
def test_commit_id_prefix_precedes_branch_name_on_old_servers_only(tmp_path: Path, shown: str, *, prefix_wins: bool) -> None:
    builder = RepositoryBuilder(tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
    repository = builder.repository
    repository.prefix_wins = prefix_wins
    commit = "fade" + "0" * 60
    builder.record(commit, ["main-0"], {"committed": "data/p/a"})
    for name in ("fade", commit):
        builder.branch(name, "first")
        builder.stage(name, "staged", "data/p/b")
    assert set(repository.resolve("fade") or ()) == {shown}
    assert (repository.resolve("fade$") is None) == prefix_wins
    assert set(repository.resolve(commit) or ()) == {"committed"}
    assert repository.resolve(f"{commit}$") is None
    builder.record("fade" + "1" * 60, ["main-0"], {})
    assert set(repository.resolve("fade") or ()) == set(repository.resolve("fade$") or ()) == {"staged"}


def test_fake_server_returns_recorded_responses_to_branch_edits(tmp_path: Path) -> None:
    """Ids of commits differ, so each recorded id is replaced by that of the same commit here."""
    builder = RepositoryBuilder(tmp_path, datetime(2026, 1, 1, tzinfo=UTC), "edits")
    server = FakeServer(builder.repository)
    exchanges = json.loads((DATA / "edits.json").read_text())
    created = next(row for exchange in exchanges for row in _commits(exchange["response"]["body"]) if not row["parents"])
    ids = {created["id"]: "first"}  # recorded and own id
    for exchange in exchanges:
        request, response = exchange["request"], exchange["response"]
        path, query = request["path"].removeprefix("/api/v1"), {key: str(value) for key, value in request["query"].items()}
        if path.endswith("/objects"):
            builder.stage("main", query["path"])
            continue
        if path.endswith("/branch_protection"):
            builder.repository.protected = [rule["pattern"] for rule in response["body"]]
        body = _rename(request.get("body") or {}, ids)
        if isinstance(body.get("paths"), int):
            body["paths"] = [str(number) for number in range(body["paths"])]
        status, found = server.answer(request["method"], path, _rename(query, ids), body)
        found = found.decode() if isinstance(found, bytes) else found
        if isinstance(found, dict) and "id" in found and "parents" in found:
            ids[response["body"]["id"]] = found["id"]
            ids.setdefault(response["body"]["parents"][0], found["parents"][0])  # of a revert, whose response has no id
        assert (request, status, _comparable(found)) == (request, response["status"], _comparable(_rename(response["body"], ids)))
    assert len(exchanges) > 35


def _commits(body: Any) -> list[dict[str, Any]]:
    return [row for row in body.get("results", ()) if "parents" in row] if isinstance(body, dict) else []


def _rename(body: Any, ids: dict[str, str]) -> Any:
    text = json.dumps(body)
    for recorded, own in ids.items():
        text = text.replace(recorded, own)
    return json.loads(text)


def _comparable(body: Any) -> Any:
    """Return a response without times, ids of metaranges, and what the fake server does not model."""
    if isinstance(body, list):
        return [_comparable(item) for item in body]
    if not isinstance(body, dict):
        return body
    unknown = {"creation_date", "generation", "meta_range_id"} | (
        {"committer", "message", "version"} if body.get("parents") == [] else set()
    )
    return {key: _comparable(value) for key, value in body.items() if key not in unknown}


def test_fake_server_refuses_unknown_requests(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    with pytest.raises(ApiException) as found:
        TagsApi(client).create_tag(recording.name, TagCreation(id="new", ref="main"))
    assert found.value.status == 501
