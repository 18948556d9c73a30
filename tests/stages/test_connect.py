"""The protocol's core over Spark Connect: the same plan as in a classic session, applied and restored by the same stages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import document_tree, numbers
from tests.process_kills import CHECKOUT
from tests.stages.house_process import start
from tests.stages.lakehouse import Lakehouse, days_ago

pytest.importorskip("grpc", reason="Spark Connect needs grpcio (pip install 'pyspark[connect]')")
pytestmark = [pytest.mark.spark, full_suite_only]


@dataclass
class Twice:
    """One lake, planned in a classic session, then the whole story over Connect; the state of each its own."""

    leftovers: set[str]
    planned: set[str]
    before: dict[str, tuple[str, int]]
    classic: PlanHeader
    classic_live: set[str]
    connect: dict[str, Any]


@pytest.fixture(scope="module")
def twice(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    house = Lakehouse(spark, tmp_path_factory.mktemp("connect"))
    iceberg = LakeBuilder(house.root)
    orders = iceberg.table("db.orders", days_ago(60))
    first = orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.tag(days_ago(19), "audit", first)
    lost = orders.leftovers(days_ago(10))
    lost += document_tree(house.warehouse / "weather", days_ago(40)).builder.abandon_writer("main", days_ago(15), numbers("gone", range(4)))
    house.lakes = [iceberg.config("sales"), house.weather(retention={"default": "10d"})]
    before, header, live, planned = house.files(), house.plan(), house.live(), house.keys("deletion_plan")
    shutil.move(house.root / "state", house.root / "state-classic")
    server = {"SPARK_LOCAL_CONNECT_DISCOVERY": str(house.root / "server" / "connect-local.json")}
    process = start(house, "connect", "story", **server)
    try:
        output, errors = process.communicate(timeout=500)
    finally:
        process.kill()
        stop = [sys.executable, "-m", "gc_assets.resources.connect_server", "--stop"]
        subprocess.run(stop, cwd=CHECKOUT, env={**os.environ, **server}, check=True, capture_output=True)
    assert process.returncode == 0, errors[-4000:]
    return Twice({house.key(path) for path in lost}, planned, before, header, live, json.loads(output.splitlines()[-1]))


def test_both_modes_make_the_same_plan(twice: Twice) -> None:
    assert twice.connect["rows_digest"] == twice.classic.rows_digest
    assert twice.connect["plan_id"] == twice.classic.plan_id
    assert set(twice.connect["live"]) == twice.classic_live


def test_apply_over_connect_moves_exactly_the_planned_files(twice: Twice) -> None:
    assert twice.leftovers < twice.planned
    edits = sum(twice.classic.expiry_actions.values())
    assert twice.connect["applied"] == {"expire/done": edits, "quarantine/done": len(twice.planned)}
    after = twice.connect["after_apply"]
    assert set(twice.before) - set(after) == twice.planned
    changed = {key for key, value in after.items() if value != list(twice.before.get(key, ()))}
    assert changed
    assert all(key.endswith(".metadata.json") for key in changed)


def test_restore_over_connect_puts_everything_back_byte_for_byte(twice: Twice) -> None:
    assert twice.connect["restored"] == {"done": len(twice.planned)}
    assert {key: twice.connect["after_restore"][key] for key in twice.before} == {key: list(value) for key, value in twice.before.items()}
    assert twice.connect["status"] == "restored"
