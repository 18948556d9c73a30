"""Edits of history by a plan whose process is killed at random moments, again and again: nothing is lost, and the books are whole."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.config import IcechunkLakeConfig
from gc_assets.stages.approvals import find_plan
from gc_assets.stages.expiry import ExpiryRecord, actions_of
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import document_tree
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

CHECKOUT = Path(__file__).parents[2]
TABLES, SNAPSHOTS, KILLS = 40, 5, 50


def test_a_plan_killed_at_50_moments_of_its_expiry_is_completed_by_applying_again(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    house = Lakehouse(spark, tmp_path_factory.mktemp("expiry_killed"))
    builder = LakeBuilder(house.root)
    writer = HistoryWriter(builder, days_ago(60))
    snapshots = [Snap(index + 1, index or None, days_ago(60 - index)) for index in range(SNAPSHOTS)]
    for index in range(TABLES):
        writer.table(f"t{index}", snapshots, {"main": {"snapshot-id": SNAPSHOTS, "type": "branch"}})
    tree = document_tree(house.warehouse / "weather", days_ago(18))
    weather = {"name": "weather", "kind": "icechunk", "location": f"file://{house.warehouse}/weather/", "retention": {"default": "10d"}}
    house.lakes = [builder.config("sales"), IcechunkLakeConfig.model_validate(weather)]
    header = house.plan()
    plan = house.approved(header, *house.failed_gates(header))
    planned = actions_of(house.tonight(), plan)
    assert {lake: len(actions) for lake, actions in planned.items()} == {"sales": TABLES * (SNAPSHOTS - 1), "weather": 4}

    work = [(ExpiryRecord(house.tonight(), header, lake), actions) for lake, actions in planned.items()]
    (house.root / "work.pickle").write_bytes(pickle.dumps(work))
    command = [sys.executable, "-m", "tests.stages.killed_expiries", str(house.root), str(KILLS)]
    told = json.loads(subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert told["killed"] >= 3, "the kills came too late to fall into the work"

    house.apply(header)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
    for lake, actions in planned.items():
        log = house.rows("expiry_log", lake)
        assert [row["outcome"] for row in log] == ["done"] * len(actions)
    history = house.rows("snapshot_history", "sales")
    assert len(history) == TABLES * SNAPSHOTS + 1  # and the one of the table whose data file they all share
    assert sum(row["expired"] and row["plan_id"] == header.plan_id for row in history) == TABLES * (SNAPSHOTS - 1)
    for index in range(TABLES):
        table = TableBuilder(builder, f"db.t{index}").table
        assert [snapshot.snapshot_id for snapshot in table.metadata.snapshots] == [SNAPSHOTS]
        assert table.scan().count() == 2
    repo = tree.builder.reopen()
    ancestors = [item.message for item in repo.ancestry(branch="main")]
    assert "snapshot 7" not in ancestors
    assert ancestors
