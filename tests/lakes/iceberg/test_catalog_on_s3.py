"""Read a catalog with tables in a bucket through pyiceberg's own S3 client."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.iceberg.catalog import CatalogClient
from tests.s3.servers import REGION, S3Server


def properties(server: S3Server, root: Path, bucket: str) -> dict[str, str]:
    keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key}
    catalog_settings = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"s3://{bucket}/shop"}
    return {**catalog_settings, **keys, "s3.endpoint": server.endpoint, "s3.region": REGION}


def test_missing_s3_keys_error_lists_settings(ceph: S3Server, tmp_path: Path) -> None:
    bucket = ceph.bucket()
    catalog = SqlCatalog("default", **properties(ceph, tmp_path, bucket))
    catalog.create_namespace("db")
    catalog.create_table("db.orders", Schema(NestedField(1, "id", LongType())))
    other_user = ceph.as_stranger()
    with pytest.raises(LakeUnreadable) as refused:
        CatalogClient("sales", "default", properties(other_user, tmp_path, bucket)).load(("db", "orders"))
    message = str(refused.value)
    assert "table db.orders" in message
    assert "write s3.endpoint and s3.region into `catalog`, and set AWS_ACCESS_KEY_ID" in message
    assert "drop it" not in message
    assert other_user.secret_key not in message


def test_missing_metadata_file_is_not_reported_as_missing_keys(ceph: S3Server, tmp_path: Path) -> None:
    bucket = ceph.bucket()
    settings = properties(ceph, tmp_path, bucket)
    catalog = SqlCatalog("default", **settings)
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", Schema(NestedField(1, "id", LongType())))
    ceph.client().delete_object(Bucket=bucket, Key=table.metadata_location.removeprefix(f"s3://{bucket}/"))
    with pytest.raises(LakeUnreadable, match="repair it or drop it from the catalog"):
        CatalogClient("sales", "default", settings).load(("db", "orders"))
