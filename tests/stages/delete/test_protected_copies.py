"""`protect` also keeps files that were quarantined before it matched them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


def test_quarantined_file_that_protect_matches_is_not_planned_for_purge(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    kept, *others = sorted(house.key(path) for path in table.leftovers(days_ago(20), 3))
    house.lakes = [lake.config("sales")]
    house.approve_and_apply(house.plan())
    house.settings["protect"] = [kept]
    house.now += timedelta(days=10)
    header = house.plan()
    assert house.planned_actions() == dict.fromkeys(others, "purge")
    assert header.quarantined.files == 1
    assert counts(house.approve_and_apply(header).by_outcome) == {("purge", "done"): len(others)}
