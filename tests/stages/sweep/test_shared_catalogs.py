"""Two lakes share the tables of one catalog by their patterns."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.sweep.claims import claims_of
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


def test_lakes_that_share_catalog_collect_files_that_one_lake_would(spark: SparkSession, tmp_path: Path) -> None:
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


def test_protected_location_of_unreadable_table_is_collected_by_no_lake(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings={"gates": {"max_unreadable": 9}}), LakeBuilder(tmp_path)
    apart = f"file://{house.warehouse}/apart"
    table = lake.table("hot.t", days_ago(40), properties={"write.data.path": apart})
    table.append(days_ago(30))
    lake.table("cold.t", days_ago(40)).append(days_ago(30))
    (manifest,) = [path for path in (house.warehouse / "hot").rglob("*.avro") if not path.name.startswith("snap-")]
    manifest.write_bytes(b"torn")
    house.lakes = [lake.config("hot", tables=["hot.*"]), lake.config("cold", tables=["cold.*"])]
    assert {item.table_name for item in house.plan().unreadable} == {"hot.t"}
    claims = claims_of(
        house.run_context(),
        house.storage,
        [house.find_table("lake_refs", name) for name in ("hot", "cold")]
        + [house.find_table("live_files", name) for name in ("hot", "cold")],
    )
    assert claims.owner_of("apart/x.parquet") is None
    assert claims.owner_of("cold/t/data/x.parquet") is not None
