"""Idle branches of all kinds of lakes: unchanged in several runs, planned, deleted, and restored by
undo.

The tests of this module run in order, and each depends on the previous ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH
from gc_assets.stages.delete.expire import undo_expiry
from gc_assets.stages.read.plan_text import summarize_plans
from gc_assets.stages.read.reversibility import describe_reversibility
from gc_assets.stages.records.plans import find_plan
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.lakes.lakefs.builder import RepositoryBuilder as LakeFsBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, counts

pytestmark = [pytest.mark.spark, in_turn]

START = next_noon(days=1)
DAY = timedelta(days=1)
RULES: Any = {"delete_idle": [{"match": "tmp-.*", "after": "30d"}]}
LAKES = {"ml", "sales", "shop", "weather"}


@dataclass
class Branches:
    """A lake of each kind with the idle branch `tmp-a`, which alone keeps a commit."""

    house: Lakehouse
    headers: list[PlanHeader]

    def plan(self, day: int) -> PlanHeader:
        self.house.now = START + day * DAY
        self.headers.append(self.house.plan())
        return self.headers[-1]

    def deletions(self) -> set[tuple[str, str]]:
        """Return the lakes and branches of planned deletions."""
        rows = [(lake, row) for lake in LAKES for row in self.house.rows("expiry_plan", lake)]
        return {(lake, row["ref_name"]) for lake, row in rows if row["action"] == DELETE_IDLE_BRANCH}

    def branches(self) -> set[tuple[str, str]]:
        rows = [(lake, row) for lake in LAKES for row in self.house.rows("lake_refs", lake)]
        return {(lake, row["ref_name"]) for lake, row in rows if row["ref_type"] == "branch"}


@pytest.fixture(scope="module")
def story(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Branches]:
    nessie_server.reset()
    house = Lakehouse(spark, tmp_path_factory.mktemp("idle"), now=START)
    at, warehouse = START - 60 * DAY, house.warehouse
    sales = LakeBuilder(house.root)
    table = sales.table("db.t", at, properties={"history.expire.max-snapshot-age-ms": str(500 * 86_400_000)})
    table.branch(at, "tmp-a", table.append(at))
    table.append(at, branch="tmp-a")
    shop = NessieBuilder(nessie_server.uri, warehouse)
    shop.on().new("shop.orders")
    shop.branch("tmp-a")
    shop.on("tmp-a").append("shop.orders")
    weather = RepositoryBuilder.create(warehouse / "weather", at)
    weather.branch("tmp-a", weather.commit("main", at, numbers("values", [1, 2])))
    weather.commit("tmp-a", at, numbers("others", [1, 2]))
    ml = LakeFsBuilder(warehouse, at)
    ml.commit("main", a_1=b"1")
    ml.branch("tmp-a")
    ml.commit("tmp-a", a_2=b"2")
    with FakeServer(ml.repository).running() as url:
        house.lakes = [
            sales.config(retention=RULES),
            house.weather(retention=RULES),
            shop.config(retention=RULES),
            config_of(url, "ml-data", RULES, location=f"file://{ml.namespace}/"),
        ]
        yield Branches(house, [])


def test_first_run_plans_no_deletion(story: Branches) -> None:
    header = story.plan(0)
    assert (story.deletions(), header.expiry_actions, header.failed_gates) == (set(), {}, [])


def test_unchanged_branches_are_planned_for_deletion_after_idle_time(story: Branches) -> None:
    header = story.plan(40)
    assert story.deletions() == {(lake, "tmp-a") for lake in LAKES}
    assert header.idle_branches == dict.fromkeys(sorted(LAKES), 1)
    assert header.failed_gates == []
    assert header.totals == {}
    assert summarize_plans([header]) == "Plan: quarantine 0, delete 4 idle branches, purge 0, restore 0"
    described = describe_reversibility(header, story.house.config)
    assert "the deletion of 1 idle branch of lake ml; the deletion of 1 idle branch of lake sales" in described.can_be_undone
    assert described.cannot_be_undone == "nothing"


def test_gate_limits_number_of_branch_deletions(story: Branches) -> None:
    story.house.settings = {"gates": {"max_idle_branches": 3}}
    header = story.house.sweep()
    story.house.settings = {}
    (gate,) = header.failed_gates
    assert (gate.name, gate.overridable) == ("idle_branches", True)
    assert gate.message.startswith("4 idle branches planned for deletion; max_idle_branches allows 3.")


def test_apply_deletes_the_branches_and_no_file(story: Branches) -> None:
    house, files = story.house, story.house.files()
    applied = house.approve_and_apply(story.headers[-1])
    assert counts(applied.by_outcome) == {("expire", "done"): 4}
    assert files.keys() - house.files().keys() == {"weather/refs/branch.tmp-a/ref.json"}
    assert all(key.endswith(".metadata.json") or "/_lakefs/" in key for key in house.files().keys() - files.keys())


def test_undo_recreates_branches_and_restarts_idle_time(story: Branches) -> None:
    plan = find_plan(story.house.config, story.headers[-1].plan_id)
    assert undo_expiry(story.house.run_context(), plan) == {"undone": 4}
    header = story.plan(40)
    assert story.branches() == {(lake, name) for lake in LAKES for name in ("main", "tmp-a")}
    assert (story.deletions(), header.expiry_actions, header.failed_gates) == (set(), {}, [])


def test_recreated_branches_are_idle_again_after_idle_time(story: Branches) -> None:
    header = story.plan(73)
    assert story.deletions() == {(lake, "tmp-a") for lake in LAKES}
    assert counts(story.house.approve_and_apply(header).by_outcome) == {("expire", "done"): 4}


def test_run_after_the_deletion_keeps_the_commits(story: Branches) -> None:
    header = story.plan(74)
    assert story.branches() == {(lake, "main") for lake in LAKES}
    assert (story.deletions(), header.totals, header.failed_gates) == (set(), {}, [])
    reasons = {row["reason"] for row in story.house.rows("reachable_snapshots", "weather")}
    assert "kept: for the grace period after the deletion of idle branches (tmp-a)" in reasons


def test_files_are_collected_after_the_grace_period(story: Branches) -> None:
    header = story.plan(81)
    planned = story.house.planned_actions()
    assert {key.split("/")[0] for key in planned} == {"weather"}
    assert {reason for key, reason in story.house.orphans().items() if key in planned} <= {"expired", "unreferenced"}
    assert story.house.failed_gates(header) <= {"live_drop", "delete_share"}
