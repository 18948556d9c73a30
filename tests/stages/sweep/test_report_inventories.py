"""Nights that read a report instead of listing: what it shows is not believed of anything that was written later, or moved by us since.

One story in order, on a real bucket. The objects are as old as they are; the clock of the nights is days ahead of the report's scan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.read.doctor import doctor
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.s3.servers import shared
from tests.stages.bucket_house import BucketHouse
from tests.stages.lakehouse import STORAGE, Lakehouse
from tests.stores.inventories.written import OwnReport, on_disk, rows_of
from tests.stores.s3_bench import in_a_bucket

pytestmark = pytest.mark.spark

BELOW = "iceberg/db/t/data/"
LOST, REPLACED, TWICE, YOUNG = (f"{BELOW}{name}.parquet" for name in ("lost", "replaced", "twice", "young"))


@dataclass
class Story:
    house: BucketHouse
    table: Table
    as_of: datetime
    lost: bytes
    header: Any = None

    def at(self, age: timedelta) -> Lakehouse:
        """The house when the report is so old."""
        self.house.now = self.as_of + age
        return self.house

    def add(self, *keys: str) -> None:
        """Commits objects that are there."""
        self.table.add_files([f"{self.house.bench.store.location}{key}" for key in keys], check_duplicate_files=False)

    def append(self, value: int) -> None:
        self.table.append(pa.table({"id": [value]}))

    def values(self) -> list[int]:
        return sorted(self.table.scan().to_arrow().column("id").to_pylist())


def table_in(house: BucketHouse) -> tuple[Table, IcebergLakeConfig]:
    server, location = shared("ceph"), house.bench.store.location
    keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key, "s3.region": "us-east-1"}
    properties = {"type": "sql", "uri": f"sqlite:///{house.root}/catalog.db", "warehouse": f"{location}iceberg"}
    properties |= {"s3.endpoint": server.endpoint, **keys}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())), location=f"{location}iceberg/db/t")
    config = {"name": "sales", "kind": "iceberg", "catalog": properties, "catalog_name": "default"}
    return table, IcebergLakeConfig.model_validate(config)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("inventories")
    with in_a_bucket("ceph", prefix="lakes/") as bench:
        inventory = {"kind": "plain", "location": f"{root}/reports", "max_inventory_age": "9d"}
        house = BucketHouse(spark, root, settings={"grace": "1s", "inventory": inventory}, bench=bench)
        table, config = table_in(house)
        house.lakes = [config]
        table.append(pa.table({"id": [1]}))
        (data,) = [key for key in house.contents() if key.startswith(BELOW)]
        content = bench.get(data) or b""
        for key in (LOST, REPLACED, TWICE):
            bench.put(key, content)
        time.sleep(2.1)
        as_of = datetime.now(UTC).replace(microsecond=0)
        time.sleep(1)
        bench.put(YOUNG, content)
        rows = rows_of(bench)
        rows += [row for row in rows if row["key"].endswith(TWICE)]
        OwnReport(rows, as_of, bucket=bench.bucket).write(on_disk(root / "reports"))
        table.append(pa.table({"id": [2]}))
        yield Story(house, table, as_of, content)


def older(story: Story, house: Lakehouse) -> dict[str, dict[str, Any]]:
    rows = [{**row, "source": ""} for row in house.rows("storage_inventory")]
    return {row["key"]: row for row in rows if row["last_modified"] < story.as_of}


def test_the_inventory_of_a_report_is_that_of_a_listing_for_what_is_older(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    house = story.at(timedelta(days=2))
    listing = BucketHouse(house.spark, house.root / "listing", house.lakes, {"grace": "1s"}, house.now, bench=story.house.bench)
    storage_inventory(house.spark, listing.run_context(), STORAGE)
    monkeypatch.setattr("gc_assets.stages.sweep.storage_inventory.MAX_IN_PROCESS_ENTRIES", 1)  # so that executors read the report
    storage_inventory(house.spark, house.run_context(), STORAGE)
    assert older(story, house) == older(story, listing)
    assert {row["source"] for row in house.rows("storage_inventory")} == {"plain_inventory"}
    summary = house.summary("storage_inventory")
    assert (summary["report"], summary["report_as_of"]) == (
        f"{house.root}/reports/{story.as_of:%Y-%m-%dT%H-%M-%SZ}/manifest.json",
        story.as_of.isoformat(),
    )


def test_only_what_is_older_than_the_scan_by_the_grace_is_planned_and_what_is_newer_is_looked_up(story: Story) -> None:
    house = story.at(timedelta(days=2))
    story.header = house.plan()
    assert house.planned_actions() == {LOST: "quarantine", REPLACED: "quarantine"}
    assert story.header.failed_gates == []
    assert story.header.grace_cutoff == story.as_of - timedelta(seconds=1)
    assert {YOUNG, TWICE} <= house.keys("storage_inventory")
    assert house.summary("orphan_files")["named_twice"] == 2
    assert house.live() - house.keys("storage_inventory")  # the second commit, which the gates found by looking


def test_an_object_that_was_replaced_since_the_scan_is_left_alone(story: Story) -> None:
    house = story.house
    house.bench.put(REPLACED, b"another object")
    house.approve_and_apply(story.header)
    assert {row["key"]: row["outcome"] for row in house.rows("deletion_log")} == {LOST: "done", REPLACED: "changed"}
    assert house.bench.get(LOST) is None
    assert house.bench.get(REPLACED) == b"another object"


def test_what_we_quarantined_since_the_scan_is_not_planned_again(story: Story) -> None:
    house = story.at(timedelta(days=3))
    house.plan()
    assert LOST in house.keys("storage_inventory")  # the report is the same
    assert [row["action"] for row in house.rows("deletion_plan") if row["key"] == LOST] == ["purge"]


def test_what_we_quarantined_since_the_scan_and_is_live_again_is_restored(story: Story) -> None:
    """The report still shows the object in its place. Were it believed, the place would look taken."""
    house = story.at(timedelta(days=4))
    story.house.bench.put(LOST, story.lost)  # pyiceberg looks into a file that it adds; the writer of a manifest need not
    story.add(LOST)
    story.house.bench.remove(LOST)
    header = house.plan()
    assert house.planned_actions()[LOST] == "restore"
    assert "live_listed" not in house.failed_gates(header)
    house.apply(header, ("restore",))
    assert story.house.bench.get(LOST) == story.lost
    assert story.values() == [1, 1, 2]


def test_a_live_file_that_is_in_no_report_and_not_there_is_lost(story: Story) -> None:
    house = story.at(timedelta(days=5))
    there = set(story.house.contents())
    story.append(3)
    (lost,) = [key for key in set(story.house.contents()) - there if key.startswith(BELOW)]
    content = story.house.bench.get(lost) or b""
    story.house.bench.remove(lost)
    header = house.plan()
    assert house.failed_gates(header) == {"live_listed"}
    assert [lost in gate.message for gate in header.gates if gate.name == "live_listed"] == [True]
    story.house.bench.put(lost, content)


def test_a_report_that_is_too_old_stops_the_night_and_doctor_says_so(story: Story) -> None:
    house = story.at(timedelta(days=9))
    assert [found.verdict for found in doctor(house.run_context()) if found.check == "inventory"] == ["ok"]
    house = story.at(timedelta(days=9, seconds=1))
    with pytest.raises(StoreError, match=r"manifest.json, the newest finished one, .* older than max_inventory_age \(9d\)"):
        house.plan()
    (found,) = [found for found in doctor(house.run_context()) if found.check == "inventory"]
    assert (found.verdict, "older than max_inventory_age" in found.found) == ("fail", True)
