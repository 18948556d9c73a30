"""Inventory reports of Google Cloud Storage replace the listing of a storage."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from gc_assets.config.models import StorageConfig
from gc_assets.core.errors import StoreError
from gc_assets.stores.protocol import Lister
from gc_assets.stores.store import open_lister
from tests.stores.contract import inventory
from tests.stores.gcs_bench import GcsBench, open_gcs_bench

KEYS = ("a", "t/b c", "t/é", ".gc-assets/trash/x")


def in_a_minute() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


def encode(rows: pa.Table, file_format: str) -> bytes:
    target = io.BytesIO()
    if file_format == "csv":
        pa_csv.write_csv(rows, target)
    else:
        pq.write_table(rows, target)
    return target.getvalue()


def write_report(bench: GcsBench, file_format: str, at: datetime, **changes: Any) -> str:
    """Write a report about all generations of the bucket, as Google describes it, and return its location."""
    blobs = list(bench.client.list_blobs(bench.bucket, versions=True))
    rows = pa.table(
        {
            "project": ["p"] * len(blobs),
            "bucket": [bench.bucket] * len(blobs),
            "name": [blob.name for blob in blobs],
            "size": [blob.size for blob in blobs],
            "updated": [blob.updated.isoformat() if file_format == "csv" else blob.updated for blob in blobs],
            "timeDeleted": pa.array([blob.time_deleted and blob.time_deleted.isoformat() for blob in blobs], pa.string()),
            "generation": [blob.generation for blob in blobs],
            "metageneration": [blob.metageneration for blob in blobs],
            "storageClass": [blob.storage_class for blob in blobs],
        }
    )
    location = f"reports/{bench.prefix.strip('/').rpartition('/')[2]}/"
    name = f"7f3a_{at:%Y-%m-%dT%H:%M}"
    shard = f"{name}_0.{file_format}"
    document = {
        "report_config": {},
        "records_processed": len(blobs),
        "snapshot_time": at.isoformat(),
        "target_datetime": at.isoformat(),
        "shard_count": 1,
        "report_shards_file_names": [shard],
    }
    bucket = bench.client.bucket(bench.bucket)
    bucket.blob(location + shard).upload_from_string(encode(rows, file_format))
    bucket.blob(f"{location}{name}_manifest.json").upload_from_string(json.dumps({**document, **changes}))
    return f"gs://{bench.bucket}/{location}"


def lister_of(bench: GcsBench, location: str) -> Lister:
    settings = {"name": "s", "location": bench.store.location, "inventory": {"kind": "gcs", "location": location}}
    return open_lister(StorageConfig.model_validate(settings), bench.connections)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_inventory_report_equals_the_listing(file_format: str, versioned: bool) -> None:
    with open_gcs_bench(versioned=versioned) as bench:
        for key in (*KEYS, "t/b c", "gone"):
            bench.put(key, key.encode())
        bench.client.bucket(bench.bucket).blob(f"{bench.prefix}gone").delete()
        location = write_report(bench, file_format, datetime.now(UTC))
        plan = lister_of(bench, location).plan(2, in_a_minute(), frozenset(), in_a_minute(), None)
        found = [row for task in plan.tasks for step in task.run(10**9) for row in step.objects.to_pylist()]
        listed = inventory(bench.store)
        assert listed.keys() == {key for key in KEYS if not key.startswith(".gc-assets/")}
        assert {row["key"]: row | {"source": None} for row in found} == {key: row | {"source": None} for key, row in listed.items()}
        assert {row["source"] for row in found} == {"gcs_inventory"}


def test_newest_finished_report_is_used_and_a_damaged_one_is_skipped() -> None:
    with open_gcs_bench() as bench:
        bench.put("a", b"x")
        older, newer = datetime.now(UTC) - timedelta(hours=3), datetime.now(UTC) - timedelta(hours=1)
        write_report(bench, "csv", older)
        location = write_report(bench, "csv", newer)
        plan = lister_of(bench, location).plan(2, in_a_minute(), frozenset(), in_a_minute(), None)
        assert plan.report is not None
        assert abs(plan.report.as_of - newer) < timedelta(seconds=1)
        found = lister_of(bench, location).examine(StorageConfig(name="s", location="/x"), in_a_minute())
        assert ["scan of" in finding.found for finding in found] == [True]
        write_report(bench, "csv", newer + timedelta(minutes=5), shard_count=2)
        assert lister_of(bench, location).plan(2, in_a_minute(), frozenset(), in_a_minute(), None).report == plan.report
        found = lister_of(bench, location).examine(StorageConfig(name="s", location="/x"), in_a_minute())
        assert ["it lists 1 files, expected 2" in finding.found for finding in found] == [True, False]
        with pytest.raises(StoreError, match="expected files such as ID_2026"):
            lister_of(bench, bench.store.location).plan(2, in_a_minute(), frozenset(), in_a_minute(), None)
