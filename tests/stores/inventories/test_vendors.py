"""Reports of Azure and Google Cloud Storage, as documented. No store of this release uses them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories import azure, gcs
from gc_assets.stores.inventories.columns import read_batches
from gc_assets.stores.inventories.report import FoundReport, Manifest, ReportMismatch, RowNormalizer
from gc_assets.stores.local.report_files import LocalReportFiles

Row = dict[str, Any]
SCAN = datetime(2026, 1, 5, 1, tzinfo=UTC)
AT = datetime(2025, 12, 1, 2, 3, 4, tzinfo=UTC)


def normalize(path: Path, rows: list[Row], file_format: str, normalizer: RowNormalizer, bucket: str) -> list[Row]:
    """Write rows to a file and return them normalized."""
    if file_format == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(rows[0])
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
        path.write_bytes(text.getvalue().encode())
        return [row for batch in read_batches(str(path), "csv", None, set(rows[0])) for row in normalizer(batch, bucket).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return [row for batch in read_batches(str(path), "parquet", None, set(rows[0])) for row in normalizer(batch, bucket).to_pylist()]


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value).lower() if isinstance(value, bool) else value


# Azure


def azure_manifest(**changes: Any) -> bytes:
    filters = {"blobTypes": ["blockBlob", "appendBlob"], "includeBlobVersions": True, "prefixMatch": ["lake/warehouse/"]}
    rule = {"filters": filters, "format": "parquet", "objectType": "blob", "schedule": "daily"}
    document = {
        "destinationContainer": "reports",
        "endpoint": "https://account.blob.core.windows.net",
        "files": [{"blob": "2026/01/05/01-00-00/rule/rule.parquet", "size": 9}],
        "inventoryCompletionTime": "2026-01-05T01:10:00Z",
        "inventoryStartTime": "2026-01-05T01:00:00Z",
        "ruleDefinition": {**rule, **changes.pop("rule", {})},
        "ruleName": "rule",
        "status": "Succeeded",
        "summary": {"objectCount": 4, "totalObjectSize": 7},
        "version": "1.0",
    }
    return json.dumps({**document, **changes}).encode()


def azure_read(root: Path, content: bytes, checksum: bytes | None = None) -> Manifest:
    root.joinpath("rule-manifest.json").write_bytes(content)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest().encode()
    root.joinpath("rule-manifest.checksum").write_bytes(checksum or md5)
    return azure.read_manifest(LocalReportFiles(), f"{root}/", FoundReport(SCAN, "rule-manifest.json"), "lake@account")


def test_azure_manifest_has_files_time_and_row_count(tmp_path: Path) -> None:
    found = azure_read(tmp_path, azure_manifest())
    assert (found.bucket, found.prefixes, found.as_of, found.rows, found.versions) == ("lake@account", ("warehouse/",), SCAN, 4, True)
    assert [(file.address, file.size_bytes) for file in found.files] == [(f"{tmp_path}/2026/01/05/01-00-00/rule/rule.parquet", 9)]


@pytest.mark.parametrize("status", ["Pending", "PartiallySucceeded", "Failed"])
def test_unsuccessful_azure_run_is_refused(tmp_path: Path, status: str) -> None:
    with pytest.raises(FormatError, match=f"its status is {status}, expected Succeeded"):
        azure_read(tmp_path, azure_manifest(status=status))


def test_azure_manifest_with_wrong_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"expected 0123.* from the checksum file"):
        azure_read(tmp_path, azure_manifest(), b"0123")


@pytest.mark.parametrize("prefixes, message", [([], "all"), (["lake/", "other/"], "2")])
def test_azure_rule_without_exactly_one_container_is_refused(tmp_path: Path, prefixes: list[str], message: str) -> None:
    with pytest.raises(ReportMismatch, match=f"it covers {message} containers"):
        azure_read(tmp_path, azure_manifest(rule={"filters": {"prefixMatch": prefixes}}))


def blob(name: str, **values: Any) -> Row:
    row = {"Name": name, "Last-Modified": AT, "Content-Length": 3, "Etag": "0x8D", "AccessTier": "Hot", "VersionId": "v", "Snapshot": None}
    return {**row, "IsCurrentVersion": True, "Deleted": None, **values}


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_only_current_azure_blobs_are_marked_as_latest(tmp_path: Path, file_format: str) -> None:
    rows = [
        blob("lake/a b+%2F//\u00e9"),
        blob("lake/older", IsCurrentVersion=None),
        blob("lake/gone", Deleted=True),
        blob("lake/snapshot", Snapshot="2026-01-01T00:00:00.0000000Z"),
    ]
    found = normalize(tmp_path / "rule", rows, file_format, azure.normalize_rows, "lake")
    assert [row["is_latest"] for row in found] == [True, False, False, False]
    assert found[0] == {
        "key": "a b+%2F//\u00e9".encode(),
        "size_bytes": 3,
        "last_modified": AT,
        "etag": "0x8D",
        "version_id": "v",
        "is_latest": True,
        "is_marker": False,
        "storage_class": "Hot",
    }


def test_azure_row_of_another_container_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a row has the name b'lakes/a', expected one in container 'lake'"):
        normalize(tmp_path / "rule", [blob("lake/a"), blob("lakes/a")], "csv", azure.normalize_rows, "lake")


# Google Cloud Storage

SHARDS = {f"7f_2026-01-05T01:00_{number}.csv": 5 for number in range(2)}


def gcs_manifest(**changes: Any) -> bytes:
    document = {
        "report_config": {"display_name": "daily"},
        "records_processed": 3,
        "snapshot_time": "2026-01-05T01:00:00Z",
        "target_datetime": "2026-01-05T00:00:00Z",
        "shard_count": 2,
        "report_shards_file_names": list(SHARDS),
    }
    return json.dumps({**document, **changes}).encode()


def gcs_read(root: Path, content: bytes) -> Manifest:
    root.joinpath("7f_manifest.json").write_bytes(content)
    return gcs.read_manifest(LocalReportFiles(), f"{root}/", FoundReport(SCAN, "7f_manifest.json", SHARDS), "lake")


def test_gcs_manifest_has_shards_time_and_row_count(tmp_path: Path) -> None:
    found = gcs_read(tmp_path, gcs_manifest())
    assert (found.bucket, found.as_of, found.rows, found.file_format) == ("lake", SCAN, 3, "csv")
    assert [file.address for file in found.files] == [f"{tmp_path}/{name}" for name in SHARDS]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shard_count": 3}, "it lists 2 files, expected 3"),
        ({"report_shards_file_names": [*list(SHARDS)[:1], "7f_9.csv"]}, "its file 7f_9.csv is missing"),
        ({"records_processed": "3"}, "records_processed is '3', expected a valid integer"),
        ({"snapshot_time": "2026-01-05T01:00:00"}, "has no time zone"),
        ({"report_shards_file_names": [], "shard_count": 0}, r"its files have the formats \[\]"),
    ],
)
def test_incomplete_gcs_report_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        gcs_read(tmp_path, gcs_manifest(**changes))


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_only_live_gcs_objects_are_marked_as_latest(tmp_path: Path, file_format: str) -> None:
    named = {"bucket": "lake", "size": 3, "updated": AT, "metageneration": 2, "generation": 17, "storageClass": "STANDARD"}
    rows = [{"name": "a\nb", **named, "timeDeleted": None}, {"name": "c", **named, "timeDeleted": SCAN}]
    found = normalize(tmp_path / "shard", rows, file_format, gcs.normalize_rows, "lake")
    assert [(row["key"], row["is_latest"], row["etag"], row["version_id"], row["last_modified"]) for row in found] == [
        (b"a\nb", True, "17.2", "17", AT),
        (b"c", False, "17.2", "17", AT),
    ]
    with pytest.raises(FormatError, match="a row belongs to bucket 'lake', expected 'other'"):
        normalize(tmp_path / "shard", rows, file_format, gcs.normalize_rows, "other")
