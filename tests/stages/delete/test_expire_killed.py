"""Expiry whose process is killed at random moments: no edit is lost and all outcomes are recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from benchmarks.iceberg_history import HistoryWriter
from gc_assets.core.clock import start_of_day
from gc_assets.lakes.iceberg import catalog, expire, table_expiry  # noqa: F401 - imported before the fork, the lake imports them late
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.stages.delete.expire import ExpiryRecord, make_edits, read_actions
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.lease import LocalLease, acquire
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.test_expire_random import check_expired_tables, document, random_history
from tests.lakes.icechunk.builder import document_tree
from tests.process_kills import KillRounds, kill_at_random
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

HISTORIES, KILLS = example_count(10, 40), example_count(4, 50)


@dataclass(frozen=True)
class MakeEdits:
    """The part of phase `expire` of an apply that runs between two Spark jobs."""

    work: tuple[tuple[ExpiryRecord, Sequence[ExpiryAction]], ...]
    lease: LocalLease

    def __call__(self) -> None:
        for record, actions in self.work:
            make_edits(record, actions, self.lease)

    def count_settled(self) -> list[int]:
        return [len(record.settled_actions()) for record, _ in self.work]


def test_expiry_killed_at_random_moments_is_completed_by_next_apply(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    house = Lakehouse(spark, tmp_path_factory.mktemp("expiry_killed"))
    builder = LakeBuilder(house.root)
    writer, luck, as_of = HistoryWriter(builder, days_ago(60)), random.Random(5), start_of_day(NOW.date())
    for index in range(HISTORIES):
        writer.table(f"t{index}", **random_history(luck, as_of, statistics=False))
    before = {f"db.t{index}": document(builder.catalog.load_table(f"db.t{index}")) for index in range(HISTORIES)}
    tree = document_tree(house.warehouse / "weather", days_ago(18))
    house.lakes = [builder.config("sales"), house.weather(retention={"default": "10d"})]
    header = house.plan()
    plan = house.approve(header, *house.failed_gates(header))
    planned = read_actions(house.run_context(), plan)
    assert set(planned) == {"sales", "weather"}
    assert len(planned["sales"]) > HISTORIES

    lease = acquire(header.location, header.plan_id, "tester", house.clock)
    edits = MakeEdits(tuple((ExpiryRecord(house.run_context(), header, lake), actions) for lake, actions in planned.items()), lease)
    rounds = kill_at_random(KillRounds(edits, edits.count_settled, KILLS, 0.05, 0.2, seed=11), house.root / "rounds.pickle")
    assert sum(item["killed"] for item in rounds) >= 3, "the kills came too late to fall into the work"
    lease.release()

    house.apply(header)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
    for lake, actions in planned.items():
        log = house.rows("expiry_log", lake)
        assert [row["outcome"] for row in log] == ["done"] * len(actions)
    history = house.rows("snapshot_history", "sales")
    ever = {(old["table-uuid"], str(item["snapshot-id"])) for old in before.values() for item in old["snapshots"]}
    uuids = {old["table-uuid"] for old in before.values()}  # there is one more table, whose data file they all share
    assert sorted((row["table_uuid"], row["snapshot_id"]) for row in history if row["table_uuid"] in uuids) == sorted(ever)
    removed = {(action.table_uuid, action.snapshot_id) for action in planned["sales"] if action.action == "remove_snapshot"}
    assert {(row["table_uuid"], row["snapshot_id"]) for row in history if row["expired"]} == removed
    assert {row["plan_id"] for row in history if row["expired"]} == {header.plan_id}
    check_expired_tables(builder, before, planned["sales"], as_of, NOW - timedelta(hours=72))
    repo = tree.builder.reopen()
    ancestors = [item.message for item in repo.ancestry(branch="main")]
    assert "snapshot 7" not in ancestors
    assert ancestors
