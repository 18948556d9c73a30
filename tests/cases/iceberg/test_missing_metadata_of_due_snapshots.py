"""Metadata that only snapshots to be expired need may be missing.

A bucket rule or a user deleted old metadata files, so no engine can expire the table any more. The table and its lake must still be
collected.

Source: apache/iceberg #17715 and #7007.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
FIVE_DAYS = {"history.expire.max-snapshot-age-ms": str(5 * 86_400_000)}


def overwritten_table(lake: LakeBuilder, name: str) -> TableBuilder:
    table = lake.table(name, days_ago(40), properties=FIVE_DAYS)
    for day in (30, 25, 20):
        table.overwrite(days_ago(day))
    return table


@pytest.fixture(scope="module")
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Table `list` lacks the manifest list of an expired snapshot, table `manifest` a manifest of one."""
    house = Lakehouse(spark, tmp_path_factory.mktemp("due"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    tables = {name: overwritten_table(lake, f"db.{name}") for name in ("list", "manifest", "whole")}
    without_list, without_manifest = (tables[name].table.snapshots()[0] for name in ("list", "manifest"))
    manifest = without_manifest.manifests(tables["manifest"].table.io)[0].manifest_path
    for address in (without_list.manifest_list, manifest):
        TableBuilder.path(address).unlink()
    house.lakes = [lake.config("sales")]
    return house


def test_missing_metadata_of_expiring_snapshots_does_not_block_the_plan(house: Lakehouse) -> None:
    header = house.plan()
    assert not header.unreadable
    assert not house.failed_gates(header)
    planned = house.planned_actions()
    for name in ("list", "manifest", "whole"):
        current = LakeBuilder(house.root).catalog.load_table(f"db.{name}").inspect.files()["file_path"].to_pylist()
        data = {house.key(path) for path in (house.warehouse / "db" / name / "data").glob("*.parquet")}
        assert {key for key in planned if key in data} == data - {house.key(address) for address in current}
    [note] = [note for note in house.summary("live_files", "sales")["notes"] if "are missing" in note]
    assert "2 metadata objects of snapshots that the policy expires" in note


def test_applied_plan_expires_snapshots_and_table_stays_readable(house: Lakehouse) -> None:
    house.approve_and_apply(house.plan())
    lake = LakeBuilder(house.root)
    for name in ("list", "manifest", "whole"):
        table = lake.catalog.load_table(f"db.{name}")
        assert len(table.snapshots()) == 1
        assert table.scan().to_arrow().num_rows == 1
