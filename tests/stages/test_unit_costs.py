"""The unit costs from which docs/scale.md reckons: requests for each table and container, and bytes of state for each file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from benchmarks import iceberg_lake
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.journal import PublishedTable
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.rest_server import serve_catalog
from tests.stages.bucket_house import BucketHouse
from tests.stages.bucket_lakes import ROWS, catalog_of
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse
from tests.stores.s3_bench import in_a_bucket

TABLES, COMMITS = 4, 3
FILES = 20_000


class Tables:
    """Tables of a SQL catalog in a bucket, of the same commits each."""

    def __init__(self, house: BucketHouse) -> None:
        self.house = house
        properties = catalog_of(house)
        self.catalog = SqlCatalog("default", **properties)
        self.catalog.create_namespace("db")
        for number in range(TABLES):
            self.catalog.create_table(f"db.t{number}", ROWS)
            for commit in range(COMMITS):
                self.append(number, commit)
        house.lakes = [IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": properties})]

    def append(self, number: int, value: int) -> None:
        self.catalog.load_table(f"db.t{number}").append(pa.table({"id": [value]}))

    def requests(self) -> dict[str, dict[str, int]]:
        """What the next night's mark sends to the store, by stage."""
        self.house.now += timedelta(days=1)
        self.house.mark()
        stages = ("lake_refs", "commit_graph", "reachable_snapshots", "manifest_entries", "live_files")
        return {stage: self.house.summary(stage, "sales").get("requests", {}) for stage in stages}


@pytest.mark.spark
def test_a_night_asks_the_store_once_for_each_table_and_once_for_each_container_that_came(spark: SparkSession, tmp_path: Path) -> None:
    with in_a_bucket("ceph") as bench:
        tables = Tables(BucketHouse(spark, tmp_path, now=NOW + timedelta(days=30), bench=bench))
        lists = TABLES * COMMITS
        asked = {"lake_refs": {"GET": TABLES}, "reachable_snapshots": {}, "live_files": {}}
        first = {**asked, "commit_graph": {"GET": TABLES}, "manifest_entries": {"HEAD": lists, "GET": 2 * lists}}
        assert tables.requests() == first
        assert tables.requests() == {**asked, "commit_graph": {}, "manifest_entries": {"HEAD": lists}}
        tables.append(0, 99)
        assert tables.requests() == {**asked, "commit_graph": {"GET": 1}, "manifest_entries": {"HEAD": lists + 1, "GET": 2}}


def test_a_rest_catalog_is_asked_once_for_each_table_and_a_database_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = LakeBuilder(tmp_path)
    for number in range(TABLES):
        builder.table(f"db.t{number}", NOW)
    asked: list[list[str]] = []
    with serve_catalog(builder) as server:
        answer = server.get
        monkeypatch.setattr(server, "get", lambda path, query: asked.append(path) or answer(path, query))
        config = {"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": server.uri}}
        lakehouse = Lakehouse(None, tmp_path, [IcebergLakeConfig.model_validate(config)])  # type: ignore[arg-type]
        lake = lakehouse.run_context().lake("sales")
        assert isinstance(lake, IcebergLake)
        assert len(lake.freeze(NOW).sources) == TABLES
    loads = [path for path in asked if path[-2:-1] == ["tables"]]
    assert len(loads) == TABLES
    assert len(asked) - len(loads) == 4  # its configuration, the namespaces, those inside the one, and its tables


def bytes_a_row(published: PublishedTable, side: str | None = None) -> float:
    parts = published.parts(side)
    return sum(part.size_bytes for part in parts) / sum(part.rows for part in parts)


def names_of_their_own(self: iceberg_lake.TableWriter, day: str, files: int) -> list[Path]:
    """As engines name files whose writers do not know of each other."""
    directory = self._home / "data" / f"day={day}"
    directory.mkdir(parents=True, exist_ok=True)
    return [directory / f"{index:05}-0-{uuid4()}.parquet" for index in range(files)]


@full_suite_only
@pytest.mark.spark
def test_the_state_holds_so_many_bytes_for_each_file(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_lake.TableWriter, "data_paths", names_of_their_own)
    lake = iceberg_lake.IcebergLake(tmp_path)
    iceberg_lake.build(lake, iceberg_lake.Size(tables=1, commits=2, files_per_commit=FILES // 2))
    config: Any = {"name": "shop", "kind": "iceberg", "catalog": lake.properties, "catalog_name": iceberg_lake.CATALOG_NAME}
    house = Lakehouse(spark, tmp_path, [IcebergLakeConfig.model_validate(config)], now=lake.now)
    house.mark()
    night = house.run_context()
    live_filter(spark, night, STORAGE)
    inventory = storage_inventory(spark, night, STORAGE)
    assert house.find_table("live_files", "shop").receipt.rows > FILES
    assert inventory.receipt.rows > FILES
    found = {
        "manifest_entries": bytes_a_row(house.find_table("manifest_entries", "shop")),
        "live_files": bytes_a_row(house.find_table("live_files", "shop")),
        "storage_inventory": bytes_a_row(inventory),
        "live_filter": sum(part.size_bytes for part in house.find_table("live_filter").parts()) / FILES,
    }
    # Measured: 48, 34, 30 and 4.7.
    bounds = {"manifest_entries": 55, "live_files": 40, "storage_inventory": 35, "live_filter": 6}
    assert {name: number for name, number in found.items() if number > bounds[name]} == {}
