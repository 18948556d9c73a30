"""Unit costs used by docs/scale.md: requests per table and container, and bytes of state per file."""

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
from gc_assets.state.summaries import LiveFilesSummary
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.rest_server import serve_catalog
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import ROWS, catalog_of
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse
from tests.stores.s3_bench import open_s3_bench

TABLES, COMMITS = 4, 3
FILES = 20_000


class BucketTables:
    """Tables of a SQL catalog in a bucket, each with the same number of commits."""

    def __init__(self, house: BucketLakehouse) -> None:
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
        """Run the mark of the next run and return its requests by stage."""
        self.house.now += timedelta(days=1)
        self.house.mark()
        stages = ("lake_refs", "commit_graph", "reachable_snapshots", "manifest_entries", "live_files")
        return {stage: self.house.summary(stage, "sales").get("requests", {}) for stage in stages}


@pytest.mark.spark
def test_run_sends_one_request_per_table_and_per_new_container(spark: SparkSession, tmp_path: Path) -> None:
    with open_s3_bench("ceph") as bench:
        tables = BucketTables(BucketLakehouse(spark, tmp_path, now=NOW + timedelta(days=30), bench=bench))
        lists = TABLES * COMMITS
        requests = {"lake_refs": {"GET": TABLES}, "reachable_snapshots": {}, "live_files": {}}
        first = {**requests, "commit_graph": {"GET": TABLES}, "manifest_entries": {"HEAD": lists, "GET": 2 * lists}}
        assert tables.requests() == first
        assert tables.requests() == {**requests, "commit_graph": {}, "manifest_entries": {"HEAD": lists}}
        tables.append(0, 99)
        assert tables.requests() == {**requests, "commit_graph": {"GET": 1}, "manifest_entries": {"HEAD": lists + 1, "GET": 2}}


def test_rest_catalog_gets_one_request_per_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = LakeBuilder(tmp_path)
    for number in range(TABLES):
        builder.table(f"db.t{number}", NOW)
    requests: list[list[str]] = []
    with serve_catalog(builder) as server:
        answer = server.get
        monkeypatch.setattr(server, "get", lambda path, query: requests.append(path) or answer(path, query))
        config = {"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": server.uri}}
        lakehouse = Lakehouse(None, tmp_path, [IcebergLakeConfig.model_validate(config)])  # type: ignore[arg-type]
        lake = lakehouse.run_context().lake("sales")
        assert isinstance(lake, IcebergLake)
        assert len(lake.freeze(NOW).sources) == TABLES
    loads = [path for path in requests if path[-2:-1] == ["tables"]]
    assert len(loads) == TABLES
    assert len(requests) - len(loads) == 4  # for the configuration, the namespaces, the child namespaces, and the tables


def bytes_per_row(published: PublishedTable, side: str | None = None) -> float:
    parts = published.parts(side)
    return sum(part.size_bytes for part in parts) / sum(part.rows for part in parts)


def unique_paths(self: iceberg_lake.TableWriter, day: str, files: int) -> list[Path]:
    """Name files like engines with independent writers."""
    directory = self._home / "data" / f"day={day}"
    directory.mkdir(parents=True, exist_ok=True)
    return [directory / f"{index:05}-0-{uuid4()}.parquet" for index in range(files)]


@full_suite_only
@pytest.mark.spark
def test_state_size_per_live_file_is_bounded(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_lake.TableWriter, "data_paths", unique_paths)
    lake = iceberg_lake.IcebergLake(tmp_path)
    iceberg_lake.build(lake, iceberg_lake.Size(tables=1, commits=2, files_per_commit=FILES // 2))
    config: Any = {"name": "shop", "kind": "iceberg", "catalog": lake.properties, "catalog_name": iceberg_lake.CATALOG_NAME}
    house = Lakehouse(spark, tmp_path, [IcebergLakeConfig.model_validate(config)], now=lake.now)
    house.mark()
    context = house.run_context()
    live_filter(spark, context, STORAGE)
    inventory = storage_inventory(spark, context, STORAGE)
    live = house.find_table("live_files", "shop")
    assert live.summary(LiveFilesSummary).files > FILES
    assert inventory.receipt.rows > FILES
    found = {
        "manifest_entries": bytes_per_row(house.find_table("manifest_entries", "shop")),
        "live_files": sum(part.size_bytes for part in live.receipt.parts) / FILES,
        "storage_inventory": bytes_per_row(inventory),
        "live_filter": sum(part.size_bytes for part in house.find_table("live_filter").parts()) / FILES,
    }
    # Measured: 48, 34, 30 and 4.7.
    bounds = {"manifest_entries": 55, "live_files": 2, "storage_inventory": 35, "live_filter": 6}
    assert {name: number for name, number in found.items() if number > bounds[name]} == {}
