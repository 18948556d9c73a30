"""A receipt counts the requests of a stage, also on executors, and the next run splits the listing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.connections import Connections
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.mark.object_sizes import MIN_LISTED_KEYS
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.s3.proxy import lists, run_proxy
from tests.s3.servers import shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.lakehouse import STORAGE
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = pytest.mark.spark


def lake_config(bench: S3Bench) -> IcechunkLakeConfig:
    """Return a lake that is never opened, because a configuration needs one."""
    return IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": f"{bench.store.location}weather/"})


def test_receipt_counts_s3_requests_of_executors(spark: SparkSession, tmp_path: Path) -> None:
    with open_s3_bench("ceph") as bench, run_proxy(shared_server("ceph")) as proxy:
        for key in ("a/1", "b/1", "c/1", "d"):
            bench.put(key, b"x")
        proxied_bench = replace(bench, connections=Connections.of(proxy.server.settings))
        house = BucketLakehouse(spark, tmp_path, [lake_config(bench)], bench=proxied_bench)
        storage_inventory(spark, house.run_context(), STORAGE)
        summary = house.summary("storage_inventory")
        is_listing = [lists(request) or "uploads" in request.query for request in proxy.requests]
        assert summary["tasks"] > 1
        assert summary["requests"] == {"LIST": sum(is_listing), "GET": len(is_listing) - sum(is_listing)}
        assert house.keys("storage_inventory") == {"a/1", "b/1", "c/1", "d"}


def test_next_run_splits_listing_of_flat_prefix(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.stores.conditional.listing.SPLIT_KEY_EVERY", 10)
    with open_s3_bench("ceph") as bench:
        names = {f"k{number:02d}" for number in range(40)}
        for name in names:
            bench.put(name, b"x")
        house = BucketLakehouse(spark, tmp_path, [lake_config(bench)], bench=bench)
        tasks = list[int]()
        for _ in range(2):
            storage_inventory(spark, house.run_context(), STORAGE)
            assert house.keys("storage_inventory") == names
            tasks.append(house.summary("storage_inventory")["tasks"])
            house.now += timedelta(days=1)
        assert tasks == [1, 6]


def test_run_between_listings_sends_no_list_request(spark: SparkSession, tmp_path: Path) -> None:
    with open_s3_bench("ceph", prefix="lake/") as bench, run_proxy(shared_server("ceph")) as proxy:
        proxied_bench = replace(bench, connections=Connections.of(proxy.server.settings))
        house = BucketLakehouse(spark, tmp_path, settings={"grace": "1s", "listing": {"every": "7d"}}, bench=proxied_bench)
        table = Iceberg(house)
        house.lakes = [table.config]
        house.now = datetime.now(UTC) + timedelta(days=1)
        first = house.plan()
        orders = table.catalog.load_table("db.orders")
        for snapshot in orders.metadata.snapshots[:-1]:
            orders.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        for number in range(MIN_LISTED_KEYS):  # their lengths are unknown
            orders.append(pa.table({"id": [number]}))
        house.now += timedelta(days=2)
        proxy.requests.clear()
        second = house.plan()
        assert (first.listed_at, second.listed_at) == (None, house.now - timedelta(days=2))
        assert house.failed_gates(second) == set()
        assert [request for request in proxy.requests if lists(request) or "uploads" in request.query] == []
        sent = {asset: house.summary(asset).get("requests", {}) for asset in ("storage_inventory", "orphan_files", "deletion_plan")}
        assert sent["storage_inventory"] == sent["deletion_plan"] == {}
        assert sent["orphan_files"].keys() == {"HEAD"}
        assert {key.split("/")[3] for key in house.keys("deletion_plan")} == {"data", "metadata"}
        assert not house.keys("deletion_plan") & table.garbage
