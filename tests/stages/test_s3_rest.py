"""The whole protocol on an Iceberg REST catalog with its warehouse in a bucket.

The catalog is a real Nessie, which serves Iceberg REST under `/iceberg`. Its metadata files have
one snapshot each, so there is no history to expire, and files of older snapshots are unreferenced.
Nessie sets `gc.enabled=false`, and such a table is not collected until its owner changes this.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from tests.dates import next_noon
from tests.depth import full_suite_only
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import running
from tests.s3.servers import REGION, S3Server, shared_server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import ROWS, file_io
from tests.stages.lakehouse import counts, outcomes
from tests.stores.s3_bench import open_s3_bench

OPTIONS, KEYS = "nessie.catalog.service.s3.default-options", "keys-of-the-tests"


def catalog_properties(server: S3Server, warehouse: str) -> dict[str, str]:
    """Return properties of a Nessie with an Iceberg catalog in this warehouse."""
    return {
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": warehouse,
        f"{OPTIONS}.endpoint": server.endpoint,
        f"{OPTIONS}.path-style-access": "true",
        f"{OPTIONS}.region": REGION,
        f"{OPTIONS}.request-signing-enabled": "false",
        f"{OPTIONS}.access-key": f"urn:nessie-secret:quarkus:{KEYS}",
        f"{KEYS}.name": server.access_key,
        f"{KEYS}.secret": server.secret_key,
    }


@full_suite_only
@pytest.mark.spark
def test_rest_catalog_tables_can_be_planned_applied_restored_and_purged(spark: SparkSession, tmp_path: Path) -> None:
    ceph = shared_server("ceph")
    with (
        open_s3_bench("ceph", prefix="lakes/") as bench,
        running(tmp_path / "nessie", properties=catalog_properties(ceph, f"{bench.store.location}rest")) as nessie,
    ):
        properties = {"type": "rest", "uri": f"http://127.0.0.1:{nessie.port}/iceberg", **file_io(ceph)}
        catalog = load_catalog("default", **properties)
        catalog.create_namespace("db")
        for name in ("orders", "spared"):
            table = catalog.create_table(f"db.{name}", ROWS)
            table.append(pa.table({"id": [1]}))
            table.append(pa.table({"id": [2]}))
            table.overwrite(pa.table({"id": [7]}))
            bench.put(f"{table.location()}/data/lost.parquet".removeprefix(bench.store.location), b"lost")
        assert catalog.load_table("db.spared").properties["gc.enabled"] == "false"
        with catalog.load_table("db.orders").transaction() as change:
            change.set_properties({"gc.enabled": "true"})
        orders = catalog.load_table("db.orders")
        table_prefix = f"{orders.location()}/".removeprefix(bench.store.location)
        now = next_noon(days=30)
        house = BucketLakehouse(spark, tmp_path, settings={"quarantine": "trash"}, now=now, bench=bench)
        house.lakes = [IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": properties})]
        before = house.contents()
        header = house.plan()
        planned = house.keys("deletion_plan")
        assert header.failed_gates == []
        assert header.expiry_actions == {}
        assert f"{table_prefix}data/lost.parquet" in planned
        assert planned == {key for key in before if key.startswith(table_prefix)} - house.live()
        assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): len(planned)}
        assert set(before) - set(house.contents()) == planned
        assert house.restore(header.plan_id)[1] == {"done": len(planned)}
        assert before.items() <= house.contents().items()
        house.now += timedelta(days=5)
        second = house.plan()
        assert house.keys("deletion_plan") == planned
        assert outcomes(house.approve_and_apply(second)) == {"done"}
        house.now += timedelta(days=1)
        purge = house.plan()
        assert house.keys("deletion_plan", action="purge") == planned
        assert outcomes(house.approve_and_apply(purge)) == {"done"}
        assert {key: digest for key, digest in before.items() if key not in planned} == house.contents()
        for name in ("orders", "spared"):
            table = catalog.load_table(f"db.{name}")
            retained = {str(snapshot.snapshot_id) for snapshot in table.snapshots()}
            assert retained <= house.commits("retained")
            for snapshot in table.snapshots():
                assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pydict() == {"id": [7]}
        NessieBuilder(nessie.uri, tmp_path / "unused").tag("release")
        house.now += timedelta(days=1)
        assert house.plan().rows == 0
        assert "a Nessie server with several refs (main, release)" in " ".join(house.summary("lake_refs", "sales")["notes"])
