"""Lifecycle rules through all stages: objects that rules expire are planned, and objects with other
references are kept.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.read.what_if import what_if
from gc_assets.state.summaries import LifecycleObjectsSummary
from tests.depth import full_suite_only, in_turn, select_cases
from tests.lakes.lakefs.builder import RepositoryBuilder, xid
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.stages.lakefs_reader import unreadable_paths
from tests.stages.lakehouse import NOW, Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]
GATES = {"max_delete_share": 1, "max_live_drop": 1}


class LifecycleRepository:
    """A repository with lifecycle rules at `<warehouse>/<name>/`."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.house = Lakehouse(spark, folder, settings={"gates": GATES})
        self.rules_file = folder / "rules.json"

    def rules(self, **rules: dict[str, Any]) -> None:
        self.rules_file.write_text(json.dumps(rules))

    def configure(self, url: str, name: str, namespace: Path, **settings: Any) -> None:
        self.name = name
        self.house.lakes = [config_of(url, name, location=f"file://{namespace}/", rules=str(self.rules_file), **settings)]

    def objects(self) -> dict[str, dict[str, Any]]:
        rows = self.house.rows("lifecycle_objects", "ml")
        return {row["key"].removeprefix(f"{self.name}/"): row for row in rows}

    def orphans(self) -> dict[str, str]:
        return self.house.orphans(f"{self.name}/")


def serve(spark: SparkSession, folder: Path) -> Iterator[tuple[LifecycleRepository, RepositoryBuilder]]:
    repo = LifecycleRepository(spark, folder)
    builder = RepositoryBuilder(repo.house.warehouse, days_ago(60))
    with FakeServer(builder.repository).running() as url:
        repo.configure(url, "ml-data", builder.namespace)
        yield repo, builder


@pytest.fixture
def repo(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[LifecycleRepository, RepositoryBuilder]]:
    yield from serve(spark, tmp_path)


def oracle(recording: Recording, rules: dict[str, Any], today: datetime) -> tuple[set[str], set[str]]:
    """Return the released keys, and those that only some paths release, by plain loops over the recorded entries."""
    commits = {commit["name"]: commit for commit in recording.expected["commits"].values()}
    releases: dict[str, list[bool]] = {}
    for entry in recording.expected["lifecycle"]["entries"]:
        branches = set(entry["branches"])
        if any(commits[name]["dangling"] for name in entry["commits"]):
            branches.add("(no branch)")
        age = datetime.fromtimestamp(entry["first_commit_date"], UTC)
        applicable = []
        for branch in branches:
            best: tuple[int, bool, int] | None = None
            for rule in rules.values():
                for own, days in [(True, rule.get("branch_days", {}).get(branch)), (False, rule.get("days"))]:
                    if days is not None and entry["path"].startswith(rule["prefix"]):
                        best = max(best or (-1, False, 0), (len(rule["prefix"]), own, days))
            applicable.append(best is not None and age < today - timedelta(days=best[2]))
        releases.setdefault(entry["key"], []).append(all(applicable))
    return {key for key, found in releases.items() if all(found)}, {key for key, found in releases.items() if any(found) and not all(found)}


def january(day: int) -> datetime:
    return datetime(1998, 1, day, tzinfo=UTC)


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LifecycleRepository, Recording]]:
    """The recorded repository of January 1998 without retention rules, with an uncommitted file. Tests run in order of days."""
    recording, repo = Recording("lifecycle"), LifecycleRepository(spark, tmp_path_factory.mktemp("recorded"))
    namespace = recording.unpack(repo.house.warehouse)
    lost = namespace / "data" / "lost" / "upload"
    lost.parent.mkdir()
    lost.write_bytes(b"lost")
    os.utime(lost, (january(1).timestamp(), january(1).timestamp()))
    repository = recorded_repository(recording, namespace)
    repository.rules = None
    with FakeServer(repository).running() as url:
        repo.configure(url, "lifecycle", namespace, retention={"tags": "ignore"})
        yield repo, recording


def assert_equals_oracle(
    repo: LifecycleRepository, recording: Recording, rules: dict[str, Any], today: datetime
) -> dict[str, dict[str, Any]]:
    found = repo.objects()
    released, deduplicated = oracle(recording, rules, today)
    assert {key for key, row in found.items() if not row["deduplicated"]} == released
    assert {key for key, row in found.items() if row["deduplicated"]} == deduplicated
    live = repo.house.live()
    assert not {f"lifecycle/{key}" for key in released} & live
    assert {f"lifecycle/{key}" for key in deduplicated} <= live
    return found


RULE1 = {"prefix": "foo/bar", "days": 10, "enabled": True, "branch_days": {"b1": 5, "b2": 8}}
RULE2 = {"prefix": "foo/zoo", "enabled": True, "branch_days": {"b1": 5}}
# Day and rules of two runs, of which the first is applied, and the tables of the proposal: policy table (run, rule, prefix, branch, date),
# current rules (rule, branch, date, last deleted), and the recorded list of potential commits of the second run.
THE_TWO_RUNS = (
    19,
    {"rule1": RULE1},
    {"rule1": RULE1, "rule2": RULE2},
    [
        (19, "rule1", "foo/bar", None, 9), (19, "rule1", "foo/bar", "b1", 14), (19, "rule1", "foo/bar", "b2", 11),
        (20, "rule1", "foo/bar", None, 10), (20, "rule1", "foo/bar", "b1", 15), (20, "rule1", "foo/bar", "b2", 12),
        (20, "rule2", "foo/zoo", "b1", 15),
    ],
    [("rule1", None, 10, 9), ("rule1", "b1", 15, 14), ("rule1", "b2", 12, 11), ("rule2", "b1", 15, None)],
    "potential_commits_run2",
)  # fmt: skip
# The bounds of the four statements about potential commits: all 09/01, b1 none, b2 17/01, b3 05/01.
THE_FOUR_STATEMENTS = (
    21,
    {"all": {"prefix": "foo", "days": 12, "enabled": True, "branch_days": {"b2": 4, "b3": 16}}},
    {"all": {"prefix": "foo", "days": 12, "enabled": True, "branch_days": {"b1": 4, "b2": 4, "b3": 16}}},
    [
        (21, "all", "foo", None, 9), (21, "all", "foo", "b2", 17), (21, "all", "foo", "b3", 5),
        (22, "all", "foo", None, 10), (22, "all", "foo", "b1", 18), (22, "all", "foo", "b2", 18), (22, "all", "foo", "b3", 6),
    ],
    [("all", None, 10, 9), ("all", "b1", 18, None), ("all", "b2", 18, 17), ("all", "b3", 6, 5)],
    "potential_commits_seed_example",
)  # fmt: skip


@pytest.mark.parametrize(
    "example", select_cases([pytest.param(THE_TWO_RUNS, id="the two runs")], [pytest.param(THE_FOUR_STATEMENTS, id="the four statements")])
)
def test_published_tables_match_lifecycle_proposal(recorded: tuple[LifecycleRepository, Recording], example: tuple[Any, ...]) -> None:
    """For 8 days on the 20th the proposal prints the 18th, but the result is the 12th."""
    repo, recording = recorded
    day, first, second, policy, current, potential = example
    repo.rules(**first)
    repo.house.now = january(day) + timedelta(hours=3)
    header = repo.house.plan()
    assert_equals_oracle(repo, recording, first, january(day))
    everything = repo.house.rows("potential_commits", "ml")
    assert {row["last_deleted"] for row in everything} == {None}
    repo.house.approve_and_apply(header)

    repo.rules(**second)
    repo.house.now = january(day + 1) + timedelta(hours=3)
    repo.house.mark()
    assert_equals_oracle(repo, recording, second, january(day + 1))
    stored = [row for row in repo.house.rows("policy_table", "ml") if row["scope"] == "objects" and row["run_date"].day >= day]
    table = [(row["run_date"].day, row["rule_id"], row["prefix"], row["branch"], row["date_to_be_deleted"]) for row in stored]
    assert sorted(table, key=str) == sorted([(*row[:4], january(row[4])) for row in policy], key=str)
    stored = [row for row in repo.house.rows("current_rules", "ml") if row["scope"] == "objects"]
    rules = [(row["rule_id"], row["branch"], row["date_to_be_deleted"], row["last_deleted"]) for row in stored]
    assert sorted(rules, key=str) == sorted([(r, b, january(day), last and january(last)) for r, b, day, last in current], key=str)
    listed = recording.expected["lifecycle"][potential]
    expected = {commit: (set(row["branches"]), row["last_deleted"]) for commit, row in listed.get("commits", listed).items()}
    commits = recording.expected["commits"]
    found = {
        row["commit_id"]: (set(row["branches"]), row["last_deleted"] and row["last_deleted"].date().isoformat())
        for row in repo.house.rows("potential_commits", "ml")
        if commits[row["commit_id"]]["meta_range_id"] and commits[row["commit_id"]]["reached_by"]
    }
    assert found == expected


def test_edge_cases_of_recorded_repository_match_oracle(recorded: tuple[LifecycleRepository, Recording]) -> None:
    repo, recording = recorded
    rules = recording.expected["lifecycle"]["policies"]["dedup example"]
    repo.rules(**rules)
    repo.house.now = january(23) + timedelta(hours=3)
    repo.house.mark()
    found = assert_equals_oracle(repo, recording, rules, january(23))
    traps = {trap["id"]: trap.get("keys", [""])[0] for trap in recording.expected["traps"]}
    assert set(traps) == {"shared-1", "shared-2", "alone-4", "shared-5", "spelling", "text-prefix"}
    assert not found[traps["shared-1"]]["deduplicated"]
    assert found[traps["shared-2"]]["deduplicated"]
    assert not found[traps["alone-4"]]["deduplicated"]
    assert traps["shared-5"] not in found  # a week old
    assert found[traps["spelling"]]["paths"] == ["foo/bar/a", "foo/tar/a"]  # one RELATIVE, one FULL: one file
    (barn,) = [row for row in found.values() if "foo/barn/m-1228" in row["paths"]]
    assert (barn["deduplicated"], barn["matched_rules"]) == (False, ["bar"])


@dataclass
class ReleasedObject:
    """A repository with one released object, and the plan with it."""

    at: LifecycleRepository
    builder: RepositoryBuilder
    old: str
    kept: str
    header: PlanHeader


SHORT = {"prefix": "tmp/", "days": 10, "enabled": True, "branch_days": {"main": 5, "gone": 3}}


@pytest.fixture(scope="module")
def released(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleasedObject]:
    for at, builder in serve(spark, tmp_path_factory.mktemp("released")):
        old = builder.stage("main", "tmp/a")
        builder.commit("main")
        kept = builder.stage("main", "keep/a")
        builder.stage("main", "tmp/b", old)
        builder.delete("main", "tmp/a")
        builder.commit("main")
        builder.commit("main", keep_b=b"b")
        builder.stage("main", "tmp/a", old)
        builder.commit("main")
        at.rules(rule1=SHORT)
        yield ReleasedObject(at, builder, old, kept, at.house.plan())


def test_object_expired_by_rule_is_planned_with_reason_and_commits(released: ReleasedObject) -> None:
    at, old = released.at, released.old
    assert at.orphans() == {old: "lifecycle"}
    assert released.header.failed_gates == []
    (row,) = at.house.rows("deletion_plan")
    assert (row["reason"], row["dangling_commits"]) == ("lifecycle", 5)  # two commits under the first path, three under the other
    assert at.objects()[old]["paths"] == ["tmp/a", "tmp/b"]
    assert at.objects()[old]["matched_rules"] == ["rule1"]
    assert released.kept in released.builder.files()
    notes = at.house.summary("potential_commits", "ml")["notes"]
    assert notes == ["lake ml: lifecycle rule 'rule1' applies to the branch 'gone', which does not exist"]
    assert at.house.plan().plan_id == released.header.plan_id  # a second plan is equal


def test_rules_without_effect_add_notes(released: ReleasedObject) -> None:
    at = released.at
    at.rules(
        rule1=SHORT,
        missing={"glob": "models/*.ckpt", "days": 10, "enabled": True},
        hidden={"prefix": "t", "days": 10, "enabled": True},
        young={"prefix": "keep/", "days": 1000, "enabled": True},
        off={"prefix": "nothing/", "days": 10, "enabled": False},
    )
    at.house.mark()
    assert at.house.summary("lifecycle_objects", "ml")["unused_rules"] == [
        "lake ml: lifecycle rule 'hidden' applies to no object, because longer prefixes of other rules match the same paths",
        "lake ml: lifecycle rule 'missing' matches no object on its branches; compare its prefix or glob with the paths",
    ]
    context = replace(at.house.run_context(), verification_id="of-an-apply")
    mark(at.house.spark, context, "ml")
    assert context.table(LIFECYCLE_OBJECTS, "ml").summary(LifecycleObjectsSummary).unused_rules == ()
    at.rules(rule1={**SHORT, "enabled": False})
    at.house.mark()
    assert at.house.summary("lifecycle_objects", "ml")["unused_rules"] == [
        "lake ml: no lifecycle rule is enabled, so no object is released"
    ]
    at.rules(rule1=SHORT)
    at.house.mark()
    assert at.house.summary("lifecycle_objects", "ml")["unused_rules"] == []


def test_what_if_refuses_lifecycle_rules(released: ReleasedObject) -> None:
    house = released.at.house
    (lake,) = house.lakes
    with pytest.raises(UsageError, match=f"lake {lake.name}: its lifecycle rules release files"):
        what_if(house.spark, house.run_context(), [Scenario("shorter", (lake.name,), retention="1d")])


@full_suite_only
def test_apply_restore_and_purge_work_with_lifecycle_rules(released: ReleasedObject) -> None:
    """Refuse other rules, apply, restore, apply, purge. Objects that rules expire are not live, all
    others stay readable.
    """
    at, builder, old, header = released.at, released.builder, released.old, released.header
    at.house.approve(header)
    at.rules(rule1={"prefix": "tmp/", "days": 100, "enabled": True})
    with pytest.raises(GateRefused, match="changed after the plan was made"):
        at.house.apply(header)
    assert old in builder.files()
    at.rules(rule1=SHORT)
    assert outcomes(at.house.apply(header)) == {"done"}
    assert old not in builder.files()
    assert unreadable_paths(at.house) == {"tmp/a", "tmp/b"}
    at.house.restore(header.plan_id)
    assert unreadable_paths(at.house) == set()
    at.house.now = NOW + timedelta(days=1)
    header = at.house.plan()
    assert at.orphans() == {old: "lifecycle"}
    at.house.approve_and_apply(header)
    at.house.now = NOW + timedelta(days=2)
    purge = at.house.plan()
    assert set(at.house.planned_actions().values()) == {"purge"}
    at.house.approve_and_apply(purge)
    at.house.now = NOW + timedelta(days=3)
    after = at.house.plan()
    assert after.rows == 0
    assert after.failed_gates == []
    current = {row["branch"]: row["last_deleted"] for row in at.house.rows("current_rules", "ml") if row["rule_id"] == "rule1"}
    assert current[None] is not None
    assert current["main"] is not None
    assert unreadable_paths(at.house) == {"tmp/a", "tmp/b"}
    at.rules(rule1={"prefix": "tmp/", "days": 1000, "enabled": True})
    longer = at.house.plan()
    assert f"ml-data/{old}" in at.house.live()
    assert longer.failed_gates == []  # our own purge is no sign of a loss


@dataclass
class KeptObjects:
    """One mark of objects that one path or rule releases and another keeps, each case under its own prefix."""

    at: LifecycleRepository
    tagged: str
    staged: str
    one: str
    two: str
    four: str
    again: str


def days_10(prefix: str) -> dict[str, Any]:
    return {"prefix": prefix, "days": 10, "enabled": True}


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptObjects]:
    for at, builder in serve(spark, tmp_path_factory.mktemp("kept")):
        tagged = builder.stage("main", "held/tagged")
        builder.repository.tags["v1"] = builder.commit("main")
        builder.delete("main", "held/tagged")
        staged = builder.stage("main", "held/staged")
        builder.commit("main")
        builder.branch("dev")
        builder.stage("dev", "held/elsewhere", staged)
        one, two, four = (builder.stage("main", path) for path in ("foo/bar/a", "foo/tar/b", "foo/bar/b"))
        builder.stage("main", "foo/tar/a", one)
        builder.stage("main", "foo/other/c", two)
        again = builder.stage("main", "again/tar/b")
        builder.stage("main", "again/other/c", again)
        builder.commit("main")
        builder.now = days_ago(5)
        builder.commit("main", other=b"x")
        at.rules(held=days_10("held/"), bar=days_10("foo/bar"), tar=days_10("foo/tar"), again=days_10("again/tar"))
        at.house.mark()
        yield KeptObjects(at, tagged, staged, one, two, four, again)


def test_tagged_and_staged_objects_are_kept(kept: KeptObjects) -> None:
    assert kept.at.objects()[kept.staged]["deduplicated"]
    assert {kept.tagged, kept.staged} <= {key.removeprefix("ml-data/") for key in kept.at.house.live()}


def test_deduplication_matches_lifecycle_proposal(kept: KeptObjects) -> None:
    found = {key: row["deduplicated"] for key, row in kept.at.objects().items() if row["paths"][0].startswith("foo/")}
    assert found == {kept.one: False, kept.two: True, kept.four: False}


def test_verify_deduplicated_setting_checks_kept_objects_again(kept: KeptObjects) -> None:
    house = kept.at.house
    assert kept.at.objects()[kept.again]["deduplicated"]
    kept.at.rules(all=days_10("again"))
    house.now = NOW + timedelta(days=1)
    for verify in (False, True):
        house.lakes = [house.lakes[0].model_copy(update={"verify_deduplicated": verify})]
        house.mark()
        assert kept.at.objects()[kept.again]["deduplicated"] is not verify
        assert (f"ml-data/{kept.again}" in house.live()) is not verify


def test_gates_refuse_rule_that_expires_everything(repo: tuple[LifecycleRepository, RepositoryBuilder]) -> None:
    at, builder = repo
    at.house.settings = {}
    for number in range(20):
        builder.stage("main", f"a/{number}")
    builder.commit("main")
    at.rules(none={"prefix": "nothing", "days": 0, "enabled": True})
    at.house.plan()
    at.rules(everything={"prefix": "", "days": 0, "enabled": True})
    at.house.now = NOW + timedelta(days=1)
    assert "live_drop" in at.house.failed_gates(at.house.plan())


def test_results_written_into_namespace_are_never_collected(spark: SparkSession, tmp_path: Path) -> None:
    for at, builder in serve(spark, tmp_path):
        results = builder.namespace / "_lakefs/retention/lc"
        at.house.lakes = [at.house.lakes[0].model_copy(update={"publish_results": True})]
        old, shared = builder.stage("main", "tmp/a"), builder.stage("main", "tmp/b")
        builder.stage("main", "keep/b", shared)
        builder.commit("main")
        at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})
        header = at.house.plan()
        (written,) = (results / f"addresses/date={NOW:%Y-%m-%d}").iterdir()
        run_id = written.name.rpartition("-")[0]
        assert pq.read_table(written).to_pylist() == [{"run_id": run_id, "address": old, "paths": ["tmp/a"], "matched_rules": ["rule1"]}]
        at.house.approve_and_apply(header)
        at.house.now = NOW + timedelta(days=30)

        at.house.plan()

        assert (results / f"stats/{NOW:%Y-%m-%d}.csv").read_text() == f"run_id,addresses,bytes,status\n{run_id},1,1,finished\n"
        assert not any("_lakefs" in key for key in at.house.keys("orphan_files"))
        shutil.rmtree(results / "addresses")
        (results / "addresses").touch()  # so that the next file cannot be created
        at.house.now = NOW + timedelta(days=31)
        at.house.mark()
        (note,) = at.house.summary("lifecycle_objects", "ml")["notes"]
        assert note.startswith("lake ml: the results of lifecycle rules are not written to the namespace: ")


def find_collision(prefix: str) -> tuple[str, str]:
    """Return two keys with one XXH64. The prefix has 64 characters, and the keys differ in two later lanes.

    The text of the second lane is computed from that of the first, and tried until it is a valid name.
    """
    p1, p2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
    inverse = np.uint64(pow(int(p2), -1, 2**64))
    names = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
    filler = "f" * 24

    def step(state: Any, lane: Any) -> Any:
        added = state + lane * p2
        return ((added << np.uint64(31)) | (added >> np.uint64(33))) * p1

    with np.errstate(over="ignore"):
        state = np.uint64(42) + p1 + p2
        for lane in (prefix[:8], prefix[32:40]):
            state = step(state, np.frombuffer(lane.encode(), np.uint64))
        first = np.random.default_rng(1).choice(names, (500_000, 8)).view(np.uint64).ravel()
        second = np.frombuffer(b"secondly", np.uint64)
        other = second + (step(state, first[:1]) - step(state, first)) * inverse
    is_name = np.isin(other.view(np.uint8).reshape(-1, 8), names).all(axis=1)
    at = int(np.flatnonzero(is_name & (first != first[0]))[0])
    keys = [(first[0], second[0]), (first[at], other[at])]
    one, two = (f"{prefix}{a.tobytes().decode()}{filler}{b.tobytes().decode()}{filler}" for a, b in keys)
    return one, two


def test_live_file_with_hash_of_expired_one_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    for at, builder in serve(spark, tmp_path):
        folder = f"{builder.namespace.name}/data/{xid(builder.now)}/"
        old, kept = (key.removeprefix(folder) for key in find_collision(folder.ljust(64, "x")))
        old, kept = builder.upload(name=old), builder.upload(name=kept)
        builder.stage("main", "tmp/a", old)
        builder.stage("main", "keep/a", kept)
        builder.commit("main")
        builder.now = days_ago(5)
        builder.commit("main", other=b"x")
        at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})

        header = at.house.plan()

        assert at.orphans() == {old: "lifecycle"}
        assert header.failed_gates == []
