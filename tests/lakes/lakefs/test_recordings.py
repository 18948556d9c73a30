"""Live and dead files of recorded repositories of a real server, by scenario.

This module and `tests/stages/mark/lakefs/test_lifecycle.py` cover all recorded edge cases (`traps`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.lakefs.lake import LakeFsLake
from gc_assets.lakes.protocol import Commit, Container, FrozenRefs
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import in_turn, select_cases
from tests.lakes.lakefs.fake_server import Branch, FakeServer
from tests.lakes.lakefs.lakefs_lakes import FAR_FUTURE, commits_of, config_of, graph_of, moment, retained_ids
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import NAMES, Recording

pytestmark = in_turn

NOW = datetime(2026, 6, 1, tzinfo=UTC)
TAGS = ["keep", "ignore"]


@dataclass
class RecordedRepository:
    """A recorded repository with its staged keys, and a lake for each policy for tags."""

    recording: Recording
    namespace: Path
    server: FakeServer
    lakes: dict[str, LakeFsLake]
    staged: set[str] = field(default_factory=set)
    decoded: dict[str, set[str]] = field(default_factory=dict)

    def keys(self, addresses: list[str]) -> set[str]:
        prefix = f"file://{self.namespace}/"
        return {address.removeprefix(prefix) for address in addresses if address.startswith(prefix) and "/_lakefs/" not in address}

    def on_disk(self) -> set[str]:
        found = (path for path in self.namespace.rglob("*") if path.is_file())
        return {str(path.relative_to(self.namespace)) for path in found if "_lakefs" not in path.parts}

    def read(self, rules: dict[str, Any]) -> tuple[FrozenRefs, dict[str, Commit]]:
        self.server.repositories[self.recording.name].rules = rules
        refs = self.lakes["keep"].freeze(NOW)
        return refs, {commit.commit_id: commit for commit in commits_of(self.lakes["keep"], refs)}

    def active(self, scenario: dict[str, Any], tags: str) -> dict[str, Commit]:
        refs, commits = self.read(scenario["rules"])
        kept = retained_ids(self.lakes[tags].retain(refs, graph_of(commits.values()), moment(scenario["as_of"]), FAR_FUTURE))
        return {commit_id: commits[commit_id] for commit_id in kept}

    def committed_keys(self, commits: dict[str, Commit]) -> set[str]:
        roots = {root.address: root for commit in commits.values() for root in commit.content_roots}
        return set().union(*(self.keys_below(Container(root.address, root.kind)) for root in roots.values()))

    def keys_below(self, container: Container) -> set[str]:
        if container.address not in self.decoded:
            rows = self.lakes["keep"].decode(container, LocalObjects().read(container.address))
            parts = rows.filter(rows.column("is_container")).select(["address", "kind", "expected_entries"]).to_pylist()
            children = [self.keys_below(Container(row["address"], row["kind"], None, row["expected_entries"])) for row in parts]
            self.decoded[container.address] = set().union(self.keys(rows.column("address").to_pylist()), *children)
        return self.decoded[container.address]


@pytest.fixture(scope="module", params=select_cases([name for name in NAMES if name != "many"], ["many"]))
def recorded(request: pytest.FixtureRequest) -> Iterator[RecordedRepository]:
    yield from _read_recording(request.param)


@pytest.fixture(scope="module")
def basic() -> Iterator[RecordedRepository]:
    yield from _read_recording("basic")


def _read_recording(name: str) -> Iterator[RecordedRepository]:
    recording = Recording(name)
    namespace = recording.namespace
    server = FakeServer(recorded_repository(recording, namespace))
    # All tests share the namespace read-only, so the server writes no list, and only listings contain staged objects.
    server.fault = lambda method, path, query: (201, {"run_id": "r", "gc_uncommitted_location": ""}) if "prepare" in path else None
    with server.running() as url:
        lakes = {tags: LakeFsLake(config_of(url, name, {"tags": tags}), LocalObjects(), [f"file://{namespace}/"]) for tags in TAGS}
        found = RecordedRepository(recording, namespace, server, lakes)
        found.staged = found.keys([item.address for item in lakes["keep"].freeze(NOW).pinned])
        for repository in server.repositories.values():  # staging is the same for all scenarios, which differ in rules and dates
            repository.branches = {ref: Branch(branch.head, branch.hidden) for ref, branch in repository.branches.items()}
            repository.trees = {commit: {} for commit in repository.trees}
        yield found


@pytest.mark.parametrize("tags", TAGS)
def test_live_files_match_recorded_scenarios(recorded: RecordedRepository, tags: str) -> None:
    ending = "protect" if tags == "keep" else "ignored"
    for scenario in recorded.recording.expected["scenarios"]:
        live = recorded.committed_keys(recorded.active(scenario, tags)) | recorded.staged
        dead = recorded.on_disk() - live
        expected = scenario[f"dead_if_tags_{ending}"]
        if isinstance(expected, list):
            assert dead == set(expected), scenario["name"]
            assert tags == "ignore" or {key for key in scenario["must_keep"] if "://" not in key} <= live, scenario["name"]
        else:
            digest = scenario["dead_digest" if tags == "keep" else "dead_digest_tags_ignored"]
            assert (len(dead), hashlib.sha256("\n".join(sorted(dead)).encode()).hexdigest()) == (expected, digest), scenario["name"]
            assert tags == "keep" or len(live - recorded.staged) == scenario["live_files"], scenario["name"]


def test_retained_commits_include_those_kept_by_server(recorded: RecordedRepository) -> None:
    """H14: the result of the server omits commits depending on the order of ids."""
    missed = 0
    for scenario in recorded.recording.expected["scenarios"]:
        active = set(recorded.active(scenario, "ignore"))
        assert active == set(scenario["rule_active_commits"]), scenario["name"]
        assert active >= set(scenario["server_active_commits"]), scenario["name"]
        missed += len(active - set(scenario["server_active_commits"]))
    assert missed > 0 or recorded.recording.name == "lifecycle"


def test_recorded_edge_cases_are_kept(basic: RecordedRepository) -> None:
    scenario = next(item for item in basic.recording.expected["scenarios"] if item["name"] == "A")
    live = basic.committed_keys(basic.active(scenario, "keep")) | basic.staged
    traps = {trap["id"]: trap for trap in basic.recording.expected["traps"]}
    assert set(traps) == {
        "tag-only", "dangling-young", "hard-reset", "hidden-branch", "reset", "staged-then-deleted", "staged-overwritten",
        "identical-reupload", "link-pending", "link-expired", "link-full-address", "imported", "full-spelling", "strays",
        "sibling-order",
    }  # fmt: skip
    for name, trap in traps.items():
        if name != "link-pending":  # younger than the link expiry, which the stages apply
            assert {key for key in trap.get("keys", ()) if "://" not in key} <= live, trap["text"]
        assert not set(trap.get("dead", ())) & live, trap["text"]


def test_imported_objects_are_live_at_recorded_addresses(basic: RecordedRepository) -> None:
    (trap,) = [trap for trap in basic.recording.expected["traps"] if trap["id"] == "imported"]
    heads = {ref.head_commit_id for ref in basic.read({"default_retention_days": 7, "branches": []})[0].refs}
    commits = basic.read({"default_retention_days": 7, "branches": []})[1]
    named: set[str] = set()
    for commit in (commits[head] for head in heads if head is not None):
        for root in commit.content_roots:
            rows = basic.recording.objects(root.address.rpartition("/")[2])
            named |= set(rows.column("address").to_pylist())
    assert {basic.recording.address(key) for key in trap["keys"] if "://" in key} <= named


def test_refs_and_commits_match_recording(basic: RecordedRepository) -> None:
    expected = basic.recording.expected
    refs, commits = basic.read(expected["rules_in_force_when_recorded"])
    assert {ref.ref_name: ref.head_commit_id for ref in refs.refs if ref.ref_type == "tag"} == expected["tags"]
    heads = {name: branch["head"] for name, branch in expected["branches"].items()}
    assert {ref.ref_name: ref.head_commit_id for ref in refs.refs if ref.ref_type == "branch"} == heads
    assert commits.keys() == expected["commits"].keys() == set(expected["server"]["dump_commit_ids"])
    for commit_id, summary in expected["commits"].items():
        assert list(commits[commit_id].parents) == summary["parents"]
        assert int(commits[commit_id].committed_at.timestamp()) == summary["creation_date"]
    assert [claim.address for claim in refs.claims] == [f"file://{basic.namespace}/data/"]
