"""A report that lacks old live files is refused, because metadata of foreign tables may be missing, too."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.core.errors import StoreError
from gc_assets.stages.read.doctor import doctor
from tests.depth import in_turn
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.sweep.test_report_inventories import create_table
from tests.stores.inventories.report_builders import S3Report, list_rows, write_to_disk
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

DATA, LANDING = "iceberg/db/t/data/", "landing/"
ORPHAN = f"{DATA}orphan.parquet"


@dataclass
class Scene:
    house: BucketLakehouse
    bench: S3Bench
    table: Table

    def write_report(self, is_listed: Callable[[str], bool], days: int = 10) -> None:
        """Write a report of some keys, with a scan this many days in the future, and set the clock to the next day."""
        scan = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(days=days)
        rows = [row for row in list_rows(self.bench) if is_listed(row["key"].removeprefix(self.bench.prefix))]
        S3Report(rows, scan, "Parquet", self.bench.bucket).write(write_to_disk(self.house.root / "reports"))
        self.house.now = scan + timedelta(days=1)

    def doctor(self) -> list[str]:
        return [found.verdict for found in doctor(self.house.run_context()) if found.check == "inventory"]

    def append_by_foreign_catalog(self) -> Table:
        """Append to the table through a catalog that is not configured."""
        properties = {**self.table.catalog.properties, "uri": f"sqlite:///{self.house.root}/other.db"}
        catalog = SqlCatalog("default", **properties)
        catalog.create_namespace("db")
        table = catalog.register_table("db.t", self.table.metadata_location)
        table.append(pa.table({"id": [2]}))
        return table


@contextmanager
def build(spark: SparkSession, root: Path, *, versioned: bool = False) -> Generator[Scene]:
    with open_s3_bench("ceph", versioned=versioned, prefix="lakes/") as bench:
        inventory = {"kind": "s3", "location": f"{root}/reports", "max_inventory_age": "9d"}
        house = BucketLakehouse(spark, root, settings={"grace": "1s", "quarantine": bench.mode, "inventory": inventory}, bench=bench)
        table, config = create_table(house)
        house.lakes = [config]
        table.append(pa.table({"id": [1]}))
        bench.put(f"{LANDING}a.csv", b"1")
        yield Scene(house, bench, table)


def test_report_with_a_prefix_filter_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Without the metadata of the foreign table, its live data would be planned."""
    with build(spark, tmp_path) as scene:
        foreign = scene.append_by_foreign_catalog()
        scene.bench.put(ORPHAN, b"x")
        for prefix in (DATA, LANDING):
            scene.write_report(lambda key, prefix=prefix: key.startswith(prefix))
            with pytest.raises(StoreError, match=r"manifest.json is partial: .* lacks s3://.*/iceberg/db/t/.* or remove `inventory`"):
                scene.house.plan()
            assert scene.doctor() == ["fail"]
        scene.write_report(lambda _: True)
        assert scene.house.failed_gates(scene.house.plan()) == {"foreign_metadata"}
        assert scene.doctor() == ["ok"]
        assert sorted(foreign.scan().to_arrow().column("id").to_pylist()) == [1, 2]


def test_partial_report_is_still_refused_if_the_next_run_does_not_list(spark: SparkSession, tmp_path: Path) -> None:
    with build(spark, tmp_path) as scene:
        scene.house.settings["listing"] = {"every": "7d"}
        scene.write_report(lambda key: key.startswith(DATA))
        for _ in range(2):
            with pytest.raises(StoreError, match="is partial"):
                scene.house.plan()
            scene.house.now += timedelta(days=1)


def test_report_from_before_a_restore_is_used(spark: SparkSession, tmp_path: Path) -> None:
    """The version of a restored file keeps its modification time, but a report from before the restore only has its delete marker."""
    with build(spark, tmp_path, versioned=True) as scene:
        (data,) = [key for key in scene.house.contents() if key.startswith(DATA)]
        scene.bench.put(ORPHAN, scene.bench.get(data) or b"")
        scene.write_report(lambda _: True)
        header = scene.house.plan()
        assert scene.house.planned_actions() == {ORPHAN: "quarantine"}
        scene.house.approve_and_apply(header)
        scene.house.restore(header.plan_id)
        scene.table.add_files([f"{scene.bench.store.location}{ORPHAN}"], check_duplicate_files=False)
        scene.write_report(lambda key: key != ORPHAN, days=12)
        header = scene.house.plan()
        assert header.failed_gates == []
        assert ORPHAN not in scene.house.planned_actions()
