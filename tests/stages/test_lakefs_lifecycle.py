"""Lifecycle rules through the common stages: what they release is planned with its reason, and what anything else needs is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.stages.deletion_plan import deletion_plan, header_of
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.recorded_server import recorded_repository
from tests.lakes.lakefs.recordings import Recording
from tests.lakes.lakefs.support import config_of
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark
GATES = {"max_delete_share": 1, "max_live_drop": 1}


class Place:
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
        return {row["key"].removeprefix(f"{self.name}/"): row["reason"] for row in self.house.rows("orphan_files")}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Place, RepositoryBuilder]]:
    place = Place(spark, tmp_path)
    builder = RepositoryBuilder(place.house.warehouse, days_ago(60))
    with FakeServer(builder.repository).running() as url:
        place.configure(url, "ml-data", builder.namespace)
        yield place, builder


def oracle(recording: Recording, rules: dict[str, Any], today: datetime) -> tuple[set[str], set[str]]:
    """(released, released under some path but kept) of the recorded entries, in plain loops over the recorded facts."""
    commits = {commit["name"]: commit for commit in recording.expected["commits"].values()}
    said: dict[str, list[bool]] = {}
    for entry in recording.expected["lifecycle"]["entries"]:
        branches = set(entry["branches"])
        if any(commits[name]["dangling"] for name in entry["commits"]):
            branches.add("(no branch)")
        age = datetime.fromtimestamp(entry["first_commit_date"], UTC)
        here = []
        for branch in branches:
            best: tuple[int, bool, int] | None = None
            for rule in rules.values():
                for own, days in [(True, rule.get("branch_days", {}).get(branch)), (False, rule.get("days"))]:
                    if days is not None and entry["path"].startswith(rule["prefix"]):
                        best = max(best or (-1, False, 0), (len(rule["prefix"]), own, days))
            here.append(best is not None and age < today - timedelta(days=best[2]))
        said.setdefault(entry["key"], []).append(all(here))
    return {key for key, found in said.items() if all(found)}, {key for key, found in said.items() if any(found) and not all(found)}


@pytest.mark.parametrize("run", ["run 1, 1998-01-19", "run 2, 1998-01-20", "dedup example"])
def test_the_recorded_repository_releases_what_the_proposals_rules_say(spark: SparkSession, tmp_path: Path, run: str) -> None:
    recording = Recording("lifecycle")
    place = Place(spark, tmp_path)
    namespace = recording.unpack(place.house.warehouse)
    repository = recorded_repository(recording, namespace)
    repository.rules = None
    rules = recording.expected["lifecycle"]["policies"][run]
    today = datetime(1998, 1, 19 if "19" in run.split("-")[-1] else 20, tzinfo=UTC)
    with FakeServer(repository).running() as url:
        place.rules(**rules)
        place.configure(url, "lifecycle", namespace, retention={"tags": "ignore"})
        place.house.now = today + timedelta(hours=3)
        place.house.mark()
    found = place.objects()
    released, deduplicated = oracle(recording, rules, today)
    assert released
    assert {key for key, row in found.items() if not row["deduplicated"]} == released
    assert {key for key, row in found.items() if row["deduplicated"]} == deduplicated
    live = {key.removeprefix("lifecycle/") for key in place.house.live()}
    assert not released & live
    assert deduplicated <= live


def test_a_released_object_is_planned_with_its_reason_and_the_commits_that_will_miss_it(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    old = builder.stage("main", "tmp/a")
    builder.commit("main")
    kept = builder.stage("main", "keep/a")
    builder.commit("main")
    at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})
    header = at.house.plan()
    assert at.orphans() == {old: "lifecycle"}
    assert header.failed_gates == []
    (row,) = at.house.rows("deletion_plan")
    assert (row["reason"], row["dangling_commits"]) == ("lifecycle", 2)
    assert at.objects()[old]["paths"] == ["tmp/a"]
    assert at.objects()[old]["matched_rules"] == ["rule1"]
    assert kept in builder.files()


def test_it_stays_out_of_the_live_set_through_quarantine_and_purge(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    old = builder.stage("main", "tmp/a")
    builder.commit("main", keep_a=b"k")
    at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})
    header = at.house.plan()
    at.house.approved(header)
    assert {outcome for _, outcome in at.house.apply(header).books} == {"done"}
    assert old not in builder.files()
    at.house.now = NOW + timedelta(days=1)
    purge = at.house.plan()
    assert {row["action"] for row in at.house.rows("deletion_plan")} == {"purge"}
    at.house.approved(purge)
    at.house.apply(purge)
    at.house.now = NOW + timedelta(days=2)
    after = at.house.plan()
    assert after.rows == 0
    assert after.failed_gates == []
    (current,) = [row for row in at.house.rows("current_rules", "ml") if row["rule_id"] == "rule1"]
    assert current["last_deleted"] is not None


def test_what_a_tag_holds_or_a_branch_has_staged_is_kept(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    tagged = builder.stage("main", "tmp/tagged")
    builder.repository.tags["v1"] = builder.commit("main")
    builder.delete("main", "tmp/tagged")
    staged = builder.stage("main", "tmp/staged")
    builder.commit("main")
    builder.branch("dev")
    builder.stage("dev", "elsewhere", staged)
    builder.now = days_ago(5)
    builder.commit("main", other=b"x")
    at.rules(everything={"prefix": "", "days": 10, "enabled": True})
    at.house.mark()
    found = at.objects()
    assert {key: row["deduplicated"] for key, row in found.items()}.items() >= {staged: True}.items()
    assert {tagged, staged} <= {key.removeprefix("ml-data/") for key in at.house.live()}


def test_the_deduplications_of_the_proposal(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    one, two, four = (builder.stage("main", path) for path in ("foo/bar/a", "foo/tar/b", "foo/bar/b"))
    builder.stage("main", "foo/tar/a", one)
    builder.stage("main", "foo/other/c", two)
    builder.commit("main")
    at.rules(bar={"prefix": "foo/bar", "days": 10, "enabled": True}, tar={"prefix": "foo/tar", "days": 10, "enabled": True})
    at.house.mark()
    assert {key: row["deduplicated"] for key, row in at.objects().items()} == {one: False, two: True, four: False}


@pytest.mark.parametrize("recheck, expected", [(True, "lifecycle"), (False, None)])
def test_an_object_once_kept_is_looked_at_again_unless_the_proposals_own_behaviour_is_asked_for(
    place: tuple[Place, RepositoryBuilder], recheck: bool, expected: str | None
) -> None:
    at, builder = place
    key = builder.stage("main", "foo/tar/b")
    builder.stage("main", "foo/other/c", key)
    builder.commit("main", keep=b"k")
    at.house.lakes = [at.house.lakes[0].model_copy(update={"recheck_deduplicated": recheck})]
    at.rules(tar={"prefix": "foo/tar", "days": 10, "enabled": True})
    at.house.plan()
    assert at.orphans() == {}
    at.rules(all={"prefix": "foo", "days": 10, "enabled": True})
    at.house.now = NOW + timedelta(days=1)
    at.house.plan()
    assert at.orphans().get(key) == expected


def test_a_rule_for_everything_is_stopped_by_the_gates(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    at.house.settings = {}
    for number in range(20):
        builder.stage("main", f"a/{number}")
    builder.commit("main")
    at.rules(none={"prefix": "nothing", "days": 0, "enabled": True})
    at.house.plan()
    at.rules(everything={"prefix": "", "days": 0, "enabled": True})
    at.house.now = NOW + timedelta(days=1)
    assert "live_drop" in at.house.failed_gates(at.house.plan())


def test_rules_changed_after_the_plan_stop_its_apply(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    builder.stage("main", "tmp/a")
    builder.commit("main", keep=b"k")
    at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})
    header = at.house.plan()
    at.house.approved(header)
    at.rules(rule1={"prefix": "tmp/", "days": 100, "enabled": True})
    before = builder.files()
    with pytest.raises(GateRefused, match="are no longer those of the plan"):
        at.house.apply(header)
    assert builder.files() == before


def test_a_rule_for_a_branch_that_does_not_exist_is_a_note(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    builder.commit("main", keep=b"k")
    at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True, "branch_days": {"main": 5, "gone": 3}})
    at.house.mark()
    published = at.house.tonight().state.require("ml", "potential_commits", at.house.clock.today())
    assert published.receipt.facts["notes"] == ["lake ml: lifecycle rule 'rule1' names the branch 'gone', which does not exist"]


def test_planning_again_gives_the_same_plan(place: tuple[Place, RepositoryBuilder]) -> None:
    at, builder = place
    builder.stage("main", "tmp/a")
    builder.commit("main", keep=b"k")
    at.rules(rule1={"prefix": "tmp/", "days": 10, "enabled": True})
    first = at.house.plan()
    assert header_of(deletion_plan(at.house.spark, at.house.tonight(), STORAGE)).plan_id == first.plan_id
    assert at.house.plan().plan_id == first.plan_id
