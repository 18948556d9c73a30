"""A key that fits in a bucket, but is too long in its trash, does not block the plans of the storage.

Before, an object of 992 bytes got the outcome `failed` in each apply, and the `unfinished_apply` gate refused all later plans.

Source: Amazon S3 User Guide, "Naming Amazon S3 objects" (1,024 bytes of UTF-8).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.records.plans import find_plan
from tests.depth import in_turn
from tests.s3.servers import REGION, S3Server
from tests.stages.lakehouse import Lakehouse, counts

pytestmark = [pytest.mark.spark, in_turn]


def test_key_too_long_for_the_trash_is_left_out_of_the_plan(spark: SparkSession, ceph: S3Server, tmp_path: Path) -> None:
    bucket, client = ceph.bucket(), ceph.client()
    keys = {"s3.access-key-id": ceph.access_key, "s3.secret-access-key": ceph.secret_key, "s3.endpoint": ceph.endpoint, "s3.region": REGION}
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{bucket}/w", **keys}
    catalog = SqlCatalog("c", **{**properties, "init_catalog_tables": "true"})
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", pa.schema([("a", pa.int64())])).append(pa.table({"a": [1]}))
    short, long = "ns/t/data/dead.parquet", f"ns/t/data/{'k' * 985}.parquet"
    for key in (short, long):
        client.put_object(Bucket=bucket, Key=f"w/{key}", Body=b"x")
    settings = {"location": f"s3://{bucket}/w/", "quarantine": "trash", "grace": "24h", "gates": {"max_delete_share": 1.0}}
    lake = IcebergLakeConfig.model_validate({"name": "shop", "kind": "iceberg", "catalog_name": "c", "catalog": properties})
    house = Lakehouse(spark, tmp_path, [lake], settings, now=datetime.now(UTC) + timedelta(days=4), s3=ceph.settings)

    header = house.plan()
    assert house.leftovers() == {short}
    (left_out,) = header.left_out
    assert (left_out.files, "too long" in left_out.reason) == (1, True)
    assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): 1}
    assert find_plan(house.config, header.plan_id).finished is not None
    house.now += timedelta(days=1)
    assert house.failed_gates(house.plan()) == set()
    assert client.get_object(Bucket=bucket, Key=f"w/{long}")["Body"].read() == b"x"
