"""Read the logs of all refs of a real server: each commit once, from the heads at the start, and
hidden data is detected.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import LakeUnreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.nessie.client import NessieClient
from gc_assets.lakes.nessie.lake import NessieLake
from gc_assets.lakes.nessie.models import LogPage
from gc_assets.lakes.protocol import Commit, FilteredLake, FrozenRefs, IncrementalLake, Lake
from gc_assets.stages.mark.commit_rows import tips
from gc_assets.stages.read.doctor import FAIL, OK, Finding, doctor
from gc_assets.state.schemas import COMMIT_GRAPH
from tests.depth import full_suite_only, in_turn
from tests.lakes.nessie.builder import NessieBuilder, delete, iceberg_table, put
from tests.lakes.nessie.oracle import apply_plain_rule, build_graph, contents, run_retention, walk_log
from tests.lakes.nessie.server import OLDEST, Server, running

pytestmark = in_turn

NOW = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def builder(nessie: Server, tmp_path: Path) -> NessieBuilder:
    return NessieBuilder(nessie.uri, tmp_path)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the path of every request of the client."""
    paths: list[str] = []
    attempt = NessieClient.send

    def record_request(self: NessieClient, path: str, parameters: Any) -> bytes:
        paths.append(path)
        return attempt(self, path, parameters)

    monkeypatch.setattr(NessieClient, "send", record_request)
    return paths


def table(number: int) -> dict[str, Any]:
    return iceberg_table(f"file:///lake/t/metadata/{number:05}.metadata.json", number)


def add_commits(builder: NessieBuilder, commits: int, branch: str = "main") -> None:
    known = builder.content(["t"], branch)
    for number in range(commits):
        builder.commit([put(["t"], {**table(number), **({} if known is None else {"id": known["id"]})})], branch)
        known = known or builder.content(["t"], branch)


def freeze_lake(builder: NessieBuilder) -> tuple[NessieLake, FrozenRefs]:
    lake = NessieLake(builder.config())
    return lake, lake.freeze(NOW)


def read_new(lake: NessieLake, refs: FrozenRefs, known: frozenset[str] = frozenset()) -> list[Commit]:
    return [commit for source in refs.sources for commit in lake.new_commits(source, known)]


def test_pickled_nessie_lake_implements_lake_protocols(builder: NessieBuilder) -> None:
    lake = pickle.loads(pickle.dumps(NessieLake(builder.config())))  # noqa: S301  (our own bytes)
    assert isinstance(lake, Lake)
    assert isinstance(lake, IncrementalLake)
    assert isinstance(lake, FilteredLake)


def test_empty_repository_has_no_commits_and_adds_note(builder: NessieBuilder) -> None:
    _, refs = freeze_lake(builder)
    assert [ref.head_commit_id for ref in refs.refs] == [None]
    assert refs.sources == ()
    assert refs.notes == ("lake shop: no ref has any commits, so the lake has no live files",)


def test_shared_history_is_read_once_for_all_refs(builder: NessieBuilder, requests: list[str]) -> None:
    add_commits(builder, 40)
    log = walk_log(builder.api, builder.head())
    for number in range(30):
        builder.branch(f"b{number}", at=log[number].hash)
    for number in range(5):
        builder.commit([put(["u"], table(number))], f"b{number}")
    lake, refs = freeze_lake(builder)
    requests.clear()
    commits = read_new(lake, refs)
    assert {commit.commit_id for commit in commits} == {
        item.hash for ref in refs.refs for item in walk_log(builder.api, ref.head_commit_id or "")
    }
    assert len(commits) == 45
    pages = [path for path in requests if path.endswith("/history")]
    assert len(pages) <= 2 + 31


def test_long_log_is_read_completely(builder: NessieBuilder) -> None:
    add_commits(builder, 300)
    lake, refs = freeze_lake(builder)
    commits = {commit.commit_id: commit for commit in read_new(lake, refs)}
    assert list(commits) == [item.hash for item in walk_log(builder.api, builder.head())]
    oldest = list(commits.values())[-1]
    assert oldest.parents == ()


def test_second_run_requests_only_new_commits(builder: NessieBuilder, requests: list[str]) -> None:
    add_commits(builder, 20)
    builder.tag("v1")
    lake, refs = freeze_lake(builder)
    known = frozenset(commit.commit_id for commit in read_new(lake, refs))
    requests.clear()
    assert read_new(lake, refs, known) == []
    assert requests == []
    add_commits(builder, 1)
    builder.tag("v2")
    _, later = freeze_lake(builder)
    requests.clear()
    assert [commit.commit_id for commit in read_new(lake, later, known)] == [builder.head()]
    assert sorted(path.rpartition("/")[2] for path in requests) == ["entries", "history"]


def test_commits_that_only_deleted_ref_reached_are_read_again(builder: NessieBuilder) -> None:
    add_commits(builder, 3)
    builder.branch("dev")
    add_commits(builder, 2, "dev")
    lake, refs = freeze_lake(builder)
    before = build_graph(lake, refs)
    builder.drop("dev")
    lake, refs = freeze_lake(builder)
    assert len(read_new(lake, refs)) == 3
    source = refs.sources[0]
    again = [commit.commit_id for commit in lake.new_commits(source, frozenset(), [*tips(before), "ab" * 32])]
    assert sorted(again) == sorted(before["commit_id"].to_pylist())
    assert list(lake.new_commits(source, frozenset(again), tips(before))) == []


def test_ref_deleted_or_moved_during_run_has_no_effect(builder: NessieBuilder) -> None:
    add_commits(builder, 3)
    builder.branch("dev")
    add_commits(builder, 2, "dev")
    builder.tag("v1", "dev")
    lake, refs = freeze_lake(builder)
    before = {ref.ref_name: ref.head_commit_id for ref in refs.refs}
    expected = {item.hash for head in before.values() for item in walk_log(builder.api, head or "")}
    builder.drop("v1")
    builder.drop("dev")
    builder.branch("dev")
    add_commits(builder, 1)
    assert {commit.commit_id for commit in read_new(lake, refs)} == expected


def test_merge_commit_has_all_parents_but_history_follows_first_parent(builder: NessieBuilder) -> None:
    add_commits(builder, 2)
    builder.branch("dev")
    add_commits(builder, 1)
    builder.commit([put(["u"], table(7))], "dev")
    source = builder.head("dev")
    before = builder.head()
    merged = builder.merge("dev")
    builder.drop("dev")
    lake, refs = freeze_lake(builder)
    commits = {commit.commit_id: commit for commit in read_new(lake, refs)}
    assert commits[merged].parents == (before, source)
    assert source not in commits


def test_commit_with_5000_operations_is_read(builder: NessieBuilder) -> None:
    builder.commit([put([f"t{number}"], table(number)) for number in range(5000)])
    builder.commit([delete([f"t{number}"]) for number in range(2500)])
    found = run_retention(builder.config(retention={"default": "1"}), NOW)
    assert contents(found) == apply_plain_rule(builder.api, lambda name: 1, NOW)
    assert len(contents(found)) == 2500


def test_content_keys_with_special_characters_stay_distinct(builder: NessieBuilder) -> None:
    keys = [("a.b",), ("a", "b"), ("a/b",), ("ä", "日本.語"), ("`q`",), ("a b%2F\\c",)]
    for number, key in enumerate(keys):
        builder.commit([*builder.namespaces(key, "main"), put(key, table(number))])
    found = run_retention(builder.config(retention={"default": "1"}), NOW)
    assert contents(found) == apply_plain_rule(builder.api, lambda name: 1, NOW)
    assert found.contents is not None
    assert set(found.contents["content_key"].to_pylist()) == {"`a.b`", "a.b", "a/b", "ä.`日本.語`", "```q```", "a b%2F\\c"}


def test_table_without_metadata_location_is_in_live_contents(builder: NessieBuilder) -> None:
    """A later stage makes the table unreadable, because its address cannot be resolved."""
    builder.commit([put(["lost"], iceberg_table(""))])
    found = run_retention(builder.config(retention={"default": "1"}), NOW)
    assert found.contents is not None
    assert found.contents["metadata_location"].to_pylist() == [""]


class ChangedLogClient(NessieClient):
    """A client that changes the pages of the real log."""

    change: Any = None

    def read_log(self, head: str, commits: int = 250) -> LogPage:
        return ChangedLogClient.change(super().read_log(head, commits))


@pytest.fixture
def changed_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ChangedLogClient]]:
    monkeypatch.setattr("gc_assets.lakes.nessie.lake.NessieClient", ChangedLogClient)
    yield ChangedLogClient
    ChangedLogClient.change = None


def test_log_with_missing_commit_stops_the_run(builder: NessieBuilder, changed_log: type[ChangedLogClient]) -> None:
    add_commits(builder, 4)
    changed_log.change = lambda page: page.model_copy(update={"items": (page.items[0], *page.items[2:])})
    with pytest.raises(LakeUnreadable, match="may not see all commits"):
        build_graph(*freeze_lake(builder))


def test_empty_log_of_branch_with_head_stops_run(builder: NessieBuilder, changed_log: type[ChangedLogClient]) -> None:
    add_commits(builder, 1)
    changed_log.change = lambda page: page.model_copy(update={"items": ()})
    with pytest.raises(LakeUnreadable, match="is empty"):
        build_graph(*freeze_lake(builder))


def test_short_page_does_not_end_the_log(builder: NessieBuilder, changed_log: type[ChangedLogClient]) -> None:
    add_commits(builder, 5)
    changed_log.change = lambda page: page.model_copy(update={"items": page.items[:2], "has_more": False})
    lake, refs = freeze_lake(builder)
    assert [commit.commit_id for commit in read_new(lake, refs)] == [item.hash for item in walk_log(builder.api, builder.head())]


def test_client_recognises_missing_commits_and_refs(builder: NessieBuilder) -> None:
    add_commits(builder, 1)
    with NessieClient("shop", builder.uri) as client:
        assert client.has_commit(builder.head())
        assert not client.has_commit("ab" * 32)
        assert client.has_ref("main")
        assert not client.has_ref("no/such.ref")


def test_commit_count_that_differs_from_log_stops_run(builder: NessieBuilder) -> None:
    add_commits(builder, 3)
    lake, refs = freeze_lake(builder)
    graph = build_graph(lake, refs)
    one_more = replace(refs, refs=tuple(replace(ref, properties={"total_commits": "4"}) for ref in refs.refs))
    with pytest.raises(LakeUnreadable, match="branch main has 4 commits by the server's count, but its log shows 3"):
        lake.retain(one_more, graph, NOW, NOW)


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NessieBuilder]:
    """A server that hides the keys with prefix `secret` and the refs with prefix `hidden`."""
    rules = {"nessie.server.authorization.enabled": "true"}
    hidden = "op in ['READ_CONTENT_KEY'] && path.startsWith('secret') || op in ['VIEW_REFERENCE'] && ref.startsWith('hidden')"
    rules["nessie.server.authorization.rules.all"] = f"!({hidden})"
    folder = tmp_path_factory.mktemp("guarded")
    with running(folder, properties=rules) as server:
        yield NessieBuilder(server.uri, folder / "warehouse")


def test_commit_with_hidden_operations_stops_run(restricted: NessieBuilder) -> None:
    restricted.commit([put(["open"], table(1))])
    restricted.commit([put(["secret"], table(2))])
    lake, refs = freeze_lake(restricted)
    graph = build_graph(lake, refs)
    with pytest.raises(LakeUnreadable, match=r"1 commit shows no operation.*READ_CONTENT_KEY"):
        lake.retain(refs, graph, NOW, NOW)
    assert NessieLake(restricted.config(empty_commits="allow")).retain(refs, graph, NOW, NOW).contents is not None


def test_ref_from_earlier_run_that_server_hides_stops_run(restricted: NessieBuilder) -> None:
    body = {"type": "BRANCH", "name": "main", "hash": restricted.head()}
    restricted.api.post("trees", params={"name": "hidden", "type": "BRANCH"}, json=body)
    lake, refs = freeze_lake(restricted)
    assert "hidden" not in {ref.ref_name for ref in refs.refs}
    lake.verify_deleted({"dropped", "other"})
    with pytest.raises(LakeUnreadable, match=r"trees/hidden: status 403.*VIEW_REFERENCE"):
        lake.verify_deleted({"dropped", "hidden"})
    with pytest.raises(LakeUnreadable, match="the server has a ref main, which an earlier run listed"):
        lake.verify_deleted({"main"})


def test_doctor_reports_history_that_server_hides(restricted: NessieBuilder, tmp_path: Path) -> None:
    storage = StorageConfig(name="warehouse", location=f"file://{tmp_path}/")

    def visible(**settings: str) -> Finding:
        config = Config(state=str(tmp_path / "state"), storages=(storage,), lakes=(restricted.config(**settings),))
        context = RunContext.of(config, Clock(), Clock().today())
        return next(finding for finding in doctor(context) if finding.check == "visible")

    hidden = visible()
    assert hidden.verdict == FAIL
    assert "READ_CONTENT_KEY" in hidden.found
    assert visible(empty_commits="allow").verdict == OK


def test_branch_content_that_differs_from_log_stops_run(builder: NessieBuilder) -> None:
    builder.commit([put(["a"], table(1)), put(["b"], table(2))])
    lake, refs = freeze_lake(builder)
    source = refs.sources[0]
    all_commits = list(lake.commits(source))
    graph = build_graph(lake, refs)
    text = dict(all_commits[0].summary)["operations"]
    column = graph.schema.get_field_index("summary")
    hidden = [[(name, value.replace(text, text.splitlines()[0])) for name, value in row] for row in graph["summary"].to_pylist()]
    changed = graph.set_column(column, graph.schema.field(column), pa.array(hidden, graph.schema.field(column).type))
    with pytest.raises(LakeUnreadable, match=r"yields 1 entries at its head .*, but the server lists 2"):
        lake.retain(refs, changed, NOW, NOW)


@full_suite_only
def test_oldest_supported_server_is_read(tmp_path: Path) -> None:
    with running(tmp_path, OLDEST) as server:
        builder = NessieBuilder(server.uri, tmp_path / "warehouse")
        add_commits(builder, 5)
        builder.branch("dev")
        builder.on("dev").new("db.t")
        builder.tag("v1", "dev")
        found = run_retention(builder.config(retention={"default": "2"}), NOW)
        assert contents(found) == apply_plain_rule(builder.api, lambda name: 2, NOW)
        NessieLake(builder.config()).verify_deleted({"dropped"})
        with pytest.raises(LakeUnreadable, match="the server has a ref v1"):
            NessieLake(builder.config()).verify_deleted({"v1"})
        with NessieClient("shop", server.uri) as client:
            assert (client.has_commit(builder.head()), client.has_commit("ab" * 32)) == (True, False)


def test_retention_of_empty_repository_is_empty(builder: NessieBuilder) -> None:
    lake, refs = freeze_lake(builder)
    found = lake.retain(refs, COMMIT_GRAPH.schema.empty_table(), NOW, NOW)
    assert found.contents is not None
    assert (found.reachable.num_rows, found.contents.num_rows) == (0, 0)
