"""No upload is aborted if metadata of an unconfigured catalog references its prefix, even if that
gate is overridden.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.uploads import planned_uploads
from gc_assets.stages.records.plans import find_plan
from tests.dates import next_noon
from tests.depth import in_turn
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import ROWS, Iceberg, catalog_of
from tests.stores.s3.test_uploads import begin, list_uploads
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]

TABLE = "iceberg/db/orders/"
FILE = "data/00000-0-0d5a9c1e-2f3b-4c6d-8e7f-a1b2c3d4e5f6.parquet"
OWN, NESTED, NEXT_TO_JUNK = TABLE + FILE, f"{TABLE}nested/{FILE}", f"{TABLE}torn/{FILE}"


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Iterator[BucketLakehouse]:
    with open_s3_bench("ceph", prefix="lakes/") as bench:
        house = BucketLakehouse(spark, tmp_path, now=next_noon(days=4), bench=bench)
        house.lakes = [Iceberg(house).config]
        for key in (OWN, NESTED, NEXT_TO_JUNK):
            begin(bench, key, b"x")
        yield house


def add_others(house: BucketLakehouse) -> None:
    """Create a table of an unconfigured catalog inside the table's location, and a torn metadata file."""
    catalog = SqlCatalog("other", **{**catalog_of(house), "uri": f"sqlite:///{house.root}/other.db"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.nested", ROWS, location=f"{house.bench.store.location}{TABLE}nested")
    table.append(pa.table({"id": [1]}))
    house.bench.put(f"{TABLE}torn/metadata/00001-a.metadata.json", b'{"format-version"')


def list_planned(house: BucketLakehouse, header: PlanHeader) -> set[str]:
    return set(planned_uploads(house.run_context().state, find_plan(house.config, header.plan_id).published).column("key").to_pylist())


def test_plan_aborts_no_upload_near_metadata_of_other_catalogs(house: BucketLakehouse) -> None:
    add_others(house)
    header = house.plan()
    assert house.failed_gates(header) == {"foreign_metadata"}
    assert list_planned(house, header) == {OWN}
    house.approve(header, "foreign_metadata")
    house.apply(header)
    assert {key for key, _ in list_uploads(house.bench)} == {NESTED, NEXT_TO_JUNK}


def test_older_plan_aborts_no_upload_near_foreign_metadata_found_later(house: BucketLakehouse) -> None:
    header = house.plan()
    assert list_planned(house, header) == {OWN, NESTED, NEXT_TO_JUNK}
    add_others(house)
    house.now += timedelta(hours=1)
    house.plan()
    house.approve(header, "foreign_metadata")
    house.apply(header)
    assert {key for key, _ in list_uploads(house.bench)} == {NESTED, NEXT_TO_JUNK}
    log = {row["key"]: row for row in house.rows("deletion_log")}
    assert {log[key]["outcome"] for key in (NESTED, NEXT_TO_JUNK)} == {"denied"}
    assert "no configured lake" in log[NESTED]["error"]
