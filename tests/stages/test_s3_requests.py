"""What executors send to a bucket is counted in the receipt, and they keep to one budget together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.s3 import Places
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.s3.proxy import lists, proxied
from tests.s3.servers import shared
from tests.stages.bucket_house import BucketHouse
from tests.stages.lakehouse import STORAGE
from tests.stores.s3_bench import in_a_bucket

pytestmark = pytest.mark.spark


def test_a_receipt_counts_what_the_server_met_of_a_listing_in_executors(spark: SparkSession, tmp_path: Path) -> None:
    with in_a_bucket("ceph") as bench, proxied(shared("ceph")) as proxy:
        for key in ("a/1", "b/1", "c/1", "d"):
            bench.put(key, b"x")
        spoilt = replace(bench, places=Places(default=proxy.server.settings))
        weather = {"name": "weather", "kind": "icechunk", "location": f"{bench.store.location}weather/"}
        house = BucketHouse(spark, tmp_path, [IcechunkLakeConfig.model_validate(weather)], bench=spoilt)
        storage_inventory(spark, house.tonight(), STORAGE)
        facts = house.facts("storage_inventory")
        met = [lists(request) or "uploads" in request.query for request in proxy.requests]
        assert facts["tasks"] > 1
        assert facts["requests"] == {"LIST": sum(met), "GET": len(met) - sum(met)}
        assert house.keys("storage_inventory") == {"a/1", "b/1", "c/1", "d"}
