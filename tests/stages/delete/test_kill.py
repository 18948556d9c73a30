"""An apply with Spark that is killed and completed by another apply.

`tests/stores/test_kill.py` kills at every step on the disk, without Spark.
"""

from __future__ import annotations

import json
import time

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.stages.records.plans import execution_directory, find_plan, unfinished_plans
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.process_kills import kill_session
from tests.stages import lakehouse_process as process
from tests.stages.lakehouse import STORAGE, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]

# Several batches of the write-ahead log, so that the process can be killed between two.
LEFTOVERS = 10_000
# Time until the log of the killed process begins: a start of Spark and a mark on a busy machine.
PATIENCE_SECONDS = 400


def test_killed_apply_is_completed_by_next_apply(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    house = Lakehouse(spark, tmp_path_factory.mktemp("killed"))
    iceberg = LakeBuilder(house.root)
    orders = iceberg.table("db.orders", days_ago(60), properties={"history.expire.max-snapshot-age-ms": str(10**12)})
    for age in (50, 30, 20, 2):
        orders.append(days_ago(age))
    garbage = {house.key(path) for path in orders.leftovers(days_ago(10), LEFTOVERS)}
    house.lakes = [iceberg.config("sales")]
    before, header = house.files(), house.plan()
    assert house.keys("deletion_plan") == garbage
    house.approve(header, *house.failed_gates(header))
    log = house.root / "state" / execution_directory(header)
    killed = process.start_process(house, "session", "apply", header.plan_id)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not list(log.glob("share-*/*.outcome.jsonl")):
            assert killed.poll() is None, killed.communicate()[1][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        kill_session(killed)

    moved = house.trash(header)
    assert len(moved) < len(garbage), "the apply was over before it was killed"
    assert moved
    assert set(house.files()) | moved == set(before)
    intents = [json.loads(line) for path in log.glob("share-*/*.intent.jsonl") for line in path.read_text().splitlines()]
    assert moved <= {intent["key"] for intent in intents}, "a move is on record nowhere"
    assert unfinished_plans(house.run_context().state, STORAGE) == [header.plan_id]
    left = house.root / "state" / "_recheck"
    assert [path.name.startswith(header.plan_id) for path in left.iterdir()] == [True]
    with pytest.raises(GateRefused, match="is being changed by"):
        house.apply(header)

    (house.warehouse / ".gc-assets" / "lease.json").unlink()  # the process is surely gone, so this is the refusal's way out
    assert counts(house.apply(header).by_outcome) == {("quarantine", "done"): len(garbage)}
    assert house.files() == {key: value for key, value in before.items() if key not in garbage}
    assert house.trash(header) == garbage
    assert list(left.iterdir()) == [], "the mark of the killed apply"
    assert sorted(row["key"] for row in house.rows("deletion_log")) == sorted(garbage)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
