"""Two lakes share the tables of one catalog by their patterns."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_lakes_that_share_a_catalog_collect_what_one_lake_collects(spark: SparkSession, tmp_path: Path) -> None:
    found = dict[str, tuple[set[str], int]]()
    for case, names in {"one": ["*"], "two": ["hot.*", "cold.*"]}.items():
        house = Lakehouse(spark, tmp_path / case, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
        lake = LakeBuilder(house.root)
        for namespace in ("hot", "cold", "kept"):
            table = lake.table(f"{namespace}.t", days_ago(40), properties={"gc.enabled": str(namespace != "kept").lower()})
            table.append(days_ago(30))
            table.overwrite(days_ago(20))
            table.append(days_ago(12))
            table.leftovers(days_ago(10))
        house.lakes = [lake.config(f"lake{number}", tables=[name]) for number, name in enumerate(names)]
        house.approve_and_apply(house.plan())
        house.now = NOW + timedelta(days=1)
        assert house.plan().failed_gates == []
        keys = house.keys("deletion_plan")
        found[case] = {"/".join(key.split("/")[:2]) for key in keys}, len(keys)
    assert found["one"] == found["two"]
    assert found["one"][0] == {"hot/t", "cold/t"}
