"""The fake server returns the recorded responses of a real server to requests of `lakefs-sdk`."""

from __future__ import annotations

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
from tests.lakes.lakefs.recordings import NAMES, Recording


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


def test_branches(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    matches = 0
    for query, _, expected in replay(served, "branches", "/branches"):
        assert BranchesApi(client).list_branches(recording.name, **paging(query)).to_dict() == expected
        matches += 1
    assert matches > 1


def test_changes_of_branches(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    for _, path, expected in replay(served, "staging_diff", "/diff"):
        found = BranchesApi(client).diff_branch(recording.name, path.split("/branches/")[1].split("/")[0]).to_dict()
        paths = [[(row["path"], row["type"]) for row in rows["results"]] for rows in (found, expected)]
        assert paths[0] == paths[1]


def test_tags(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    matches = [TagsApi(client).list_tags(recording.name, **paging(q)).to_dict() == e for q, _, e in replay(served, "tags", "/tags")]
    assert matches
    assert all(matches)


def test_listings_of_refs(served: tuple[Recording, ApiClient]) -> None:
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


def test_repository_and_rules(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    ((_, _, expected), *_) = replay(served, "repository", f"/repositories/{recording.name}")
    assert RepositoriesApi(client).get_repository(recording.name).to_dict() == expected
    ((_, _, rules), *_) = replay(served, "gc_rules", "/settings/gc_rules")
    if rules["branches"]:
        assert RepositoriesApi(client).get_gc_rules(recording.name).to_dict() == rules
    ((_, _, grace), *_) = replay(served, "config", "/config/garbage-collection")
    assert InternalApi(client).get_garbage_collection_config().to_dict() == grace


def test_refs_dump(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    api = RepositoriesApi(client)
    task = api.dump_submit(recording.name)
    first, second = (api.dump_status(recording.name, task.id).to_dict() for _ in range(2))
    recorded = [exchange["response"]["body"] for exchange in recording.exchanges("dump") if exchange["request"]["query"]]
    assert first.keys() == recorded[0].keys()
    assert not first["done"]
    assert second["refs"] == recorded[-1]["refs"]


def test_errors_equal_the_recorded_ones(served: tuple[Recording, ApiClient]) -> None:
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


def test_unknown_requests_are_refused(served: tuple[Recording, ApiClient]) -> None:
    recording, client = served
    with pytest.raises(ApiException) as found:
        TagsApi(client).create_tag(recording.name, TagCreation(id="new", ref="main"))
    assert found.value.status == 501
