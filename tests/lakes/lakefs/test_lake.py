"""The lake of a lakeFS repository: refs, staging, retention, and errors that stop a run.

H1 to H20 are hazards of lakeFS's own garbage collector. `test_hazards.py` lists them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.lake import ATTEMPTS, LakeFsLake
from gc_assets.lakes.protocol import FrozenRefs
from tests.lakes.lakefs.fake_server import KEY_ID, SECRET, Branch, Commit, FakeObject, FakeRepository, FakeServer
from tests.lakes.lakefs.lakefs_lakes import FAR_FUTURE, commits_of, config_of, graph_of, serve, states
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.lakes.lakefs.tables import Entry, metarange_table, range_table, to_bytes

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = 86_400


class Builder:
    """Builds a small repository commit by commit. Days count back from `NOW`."""

    def __init__(self, folder: Path) -> None:
        self.repository = FakeRepository("ml-data", folder / "ml-data")
        (self.repository.namespace / "data").mkdir(parents=True)
        self.commit("first", [], 100, {})
        self.repository.branches["main"] = Branch("first")

    def commit(self, name: str, parents: list[str], days_ago: float, tree: dict[str, str], **summary: Any) -> str:
        listed = {path: FakeObject(path, address, 1, 0) for path, address in tree.items()}
        ordered = sorted(tree.items(), key=lambda pair: to_bytes(pair[0]))
        entries = [Entry(path, address, address_type=2 if "://" in address else 1) for path, address in ordered]
        metarange = ""
        if entries:
            range_id = self.repository.write_metadata(range_table(entries))
            low, high = to_bytes(entries[0].path), to_bytes(entries[-1].path)
            metarange = self.repository.write_metadata(metarange_table([(range_id, low, high, len(entries))]))
        created = int(NOW.timestamp() - days_ago * DAY)
        self.repository.commits[name] = Commit(name, parents, created, metarange, **summary)
        self.repository.trees[name] = listed
        return name

    def branch(self, name: str, head: str, *, hidden: bool = False) -> None:
        self.repository.branches[name] = Branch(head, hidden)

    def stage(self, branch: str, path: str, address: str) -> None:
        self.repository.branches[branch].staged[path] = FakeObject(path, address, 1, 0)

    def rules(self, default: int, **branches: int) -> None:
        rows = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        self.repository.rules = {"default_retention_days": default, "branches": rows}


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


@pytest.fixture
def lake(builder: Builder) -> Iterator[tuple[LakeFsLake, FakeServer]]:
    with serve(builder.repository) as pair:
        yield pair


def states_of(lake: LakeFsLake, grace_cutoff: datetime = FAR_FUTURE) -> dict[str, str]:
    refs = lake.freeze(NOW)
    return states(lake.retain(refs, graph_of(commits_of(lake, refs)), NOW, grace_cutoff))


def pinned_keys(refs: FrozenRefs, namespace: Path) -> set[str]:
    prefix = f"file://{namespace}/"
    return {item.address.removeprefix(prefix) for item in refs.pinned if item.address.startswith(prefix)}


def is_dumped(server: FakeServer) -> bool:
    """Return whether the server has dumped its refs. Later reads of staging areas are the second ones."""
    return any(path.endswith("/dump") for _, path, _ in server.requests)


# Retention


def test_missing_retention_rules_keep_every_commit(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H1: lakeFS's collector treats missing rules as an empty live set."""
    builder.commit("old", ["first"], 90, {"a": "data/p/a"})
    builder.commit("head", ["old"], 1, {"b": "data/p/b"})
    builder.branch("main", "head")
    assert set(states_of(lake[0]).values()) == {"retained"}
    (source,) = lake[0].freeze(NOW).sources
    assert (
        "no garbage collection rules" in config_of("http://localhost", "ml").unused_rules([("branch", "main")], NOW, source.properties)[0]
    )


def test_retention_rules_of_zero_days_keep_every_commit(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H19."""
    builder.commit("head", ["first"], 1, {"b": "data/p/b"})
    builder.branch("main", "head")
    builder.rules(0)
    assert set(states_of(lake[0]).values()) == {"retained"}


def test_branch_head_at_cutoff_is_kept(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    for name, parent, days in [("a", "first", 30), ("b", "a", 12), ("c", "b", 3), ("d", "c", 1)]:
        builder.commit(name, [parent], days, {})
    builder.branch("main", "d")
    builder.rules(7)
    assert states_of(lake[0]) == {"d": "retained", "c": "retained", "b": "retained", "a": "expired", "first": "expired"}


@pytest.mark.parametrize("seconds, state", [(7 * DAY - 1, "retained"), (7 * DAY, "expired"), (7 * DAY + 1, "expired")])
def test_parent_is_kept_while_child_is_younger_than_rule(
    builder: Builder, lake: tuple[LakeFsLake, FakeServer], seconds: int, state: str
) -> None:
    builder.commit("head", ["first"], seconds / DAY, {})
    builder.branch("main", "head")
    builder.rules(7)
    assert states_of(lake[0])["first"] == state


def test_last_of_two_rules_for_branch_applies(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("head", ["first"], 10, {})
    builder.branch("main", "head")
    builder.repository.rules = {
        "default_retention_days": 1,
        "branches": [{"branch_id": "main", "retention_days": days} for days in (1, 30)],
    }
    assert states_of(lake[0])["first"] == "retained"


def test_merged_commits_use_default_retention(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("side", ["first"], 3, {})
    builder.commit("merge", ["first", "side"], 2, {})
    builder.branch("main", "merge")
    builder.rules(1, main=30)
    assert states_of(lake[0]) == {"first": "retained", "merge": "retained", "side": "expired"}
    builder.rules(5, main=30)
    assert states_of(lake[0])["side"] == "retained"


def test_version_0_commit_has_its_first_parent_last(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("side", ["first"], 3, {})
    builder.commit("merge", ["side", "first"], 2, {}, version=0)
    builder.branch("main", "merge")
    builder.rules(1, main=30)
    assert states_of(lake[0]) == {"first": "retained", "merge": "retained", "side": "expired"}


def test_tag_keeps_only_tagged_commit(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("release", ["first"], 50, {"a": "data/p/a"})
    builder.commit("next", ["release"], 40, {})
    builder.commit("head", ["next"], 30, {})
    builder.branch("main", "head")
    builder.repository.tags["v1"] = "release"
    builder.rules(7)
    assert states_of(lake[0]) == {"head": "retained", "next": "expired", "release": "retained", "first": "expired"}


def test_ignored_tags_protect_nothing(builder: Builder) -> None:
    builder.commit("release", ["first"], 50, {})
    builder.commit("head", ["release"], 30, {})
    builder.branch("main", "head")
    builder.repository.tags["v1"] = "release"
    builder.rules(7)
    with serve(builder.repository, {"tags": "ignore"}) as (lake, _):
        assert states_of(lake)["release"] == "expired"


def test_grace_period_keeps_young_dangling_commit(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("lost", ["first"], 2, {})
    builder.rules(1)
    assert states_of(lake[0], NOW - timedelta(days=3))["lost"] == "retained"
    assert states_of(lake[0], NOW - timedelta(days=1))["lost"] == "dangling"


@pytest.mark.parametrize("dangling, expected", [("9d", "dangling"), ("11d", "retained")])
def test_dangling_commits_can_have_their_own_cutoff(builder: Builder, dangling: str, expected: str) -> None:
    builder.commit("lost", ["first"], 10, {})
    with serve(builder.repository, {"source": "configured", "default": "30d", "dangling": dangling}) as (lake, _):
        assert states_of(lake)["lost"] == expected


def test_configured_retention_replaces_server_rules(builder: Builder) -> None:
    for name, parent, days in [("a", "first", 30), ("b", "a", 12), ("c", "b", 3)]:
        builder.commit(name, [parent], days, {})
    builder.branch("main", "c")
    builder.branch("release/1", "b")
    builder.rules(365)
    rules = {"source": "configured", "default": {"keep_last": 2}, "refs": [{"match": "release/.*", "keep": "forever"}]}
    with serve(builder.repository, rules) as (lake, _):
        assert set(states_of(lake).values()) == {"retained"}
    del builder.repository.branches["release/1"]
    with serve(builder.repository, rules) as (lake, _):
        assert states_of(lake) == {"c": "retained", "b": "retained", "a": "expired", "first": "expired"}


def test_unusual_commit_dates_are_accepted(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("head", ["first"], 0, {})
    builder.repository.commits["head"].created = 2**60
    builder.repository.commits["first"].created = -(2**60)
    builder.branch("main", "head")
    builder.rules(7)
    assert states_of(lake[0]) == {"head": "retained", "first": "retained"}


def test_rule_for_missing_branch_is_noted(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.rules(7, gone=3)
    assert any("'gone', which does not exist" in note for note in lake[0].freeze(NOW).notes)


# Staging


def test_staged_objects_of_hidden_branches_are_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.branch("internal", "first", hidden=True)
    builder.stage("main", "a", "data/p/a")
    builder.stage("internal", "b", "data/p/b")
    assert pinned_keys(lake[0].freeze(NOW), builder.repository.namespace) == {"data/p/a", "data/p/b"}


def test_second_upload_of_identical_content_is_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H5: diff and prepare_uncommited omit the new file, although the branch references it."""
    builder.commit("head", ["first"], 1, {"a": "data/p/old"})
    builder.branch("main", "head")
    builder.stage("main", "a", "data/p/new")
    builder.repository.branches["main"].staged["a"].is_change = False
    assert pinned_keys(lake[0].freeze(NOW), builder.repository.namespace) == {"data/p/new"}


def test_linked_objects_whose_address_repeats_root_are_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H16, H17."""
    builder.stage("main", "a", "local:///lakefs-blockstore/ml-data/data/p/a,signature")
    assert "data/p/a,signature" in pinned_keys(lake[0].freeze(NOW), builder.repository.namespace)


def test_objects_committed_during_freeze_are_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H6: the order is staging, commits, staging."""
    builder.stage("main", "a", "data/p/a")

    def commit_before_the_dump(method: str, path: str, query: Any) -> None:
        if (method, path) == ("POST", "/repositories/ml-data/dump") and "late" not in builder.repository.commits:
            builder.commit("late", ["first"], 0, {"a": "data/p/a"})
            builder.branch("main", "late")
            builder.stage("main", "b", "data/p/b")

    lake[1].fault = commit_before_the_dump
    refs = lake[0].freeze(NOW)
    assert pinned_keys(refs, builder.repository.namespace) >= {"data/p/a", "data/p/b"}
    assert [ref.head_commit_id for ref in refs.refs] == ["late"]


def test_objects_committed_after_the_dump_are_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H6: the branch is committed, renamed and deleted, so neither the dump nor the second read contains the file."""
    builder.branch("dev", "first")
    builder.stage("dev", "a", "data/p/a")
    lake[1].pages_of_uncommitted = [("", "")]  # the server's list misses some (H5)

    def committed_and_renamed(method: str, path: str, query: Any) -> None:
        if "/refs/dev/" in path and is_dumped(lake[1]) and builder.repository.branches.pop("dev", None):
            builder.branch("renamed", builder.commit("late", ["first"], 0, {"a": "data/p/a"}))

    lake[1].fault = committed_and_renamed
    refs = lake[0].freeze(NOW)
    assert builder.repository.branches.keys() == {"main", "renamed"}
    assert pinned_keys(refs, builder.repository.namespace) == {"data/p/a"}


def test_freeze_is_repeated_if_dump_lacks_branch_head(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    dumps = []

    def commit_after_the_dump(method: str, path: str, query: Any) -> None:
        if (method, path) == ("POST", "/repositories/ml-data/gc/prepare_uncommited"):
            dumps.append(1)
        if (method, path) == ("GET", "/repositories/ml-data/tags") and len(dumps) < 3:
            name = builder.commit(f"commit-{len(dumps)}", ["first"], 0, {})
            builder.branch("main", name)
            builder.repository.tags["moving"] = name

    lake[1].fault = commit_after_the_dump
    refs = lake[0].freeze(NOW)
    assert len(dumps) == 3
    assert {ref.head_commit_id for ref in refs.refs} <= {commit.commit_id for commit in commits_of(lake[0], refs)}


def test_freeze_refuses_continuously_changing_repository(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    def always_another(method: str, path: str, query: Any) -> tuple[int, Any] | None:
        if (method, path) == ("GET", "/repositories/ml-data/tags"):
            page = {"has_more": False, "next_offset": "", "results": 1, "max_per_page": 1000}
            return 200, {"pagination": page, "results": [{"id": "t", "commit_id": "unknown"}]}
        return None

    lake[1].fault = always_another
    with pytest.raises(LakeUnreadable, match="'t' points to commit unknown, which is not among the 1 in the refs dump"):
        lake[0].freeze(NOW)
    assert sum(method == "POST" and path.endswith("/dump") for method, path, _ in lake[1].requests) == ATTEMPTS


def test_branch_deleted_during_listing_affects_no_other_staged_object(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H3: lakeFS then discards the other branches. Here its list is empty, and a branch is deleted in each of our two reads."""
    for branch in ("early", "late"):
        builder.branch(branch, "first")
    for number in range(7):
        for branch in ("early", "late", "main"):
            builder.stage(branch, f"{branch}{number}", f"data/p/{branch}{number}")
    lake[1].page = 3
    lake[1].pages_of_uncommitted = [("", "")]

    def delete_branch(method: str, path: str, query: Any) -> None:
        branch = "late" if is_dumped(lake[1]) else "early"
        if f"/refs/{branch}/" in path and query.get("after"):
            builder.repository.branches.pop(branch, None)

    lake[1].fault = delete_branch
    refs = lake[0].freeze(NOW)
    assert builder.repository.branches.keys() == {"main"}
    assert pinned_keys(refs, builder.repository.namespace) >= {f"data/p/main{number}" for number in range(7)}


@pytest.mark.parametrize("after_dump", [False, True])
def test_repository_without_its_default_branch_is_unreadable(
    builder: Builder, lake: tuple[LakeFsLake, FakeServer], after_dump: bool
) -> None:
    """A real server deletes the branches first. For five seconds, it still finds the repository, without any refs."""
    builder.commit("head", ["first"], 1, {"b": "data/p/b"})
    builder.branch("dev", "head")
    branches = builder.repository.branches

    def fault(method: str, path: str, query: Any) -> None:
        del method, query
        if path.endswith("/branches") and is_dumped(lake[1]) == after_dump:
            branches.pop("main", None)

    lake[1].fault = fault
    with pytest.raises(LakeUnreadable, match="no branch 'main', which is its default branch, so it is being deleted or was created bare"):
        lake[0].freeze(NOW)


def test_freeze_refuses_branch_name_that_is_commit_id_prefix(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """The server lists the commit instead, so staged objects would look unused."""
    builder.commit("fade" + "0" * 60, ["first"], 1, {"a": "data/p/a"})
    builder.branch("fade", "first")
    builder.stage("fade", "b", "data/p/b")
    builder.repository.prefix_wins = True
    with pytest.raises(LakeUnreadable, match="branch 'fade' is the prefix of a commit id"):
        lake[0].freeze(NOW)
    builder.commit("fade" + "1" * 60, ["first"], 1, {})  # a prefix of two ids resolves to the branch
    assert "data/p/b" in pinned_keys(lake[0].freeze(NOW), builder.repository.namespace)


# Errors


@pytest.mark.parametrize(
    "status, found",
    [
        (401, "HTTP 401: no; check access_key_id and secret_access_key"),
        (403, "HTTP 403: no; give the collector's user the permissions"),
        (404, "not found|HTTP 404: no; check endpoint and repository"),
        (410, "HTTP 410: no"),
        (500, "HTTP 500"),
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "/repositories/ml-data",
        "/repositories",
        "/config/garbage-collection",
        "/repositories/ml-data/branches",
        "/repositories/ml-data/refs/main/objects/ls",
        "/repositories/ml-data/refs/first/objects/ls",
        "/repositories/ml-data/tags",
        "/repositories/ml-data/dump",
        "/repositories/ml-data/gc/prepare_uncommited",
    ],
)
def test_error_response_is_reported_without_credentials(
    builder: Builder, lake: tuple[LakeFsLake, FakeServer], path: str, status: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc_assets.lakes.lakefs.client.RETRIES", 0)
    lake[1].fault = lambda method, request, query: (status, {"message": "no"}) if request == path else None
    with pytest.raises(LakeUnreadable, match=found) as error:
        lake[0].freeze(NOW)
    assert "lakeFS repository ml-data at http://127.0.0.1" in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "status, message, is_known",
    [
        (404, "not enabled", True),
        (403, "no permission", True),
        (501, "not implemented", True),
        (500, "invalid API endpoint", True),  # the path is unknown to older servers
        (500, "kv", False),
        (503, "busy", False),
        (429, "slow down", False),
    ],
)
def test_installation_id_may_be_missing_only_if_server_lacks_endpoint(
    lake: tuple[LakeFsLake, FakeServer], monkeypatch: pytest.MonkeyPatch, status: int, message: str, is_known: bool
) -> None:
    """If a run recorded no id, later runs could not check it."""
    monkeypatch.setattr("gc_assets.lakes.lakefs.client.RETRIES", 0)
    lake[1].installation = "first"
    lake[1].fault = lambda method, path, query: (status, {"message": message}) if path == "/usage-report/summary" else None
    if is_known:
        found = lake[0].freeze(NOW).repository
        assert found is not None
        assert found.server_id is None
    else:
        with pytest.raises(LakeUnreadable, match=f"usage report: HTTP {status}: {message}"):
            lake[0].freeze(NOW)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
def test_request_to_busy_server_is_retried(builder: Builder, lake: tuple[LakeFsLake, FakeServer], status: int) -> None:
    failures = {"left": 2}

    def busy(method: str, path: str, query: Any) -> tuple[int, Any] | None:
        if path.endswith("/branches") and failures["left"]:
            failures["left"] -= 1
            return status, {"message": "slow down"}
        return None

    lake[1].fault = busy
    assert [ref.ref_name for ref in lake[0].freeze(NOW).refs] == ["main"]
    assert failures["left"] == 0


@pytest.mark.parametrize("listed", ["/branches", "/tags", "/refs/main/objects/ls"])
def test_error_on_later_page_of_list_stops_run(
    builder: Builder, lake: tuple[LakeFsLake, FakeServer], monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """H4: lakeFS's iterators ignore such errors, and later objects look unused."""
    monkeypatch.setattr("gc_assets.lakes.lakefs.client.RETRIES", 1)
    lake[1].page = 2
    for number in range(5):
        builder.branch(f"b{number}", "first")
        builder.repository.tags[f"t{number}"] = "first"
        builder.stage("main", f"path {number}", f"data/p/{number}")
    lake[1].fault = lambda method, path, query: (500, {"message": "kv"}) if path.endswith(listed) and query.get("after") else None
    with pytest.raises(LakeUnreadable, match="HTTP 500: kv"):
        lake[0].freeze(NOW)


def test_unreachable_server_error_contains_no_credentials(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.lakes.lakefs.client.RETRIES", 0)
    with serve(builder.repository) as (lake, _):
        pass
    with pytest.raises(LakeUnreadable, match=r"no response .*check that the server runs") as error:
        lake.freeze(NOW)
    assert SECRET not in str(error.value)


def test_error_contains_no_credentials(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(builder.repository, **{"secret_access_key": "a-wrong-one"}) as (lake, _), pytest.raises(LakeUnreadable) as error:
        lake.freeze(NOW)
    assert "HTTP 401: error authenticating request" in str(error.value)
    assert "a-wrong-one" not in f"{error.value!r} {lake._config!r} {lake._server()!r}"


def test_pickled_lake_has_no_credentials(lake: tuple[LakeFsLake, FakeServer]) -> None:
    refs = lake[0].freeze(NOW)
    pickled = pickle.dumps(lake[0])
    assert SECRET.encode() not in pickled
    assert KEY_ID.encode() not in pickled
    requests = len(lake[1].requests)
    copy = pickle.loads(pickled)  # noqa: S301  (bytes of this test)
    commits = commits_of(copy, refs)
    assert commits == commits_of(lake[0], refs)
    assert copy.retain(refs, graph_of(commits), NOW, NOW) == lake[0].retain(refs, graph_of(commits), NOW, NOW)
    assert len(lake[1].requests) == requests
    assert lake[0].freeze(NOW).refs == refs.refs


@pytest.mark.parametrize(
    "page, found",
    [
        ({"has_more": False, "next_offset": "", "results": 2, "max_per_page": 1000}, "has 1 items, but records 2"),
        ({"has_more": True, "next_offset": "", "results": 1, "max_per_page": 1000}, "continues after '', expected 'main'"),
        ({"has_more": True, "next_offset": "a", "results": 1, "max_per_page": 1000}, "continues after 'a', expected 'main'"),
        ({"has_more": True, "next_offset": "z", "results": 1, "max_per_page": 1000}, "continues after 'z', expected 'main', its last"),
    ],
)
def test_inconsistent_page_stops_the_run(lake: tuple[LakeFsLake, FakeServer], page: dict[str, Any], found: str) -> None:
    body = {"pagination": page, "results": [{"id": "main", "commit_id": "first"}]}
    lake[1].fault = lambda method, path, query: (200, body) if path.endswith("/branches") else None
    with pytest.raises(LakeUnreadable, match=found):
        lake[0].freeze(NOW)


def test_empty_page_before_the_last_stops_the_run(lake: tuple[LakeFsLake, FakeServer]) -> None:
    body = {"pagination": {"has_more": True, "next_offset": "z", "results": 0, "max_per_page": 1000}, "results": []}
    lake[1].fault = lambda method, path, query: (200, body) if path.endswith("/tags") else None
    with pytest.raises(LakeUnreadable, match="of 0 items continues after 'z'"):
        lake[0].freeze(NOW)


def test_page_out_of_order_stops_the_run(lake: tuple[LakeFsLake, FakeServer]) -> None:
    page = {"has_more": False, "next_offset": "", "results": 2, "max_per_page": 1000}
    body = {"pagination": page, "results": [{"id": name, "commit_id": "first"} for name in ("main", "dev")]}
    lake[1].fault = lambda method, path, query: (200, body) if path.endswith("/branches") else None
    with pytest.raises(LakeUnreadable, match="out of order: 'dev' follows 'main'"):
        lake[0].freeze(NOW)


def test_empty_last_page_ends_a_list(lake: tuple[LakeFsLake, FakeServer]) -> None:
    def with_an_empty_page(method: str, path: str, query: Any) -> tuple[int, Any] | None:
        if not path.endswith("/branches"):
            return None
        if query.get("after"):
            return 200, {"pagination": {"has_more": False, "next_offset": "", "results": 0, "max_per_page": 1000}, "results": []}
        page = {"has_more": True, "next_offset": "main", "results": 1, "max_per_page": 1000}
        return 200, {"pagination": page, "results": [{"id": "main", "commit_id": "first"}]}

    lake[1].fault = with_an_empty_page
    assert [ref.ref_name for ref in lake[0].freeze(NOW).refs] == ["main"]


def test_paged_server_lists_are_read_completely(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    lake[1].page = 2
    for number in range(9):
        builder.branch(f"b{number}", "first")
        builder.repository.tags[f"t{number}"] = "first"
        builder.stage("main", f"path {number}", f"data/p/{number}")
    refs = lake[0].freeze(NOW)
    assert len(refs.refs) == 19
    assert len(pinned_keys(refs, builder.repository.namespace)) == 9


def raw_path(path: bytes) -> str:
    return path.decode(errors="surrogateescape")


@pytest.mark.parametrize("page", [1000, 3, 2])
def test_objects_after_path_that_is_not_utf8_are_listed(builder: Builder, lake: tuple[LakeFsLake, FakeServer], page: int) -> None:
    """The server's JSON has U+FFFD for such bytes, and continuing after that name would skip `b\u00e9`."""
    raw = raw_path(b"b\x80")
    builder.commit("head", ["first"], 1, {"a": "data/p/a", raw: "data/p/raw", "b\u00e9": "data/p/committed", "c": "data/p/c"})
    builder.branch("main", "head")
    builder.stage("main", "b\u00e9", "data/p/staged")
    lake[1].page = page
    # The server's own list does not contain it (H5).
    lake[1].pages_of_uncommitted = [("", "")]
    pinned = pinned_keys(lake[0].freeze(NOW), builder.repository.namespace)
    assert "data/p/staged" in pinned
    assert pinned <= {"data/p/staged", "data/p/raw"}


def test_page_of_only_paths_that_are_not_utf8_stops_run(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    for number in range(4):
        builder.stage("main", raw_path(b"b/%d\x80" % number), f"data/p/{number}")
    lake[1].page = 3
    with pytest.raises(LakeUnreadable, match=r"to 'b/2\ufffd' contain bytes that are not UTF-8.*; rename some"):
        lake[0].freeze(NOW)


def test_paths_that_look_the_same_are_listed(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """Two Latin-1 names differ only in a byte that the server's JSON does not contain."""
    for name in (b"caf\xe8.csv", b"caf\xe9.csv"):
        builder.stage("main", raw_path(name), f"data/p/{name[3]}")
    lake[1].pages_of_uncommitted = [("", "")]
    pinned = pinned_keys(lake[0].freeze(NOW), builder.repository.namespace)
    assert pinned == {"data/p/232", "data/p/233"}


def test_object_staged_at_path_that_is_not_utf8_is_live(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """Another committed path may look the same, with the same object."""
    builder.commit("head", ["first"], 1, {raw_path(b"x\x80"): "data/p/x"})
    builder.branch("main", "head")
    builder.repository.branches["main"].staged = {
        raw_path(b"x\x80"): None,
        raw_path(b"x\x81"): FakeObject(raw_path(b"x\x81"), "data/p/x", 1, 0),
    }
    lake[1].pages_of_uncommitted = [("", "")]
    refs = lake[0].freeze(NOW)
    assert "data/p/x" in pinned_keys(refs, builder.repository.namespace)
    assert [item.path for item in refs.uncommitted] == ["x\ufffd"]


@pytest.mark.parametrize("path, sent", [("a/b\ufffdc", "a/b"), ("\ufffd", ""), ("a/b", "a/b")])
def test_uncommitted_list_continues_before_path_that_is_not_utf8(lake: tuple[LakeFsLake, FakeServer], path: str, sent: str) -> None:
    """The token has the path of the next object in JSON, with the same U+FFFD as in lists."""

    def encode_token(value: str) -> str:
        return base64.b64encode(json.dumps({"branch": "main", "path": value, "run_id": "r", "key": ""}).encode()).decode()

    lake[1].pages_of_uncommitted = [("", encode_token(path)), ("", "")]
    lake[0].freeze(NOW)
    assert lake[1].tokens[-1] == encode_token(sent)


def test_all_pages_of_uncommitted_list_are_read(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H2: the last page has no location, and lakeFS's client reads only that page. H18: other pages can be empty too."""
    builder.stage("main", "a", "data/p/a")
    location = builder.repository.prepare_uncommitted("r1")
    builder.repository.branches["main"].staged.clear()
    lake[1].pages_of_uncommitted = [("", "t1"), (location, "t2"), ("", "t3"), ("", "")]
    assert "data/p/a" in pinned_keys(lake[0].freeze(NOW), builder.repository.namespace)


@pytest.mark.parametrize("tokens", [["same"], ["a", "b"], ["a", "b", "c"]])
def test_repeated_continuation_token_stops_the_run(lake: tuple[LakeFsLake, FakeServer], tokens: list[str]) -> None:
    """H18."""
    lake[1].pages_of_uncommitted = [("", token) for token in tokens * 20]
    with pytest.raises(LakeUnreadable, match=f"page {len(tokens) + 1} has the token of an earlier page, so the list does not end"):
        lake[0].freeze(NOW)


def test_missing_uncommitted_list_file_stops_run(lake: tuple[LakeFsLake, FakeServer]) -> None:
    lake[1].pages_of_uncommitted = [("local:///lakefs-blockstore/ml-data/_lakefs/retention/gc/uncommitted/r9/uncommitted", "")]
    with pytest.raises(LakeUnreadable, match=r"but .*/uncommitted/r9/uncommitted/ contains no file"):
        lake[0].freeze(NOW)


def test_wrong_uncommitted_list_location_stops_run(builder: Builder, tmp_path: Path) -> None:
    with (
        serve(builder.repository, location=f"file://{tmp_path}/elsewhere") as (lake, _),
        pytest.raises(LakeUnreadable, match="does not exist, although the server has just written it; check that `location`"),
    ):
        lake.freeze(NOW)


def test_local_namespace_is_matched_to_storage_by_folder_name(builder: Builder) -> None:
    builder.repository.storage_namespace = "local://unknown"
    with serve(builder.repository) as (lake, _), pytest.raises(LakeUnreadable, match="0 configured storages end in the folder 'unknown'"):
        lake.freeze(NOW)


@pytest.mark.parametrize(
    "other",
    [
        "local://ml-data",
        "local://ml-data/",
        "local://ml-data/data/inner",
        "local://",
        # The server stores a namespace as typed, and its block store normalizes the path. These are the same folder.
        "local:///ml-data",
        "local://./ml-data",
        "local://elsewhere/..//ml-data",
    ],
)
def test_repository_with_overlapping_namespace_stops_run(
    builder: Builder, lake: tuple[LakeFsLake, FakeServer], other: str, tmp_path: Path
) -> None:
    """H20, H13."""
    lake[1].repositories["other"] = FakeRepository("other", tmp_path / "other", storage_namespace=other)
    with pytest.raises(LakeUnreadable, match="repository other has the storage namespace"):
        lake[0].freeze(NOW)


def test_namespace_with_common_name_prefix_is_no_overlap(lake: tuple[LakeFsLake, FakeServer], tmp_path: Path) -> None:
    lake[1].repositories["ml-data-2"] = FakeRepository("ml-data-2", tmp_path / "other")
    assert lake[0].freeze(NOW).refs


@pytest.mark.parametrize("minutes, runs", [(4, True), (6, False), (-6, False)])
def test_clock_skew_over_five_minutes_stops_the_run(lake: tuple[LakeFsLake, FakeServer], minutes: int, runs: bool) -> None:
    lake[1].date = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes), usegmt=True)
    if runs:
        assert lake[0].freeze(NOW).refs
    else:
        with pytest.raises(LakeUnreadable, match=r"the server's time is .* Synchronize the clocks"):
            lake[0].freeze(NOW)


@pytest.mark.parametrize("days", [-1, "7", None])
def test_invalid_retention_rules_stop_run(builder: Builder, lake: tuple[LakeFsLake, FakeServer], days: Any) -> None:
    """H19: the server accepts negative days, which would expire everything but the heads."""
    builder.rules(7, main=days)
    with pytest.raises(LakeUnreadable, match="garbage collection rules: expected a number of days of at least 0"):
        lake[0].freeze(NOW)


def test_truncated_refs_dump_stops_run(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("head", ["lost"], 1, {})
    builder.branch("main", "head")
    with pytest.raises(LakeUnreadable, match="a parent that is not in the graph, for example head to its parent lost"):
        states_of(lake[0])


def test_refs_dump_with_missing_commits_stops_run(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    """H12."""
    (source,) = lake[0].freeze(NOW).sources
    builder.commit("head", ["first"], 1, {})
    builder.branch("main", "head")
    (longer,) = lake[0].freeze(NOW).sources
    with pytest.raises(LakeUnreadable, match="the dump records 2 commits, read 1; run again"):
        list(lake[0].commits(replace(source, properties=longer.properties)))


@pytest.mark.parametrize("damage", ["removed", "cut", "changed"])
def test_damaged_refs_dump_stops_run(builder: Builder, lake: tuple[LakeFsLake, FakeServer], damage: str) -> None:
    refs = lake[0].freeze(NOW)
    path = Path(refs.sources[0].address.removeprefix("file://"))
    raw = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(raw[:-1] if damage == "cut" else raw[:5] + bytes([raw[5] ^ 1]) + raw[6:])
    with pytest.raises(LakeUnreadable, match=f"commits in {refs.sources[0].address} cannot be read"):
        commits_of(lake[0], refs)


def test_read_only_repository_is_frozen_without_uncommitted_list(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.repository.read_only = True
    lake[1].fault = lambda method, path, query: (403, {"message": "read-only"}) if path.endswith("prepare_uncommited") else None
    assert lake[0].freeze(NOW).refs


def test_stray_file_in_metadata_folder_is_ignored(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    folder = builder.repository.namespace / "_lakefs"
    folder.mkdir(exist_ok=True)
    (folder / hashlib.sha256(b"stray").hexdigest()).write_bytes(b"stray")
    refs = lake[0].freeze(NOW)
    assert commits_of(lake[0], refs)
    assert all("_lakefs" not in claim.address for claim in refs.claims)


def test_minimum_file_age_is_link_expiry_plus_margin(lake: tuple[LakeFsLake, FakeServer]) -> None:
    lake[1].grace_period = 6 * 3600
    assert lake[0].freeze(NOW).min_age_seconds == 7 * 3600


def test_commits_reference_metaranges(builder: Builder, lake: tuple[LakeFsLake, FakeServer]) -> None:
    builder.commit("head", ["first"], 1, {"a": "data/p/a"})
    builder.branch("main", "head")
    roots = {commit.commit_id: commit.content_roots for commit in commits_of(lake[0], lake[0].freeze(NOW))}
    assert roots["first"] == ()
    assert [(root.kind, root.is_container) for root in roots["head"]] == [(Kind.METARANGE, True)]


def test_recorded_branches_and_heads_are_read(tmp_path: Path) -> None:
    repository = recorded_repository(Recording("lifecycle"), Recording("lifecycle").unpack(tmp_path))
    with serve(repository) as (lake, _):
        assert {ref.ref_name for ref in lake.freeze(NOW).refs if ref.ref_type == "branch"} == repository.branches.keys()
