"""Runs that read an inventory report instead of listing: the report is not trusted for objects that changed after its scan.

The tests depend on each other and run in order, on a real bucket. Objects have their real times, so the clock of the runs is days ahead
of the scan.
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
from tests.depth import in_turn
from tests.s3.servers import shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.lakehouse import STORAGE, Lakehouse
from tests.stores.inventories.report_builders import PlainReport, list_rows, write_to_disk
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

DATA = "iceberg/db/t/data/"
LOST, REPLACED, DUPLICATE, YOUNG = (f"{DATA}{name}.parquet" for name in ("lost", "replaced", "twice", "young"))


@dataclass
class ReportStory:
    house: BucketLakehouse
    table: Table
    as_of: datetime
    lost: bytes
    header: Any = None

    def at(self, age: timedelta) -> Lakehouse:
        """Set the clock so that the report has this age."""
        self.house.now = self.as_of + age
        return self.house

    def add(self, *keys: str) -> None:
        """Commit existing objects."""
        self.table.add_files([f"{self.house.bench.store.location}{key}" for key in keys], check_duplicate_files=False)

    def append(self, value: int) -> None:
        self.table.append(pa.table({"id": [value]}))

    def values(self) -> list[int]:
        return sorted(self.table.scan().to_arrow().column("id").to_pylist())


def create_table(house: BucketLakehouse) -> tuple[Table, IcebergLakeConfig]:
    server, location = shared_server("ceph"), house.bench.store.location
    keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key, "s3.region": "us-east-1"}
    properties = {"type": "sql", "uri": f"sqlite:///{house.root}/catalog.db", "warehouse": f"{location}iceberg"}
    properties |= {"s3.endpoint": server.endpoint, **keys}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())), location=f"{location}iceberg/db/t")
    config = {"name": "sales", "kind": "iceberg", "catalog": properties, "catalog_name": "default"}
    return table, IcebergLakeConfig.model_validate(config)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportStory]:
    root = tmp_path_factory.mktemp("inventories")
    with open_s3_bench("ceph", prefix="lakes/") as bench:
        inventory = {"kind": "plain", "location": f"{root}/reports", "max_inventory_age": "9d"}
        house = BucketLakehouse(spark, root, settings={"grace": "1s", "inventory": inventory}, bench=bench)
        table, config = create_table(house)
        house.lakes = [config]
        table.append(pa.table({"id": [1]}))
        (data,) = [key for key in house.contents() if key.startswith(DATA)]
        content = bench.get(data) or b""
        for key in (LOST, REPLACED, DUPLICATE):
            bench.put(key, content)
        time.sleep(2.1)
        as_of = datetime.now(UTC).replace(microsecond=0)
        time.sleep(1)
        bench.put(YOUNG, content)
        rows = list_rows(bench)
        rows += [row for row in rows if row["key"].endswith(DUPLICATE)]
        PlainReport(rows, as_of, bucket=bench.bucket).write(write_to_disk(root / "reports"))
        table.append(pa.table({"id": [2]}))
        yield ReportStory(house, table, as_of, content)


def rows_before_scan(story: ReportStory, house: Lakehouse) -> dict[str, dict[str, Any]]:
    rows = [{**row, "source": ""} for row in house.rows("storage_inventory")]
    return {row["key"]: row for row in rows if row["last_modified"] < story.as_of}


def test_inventory_report_equals_listing_for_older_objects(story: ReportStory, monkeypatch: pytest.MonkeyPatch) -> None:
    house = story.at(timedelta(days=2))
    listing = BucketLakehouse(house.spark, house.root / "listing", house.lakes, {"grace": "1s"}, house.now, bench=story.house.bench)
    storage_inventory(house.spark, listing.run_context(), STORAGE)
    monkeypatch.setattr("gc_assets.stages.sweep.storage_inventory.MAX_IN_PROCESS_ENTRIES", 1)  # so that executors read the report
    storage_inventory(house.spark, house.run_context(), STORAGE)
    assert rows_before_scan(story, house) == rows_before_scan(story, listing)
    assert {row["source"] for row in house.rows("storage_inventory")} == {"plain_inventory"}
    summary = house.summary("storage_inventory")
    assert (summary["report"], summary["report_as_of"]) == (
        f"{house.root}/reports/{story.as_of:%Y-%m-%dT%H-%M-%SZ}/manifest.json",
        story.as_of.isoformat(),
    )


def test_plan_contains_only_objects_older_than_grace_period_at_scan(story: ReportStory) -> None:
    house = story.at(timedelta(days=2))
    story.header = house.plan()
    assert house.planned_actions() == {LOST: "quarantine", REPLACED: "quarantine"}
    assert story.header.failed_gates == []
    assert story.header.grace_cutoff == story.as_of - timedelta(seconds=1)
    assert {YOUNG, DUPLICATE} <= house.keys("storage_inventory")
    assert house.summary("orphan_files")["named_twice"] == 2
    assert house.live() - house.keys("storage_inventory")  # the second commit, which the gates look up in the bucket


def test_object_replaced_after_the_scan_is_kept(story: ReportStory) -> None:
    house = story.house
    house.bench.put(REPLACED, b"another object")
    house.approve_and_apply(story.header)
    assert {row["key"]: row["outcome"] for row in house.rows("deletion_log")} == {LOST: "done", REPLACED: "changed"}
    assert house.bench.get(LOST) is None
    assert house.bench.get(REPLACED) == b"another object"


def test_object_quarantined_after_the_scan_is_not_planned(story: ReportStory) -> None:
    """The object is purged after a later scan, because this one may miss metadata that was written
    since then.
    """
    house = story.at(timedelta(days=3))
    house.plan()
    assert LOST in house.keys("storage_inventory")  # the report is the same
    assert LOST not in house.planned_actions()


def test_live_object_quarantined_after_the_scan_is_restored(story: ReportStory) -> None:
    """The report still contains the object, which must not block the restore."""
    house = story.at(timedelta(days=4))
    story.house.bench.put(LOST, story.lost)  # pyiceberg reads a file that it adds
    story.add(LOST)
    story.house.bench.remove(LOST)
    header = house.plan()
    assert house.planned_actions()[LOST] == "restore"
    assert "live_listed" not in house.failed_gates(header)
    house.apply(header, ("restore",))
    assert story.house.bench.get(LOST) == story.lost
    assert story.values() == [1, 1, 2]


def test_live_file_missing_from_report_and_bucket_is_lost(story: ReportStory) -> None:
    house = story.at(timedelta(days=5))
    existing = set(story.house.contents())
    story.append(3)
    (lost,) = [key for key in set(story.house.contents()) - existing if key.startswith(DATA)]
    content = story.house.bench.get(lost) or b""
    story.house.bench.remove(lost)
    header = house.plan()
    assert house.failed_gates(header) == {"live_listed"}
    assert [lost in gate.message for gate in header.gates if gate.name == "live_listed"] == [True]
    story.house.bench.put(lost, content)


def test_outdated_report_stops_the_run_and_fails_doctor(story: ReportStory) -> None:
    house = story.at(timedelta(days=9))
    assert [found.verdict for found in doctor(house.run_context()) if found.check == "inventory"] == ["ok"]
    house = story.at(timedelta(days=9, seconds=1))
    with pytest.raises(StoreError, match=r"manifest.json, the newest finished one, .* older than max_inventory_age \(9d\)"):
        house.plan()
    (found,) = [found for found in doctor(house.run_context()) if found.check == "inventory"]
    assert (found.verdict, "older than max_inventory_age" in found.found) == ("fail", True)


def test_object_in_quarantine_is_purged_after_a_later_scan(story: ReportStory) -> None:
    house, bench, root = story.house, story.house.bench, story.house.root / "reports"
    assert isinstance(bench, S3Bench)

    def plan_with_scan_at(days: float, run_at: float) -> str | None:
        scan = story.as_of + timedelta(days=days)
        PlainReport(list_rows(bench), scan, bucket=bench.bucket).write(write_to_disk(root))
        header = story.at(timedelta(days=run_at)).plan()
        if header.rows:
            house.approve_and_apply(header)
        return house.planned_actions().get(REPLACED)

    assert [plan_with_scan_at(10, 11), plan_with_scan_at(10.9, 12), plan_with_scan_at(12, 13)] == ["quarantine", None, "purge"]


def test_report_older_than_that_of_the_last_run_is_refused(story: ReportStory) -> None:
    """The last run may have found metadata of another system in it, which the older one lacks."""
    house = story.at(timedelta(days=14))
    newest = max((story.house.root / "reports").iterdir())
    kept = newest.rename(story.house.root / newest.name)
    with pytest.raises(StoreError, match=rf"but the last run used .*{newest.name}/manifest.json from .* Wait for a newer report"):
        house.plan()
    kept.rename(newest)
    house.plan()
