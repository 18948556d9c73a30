"""An address that no store reads makes its own table or lake unreadable.

A table that was migrated from HDFS or another cloud still lists manifest lists there. Reading their
sizes ended the run of all lakes, as did a staged lakeFS object whose address contains `..`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder, delete, iceberg_table
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

ADDRESSES = {
    "hdfs": "hdfs://nn/db/snap-1.avro",
    "alibaba": "oss://bucket/db/snap-1.avro",
    "web": "https://example.org/db/snap-1.avro",
    "nul": "file:///a\0b/snap-1.avro",
    "windows": "C:\\db\\snap-1.avro",
}


def name_manifest_list(table: TableBuilder, address: str) -> None:
    """Replace the address of the current manifest list in the metadata of a table."""
    path = Path(table.path(table.metadata_location))
    document = json.loads(path.read_text())
    document["snapshots"][-1]["manifest-list"] = address
    path.write_text(json.dumps(document))


def test_manifest_list_in_unsupported_store_makes_only_one_table_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0, "max_unreadable": len(ADDRESSES)}})
    lake = LakeBuilder(house.root)
    good = lake.table("db.good", days_ago(40))
    good.append(days_ago(30))
    garbage = {house.key(path) for path in good.leftovers(days_ago(20), 2)}
    for name, address in ADDRESSES.items():
        table = lake.table(f"db.{name}", days_ago(40))
        table.append(days_ago(30))
        table.leftovers(days_ago(20), 1)
        name_manifest_list(table, address)
    house.lakes = [lake.config()]
    header = house.plan()
    assert {item.table_name for item in header.unreadable} == {f"db.{name}" for name in ADDRESSES}
    assert header.failed_gates == []
    assert set(house.planned_actions()) == garbage
    assert any("hdfs://nn/db/snap-1.avro" in item.why for item in header.unreadable)


@pytest.mark.parametrize("is_dropped", [False, True], ids=["current", "dropped"])
def test_nessie_content_in_unsupported_store_does_not_affect_other_contents(
    spark: SparkSession, nessie: Server, tmp_path: Path, is_dropped: bool
) -> None:
    house = Lakehouse(spark, tmp_path, now=next_noon(days=2), settings={"gates": {"max_delete_share": 1.0}})
    lake, builder = LakeBuilder(house.root), NessieBuilder(nessie.uri, house.warehouse)
    good = lake.table("db.good", LONG_AGO)
    good.append(LONG_AGO)
    garbage = {house.key(path) for path in good.leftovers(LONG_AGO, 2)}
    main = builder.on()
    main.new("shop.t")
    builder.put(("shop", "bad"), iceberg_table("oss://bucket/bad/metadata/1.metadata.json"))
    if is_dropped:
        builder.commit([delete(("shop", "bad"))])
    main.append("shop.t")
    main.date_files(LONG_AGO)
    house.lakes = [lake.config(), builder.config(retention={"default": "30d"})]
    header = house.plan()
    (unreadable,) = header.unreadable
    assert (unreadable.lake, unreadable.table_name) == ("shop", "shop.bad")
    assert "oss://bucket/bad/metadata/1.metadata.json" in unreadable.why
    assert set(house.planned_actions()) == garbage


def test_staged_address_with_parent_component_does_not_affect_other_lakes(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake, repository = LakeBuilder(house.root), RepositoryBuilder(house.warehouse, days_ago(60))
    good = lake.table("db.good", days_ago(40))
    good.append(days_ago(30))
    garbage = {house.key(path) for path in good.leftovers(days_ago(20), 2)}
    repository.commit("main", a_1=b"a")
    repository.stage("main", "odd", f"../ml-data/{repository.upload()}")
    with FakeServer(repository.repository).running() as url:
        house.lakes = [config_of(url, "ml-data", location=f"file://{repository.namespace}"), lake.config()]
        (unreadable,) = house.plan().unreadable
    assert unreadable.is_whole_lake
    assert "contains `..`" in unreadable.why
    assert set(house.planned_actions()) == garbage
