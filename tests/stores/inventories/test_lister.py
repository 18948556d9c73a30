"""A report lists what the listing of a real bucket lists, and an unusable report is refused."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from codecs import BOM_UTF8
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gc_assets.buckets.protocol import Versioning
from gc_assets.config.models import InventoryConfig, StorageConfig
from gc_assets.core.errors import StoreError
from gc_assets.stores.inventories.lister import ReportLister
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.local.report_files import LocalReportFiles
from gc_assets.stores.protocol import Lister, ListingBatch, Problem
from tests.stores.contract import inventory
from tests.stores.inventories.report_builders import (
    AzureReport,
    GcsReport,
    PlainReport,
    Row,
    S3Report,
    list_rows,
    open_report_lister,
    write_to_bucket,
    write_to_disk,
)
from tests.stores.s3_bench import S3Bench, open_s3_bench

S3_FORMATS = ("CSV", "ORC", "Parquet")
PLAIN_FORMATS = ("csv", "parquet")
# Each breaks a reader that decodes, trims, quotes or normalizes.
ODD = [
    "a",
    "sp ace/plus+/%2F/%252F",
    "double//slash",
    "dot/./x",
    "folder/",
    'quo"te,comma',
    "new\nline\r\nand\ttab",
    "e\u0301/\u00e9/\U0001f980",
    "NULL",
    "nan",
    "true",
    "x" * 800,
    " leading and trailing ",
]
RESERVED = [".gc-assets/lease", ".gc-assets/trash/p/a"]


def scan() -> datetime:
    """Return a scan time after all writes, in whole minutes like the names of folders."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)


def run_listing(lister: Lister, now: datetime, budget: int = 10**9) -> tuple[list[Row], list[Problem], int]:
    tasks: list[Any] = list(lister.plan(2, now, frozenset(), now, None).tasks)
    steps: list[ListingBatch] = []
    while tasks:
        for step in pickle.loads(pickle.dumps(tasks.pop())).run(budget):  # noqa: S301  (bytes made on this line)
            steps.append(step)
            tasks += step.leftover
    rows = pa.Table.from_batches([step.objects for step in steps], schema=INVENTORY_SCHEMA).to_pylist()
    return rows, [problem for step in steps for problem in step.problems], sum(step.report_rows for step in steps)


def list_by_key(lister: Lister, now: datetime, budget: int = 10**9) -> dict[str, Row]:
    """Return the rows by key, each listed once, without their source."""
    rows, problems, _ = run_listing(lister, now, budget)
    assert not problems
    by_key = {row["key"]: {**row, "source": "listing"} for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def fill(bench: S3Bench) -> None:
    for number, key in enumerate([*ODD, *RESERVED]):
        bench.put(key, b"x" * number)
    if bench.mode == "versioned":
        bench.put("a", b"newer")
        bench.put("deleted", b"old")
        bench.client.delete_object(Bucket=bench.bucket, Key=bench.prefix + "deleted")
    bench.client.put_object(Bucket=bench.bucket, Key=bench.prefix.rstrip("/") + "-beside", Body=b"outside")


@pytest.fixture(scope="module", params=[False, True], ids=["unversioned", "versioned"])
def bench(request: pytest.FixtureRequest) -> Iterator[S3Bench]:
    with open_s3_bench("ceph", versioned=request.param) as bench:
        fill(bench)
        yield bench


@pytest.mark.parametrize("file_format", S3_FORMATS)
def test_s3_inventory_report_equals_the_listing(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    S3Report(list_rows(bench), scan(), file_format, bench.bucket).write(write_to_disk(tmp_path))
    assert list_by_key(open_report_lister(bench, str(tmp_path)), scan()) == inventory(bench.store)


@pytest.mark.parametrize("file_format", PLAIN_FORMATS)
def test_plain_report_equals_the_listing(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    PlainReport(list_rows(bench), scan(), file_format, bench.bucket).write(write_to_disk(tmp_path))
    assert list_by_key(open_report_lister(bench, str(tmp_path), "plain"), scan()) == inventory(bench.store)


def test_report_in_another_bucket_equals_the_listing(bench: S3Bench) -> None:
    with open_s3_bench("ceph", own=True) as reports:
        S3Report(list_rows(bench), scan(), "Parquet", bench.bucket).write(write_to_bucket(reports.client, reports.bucket, reports.prefix))
        assert list_by_key(open_report_lister(bench, reports.store.location), scan()) == inventory(bench.store)


@pytest.mark.parametrize("file_format", S3_FORMATS)
def test_csv_columns_are_read_in_schema_order(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    fields = ["ETag", "LastModifiedDate", "Key", "StorageClass", "Size", "Bucket"]
    fields += ["IsDeleteMarker", "IsLatest", "VersionId"] if bench.mode == "versioned" else []
    S3Report(list_rows(bench), scan(), file_format, bench.bucket, fields=fields).write(write_to_disk(tmp_path))
    assert list_by_key(open_report_lister(bench, str(tmp_path)), scan()) == inventory(bench.store)


def test_report_file_beyond_the_row_budget_is_postponed(bench: S3Bench, tmp_path: Path) -> None:
    S3Report(list_rows(bench), scan(), "CSV", bench.bucket, files=3).write(write_to_disk(tmp_path))
    lister = open_report_lister(bench, str(tmp_path))
    (task,) = lister.plan(2, scan(), frozenset(), scan(), None).tasks
    (first,) = task.run(1)
    assert (first.objects.num_rows, len(first.leftover)) == (0, 3)
    assert list_by_key(lister, scan(), budget=1) == inventory(bench.store)


# Rows without a bucket

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCAN = NOW - timedelta(hours=8)


def row(key: str, **values: Any) -> Row:
    defaults = {
        "bucket": "source",
        "key": key,
        "size": 1,
        "last_modified_date": SCAN - timedelta(days=9),
        "e_tag": "e",
        "storage_class": "STANDARD",
    }
    return {**defaults, "encryption_status": "SSE-S3", **values}


class FakeBucket:
    """The part of a `ConditionalBucket` that reports need, without a server."""

    name = "source"

    def __init__(self, prefix: str = "lake/", versions: bool = False) -> None:
        self.prefix, self._versioning = prefix, Versioning("Enabled" if versions else None)

    def versioning(self, role: str) -> Versioning:
        assert role == "read"
        return self._versioning

    def list_pages(self, prefix: str, *, delimiter: str) -> Iterator[Any]:
        """List no object, so that `doctor` has nothing to look for in a report."""
        del prefix, delimiter
        return iter(())


def open_lister(location: Path, kind: str = "s3", bucket: FakeBucket | None = None, **settings: Any) -> ReportLister:
    inventory = InventoryConfig.model_validate({"kind": kind, "location": str(location), **settings})
    return ReportLister(inventory, bucket or FakeBucket(), LocalReportFiles())


def list_rows_and_problems(lister: ReportLister) -> tuple[dict[str, Row], list[Problem]]:
    steps = [step for task in lister.plan(2, NOW, frozenset(), NOW, None).tasks for step in task.run(10**9)]
    rows = [row for step in steps for row in step.objects.to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row for row in rows}, [problem for step in steps for problem in step.problems]


def unreadable(lister: ReportLister) -> str:
    (problem,) = list_rows_and_problems(lister)[1]
    assert problem.is_incomplete
    return f"{problem.key}: {problem.detail}"


def refusal(lister: ReportLister) -> str:
    with pytest.raises(StoreError) as refused:
        lister.plan(2, NOW, frozenset(), NOW, None)
    return str(refused.value)


names = st.text(st.sampled_from("/.ab \t\r\n\"',+%2F\x00\x01\x7f\u00e9e\u0301\U0001f980\ufeff"), min_size=1, max_size=12)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(found=st.lists(names | st.text(min_size=1, max_size=9).filter(lambda key: key.isprintable()), min_size=1, max_size=9, unique=True))
@pytest.mark.parametrize("kind, file_format", [("s3", "CSV"), ("s3", "ORC"), ("s3", "Parquet"), ("plain", "csv"), ("plain", "parquet")])
def test_report_keys_are_read_byte_for_byte(tmp_path: Path, kind: str, file_format: str, found: list[str]) -> None:
    rows = [row(f"lake/{key}", size=number) for number, key in enumerate(found)]
    written = S3Report(rows, SCAN, file_format) if kind == "s3" else PlainReport(rows, SCAN, file_format)
    written.write(write_to_disk(tmp_path))
    rows_by_key, problems = list_rows_and_problems(open_lister(tmp_path, kind))
    assert {key: list_by_key["size_bytes"] for key, list_by_key in rows_by_key.items()} == {key: number for number, key in enumerate(found)}
    assert not problems


@pytest.mark.parametrize("file_format", S3_FORMATS)
def test_rows_outside_the_storage_are_dropped(tmp_path: Path, file_format: str) -> None:
    versions = {"version_id": "v1", "is_latest": True, "is_delete_marker": False}
    marker = row("lake/deleted", **{**versions, "is_delete_marker": True, "size": None, "e_tag": None})
    older = row("lake/deleted", **{**versions, "version_id": "v0", "is_latest": False})
    others = [row(key, **versions) for key in ("lakes/x", "lak", "other/a", "lake/.gc-assets/lease/1", "LAKE/a")]
    S3Report([row("lake/a", **versions), marker, older, *others], SCAN, file_format).write(write_to_disk(tmp_path))
    rows, problems = list_rows_and_problems(open_lister(tmp_path, bucket=FakeBucket(versions=True)))
    assert {key: list_by_key["version_id"] for key, list_by_key in rows.items()} == {"a": "v1"}
    assert not problems


def test_key_without_valid_address_is_reported_and_kept(tmp_path: Path) -> None:
    rows = [f'"source","lake/{name}","1","2026-11-01T00:00:00.000Z","e"' for name in ("", "a", "%FF")]
    content = gzip.compress("\n".join(rows).encode())
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    files = [{"key": "reports/source/daily/data/x.csv.gz", "size": len(content), "MD5checksum": md5}]
    fields = ["Bucket", "Key", "Size", "LastModifiedDate", "ETag"]
    S3Report([], SCAN, fields=fields, manifest={"files": files}).write(write_to_disk(tmp_path))
    write_to_disk(tmp_path)("data/x.csv.gz", content)
    found, problems = list_rows_and_problems(open_lister(tmp_path))
    assert list(found) == ["a"]
    assert [(problem.key, problem.kind, problem.is_incomplete) for problem in problems] == [
        ("\\xff", "not_utf8", False),
        ("", "special", False),
    ]


def test_azure_key_that_no_url_can_contain_is_reported_and_kept(tmp_path: Path) -> None:
    unnamed, named = ["./a", "t/x/../a", "t\\.\\a", "t/.."], [".a", "t/..a", "t/a.", "t/.../a"]
    AzureReport([f"source/lake/{key}" for key in (*unnamed, *named)], SCAN).write(write_to_disk(tmp_path))
    found, problems = list_rows_and_problems(open_lister(tmp_path, "azure"))
    assert sorted(found) == sorted(named)
    assert [(problem.key, problem.kind, problem.is_incomplete) for problem in problems] == [(key, "special", False) for key in unnamed]
    S3Report([row("lake/t/../a")], SCAN).write(write_to_disk(tmp_path))
    assert list(list_rows_and_problems(open_lister(tmp_path))[0]) == ["t/../a"], "the S3 client sends it"


def test_version_ids_of_an_unversioned_bucket_are_dropped(tmp_path: Path) -> None:
    S3Report([row("lake/a", version_id="", is_latest=True, is_delete_marker=False)], SCAN).write(write_to_disk(tmp_path))
    assert list_rows_and_problems(open_lister(tmp_path))[0]["a"]["version_id"] is None


def test_object_from_before_versioning_has_version_null(tmp_path: Path) -> None:
    S3Report([row("lake/a", version_id=None, is_latest=True, is_delete_marker=False)], SCAN).write(write_to_disk(tmp_path))
    assert list_rows_and_problems(open_lister(tmp_path, bucket=FakeBucket(versions=True)))[0]["a"]["version_id"] == "null"


# Which report counts


def test_newest_finished_report_is_used(tmp_path: Path) -> None:
    for hours, key in ((60, "oldest"), (30, "older"), (8, "newest")):
        S3Report([row(f"lake/{key}")], NOW - timedelta(hours=hours), files=1).write(write_to_disk(tmp_path))
    assert list(list_rows_and_problems(open_lister(tmp_path))[0]) == ["newest"]


def test_unfinished_report_is_skipped_and_reported_by_doctor(tmp_path: Path) -> None:
    S3Report([row("lake/before")], SCAN - timedelta(days=1), files=1).write(write_to_disk(tmp_path))
    S3Report([row("lake/unfinished")], SCAN, files=1, unfinished=True).write(write_to_disk(tmp_path))
    lister = open_lister(tmp_path)
    assert list(list_rows_and_problems(lister)[0]) == ["before"]
    findings = list(lister.examine(StorageConfig(name="s", location="s3://source/lake/"), NOW))
    assert [(finding.check, finding.verdict) for finding in findings] == [("inventory", "warn"), ("inventory", "ok")]
    assert "2026-11-22T04-00Z/manifest.checksum: not finished" in findings[0].found
    assert "2026-11-21T04-00Z/manifest.json: scan of 2026-11-21T04:00:00+00:00, 1d8h ago, 1 files" in findings[1].found


OLDER = SCAN - timedelta(days=1)
NARROWER: dict[str, dict[str, Any]] = {
    "another container": {"filters": {"prefixMatch": ["other/"]}},
    "another prefix": {"filters": {"prefixMatch": ["source/lake/sub/"]}},
    "all containers": {"filters": {"prefixMatch": None}},
    "containers instead of blobs": {"rule": {"objectType": "container"}},
    "young blobs": {"filters": {"creationTime": {"lastNDays": 7}}},
    "without a prefix": {"filters": {"excludePrefix": ["source/lake/tmp/"]}},
    "without etags": {"rule": {"schemaFields": ["Name", "Creation-Time", "Content-Length", "Last-Modified"]}},
    "without append blobs": {"filters": {"blobTypes": ["blockBlob"]}},
    "a failed scan of another container": {"filters": {"prefixMatch": ["other/"]}, "manifest": {"status": "Failed"}},
}


OF_ANOTHER_PREFIX = {"prefixMatch": ["source/other/"]}
UNUSABLE: dict[str, dict[str, Any]] = {
    "a failed scan of another prefix": {"filters": OF_ANOTHER_PREFIX, "manifest": {"status": "Failed"}},
    "a failed scan": {"manifest": {"status": "Failed"}},
    "a pending scan without a summary": {"manifest": {"status": "Pending", "summary": None}},
    "filters in a list": {"manifest": {"ruleDefinition": {"filters": ["source/"], "format": "csv", "objectType": "blob"}}},
    "a wrong checksum": {"spoil": lambda name, content: b"0" * 32 if name.endswith(".checksum") else content},
    "no JSON": {"spoil": lambda name, content: b"\xff" if name.endswith(".json") else content},
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_report_is_skipped_and_reported_by_doctor(tmp_path: Path, case: str) -> None:
    AzureReport(["source/lake/a"], OLDER).write(write_to_disk(tmp_path))
    AzureReport(["source/lake/b"], SCAN, "audit", **UNUSABLE[case]).write(write_to_disk(tmp_path))
    lister = open_lister(tmp_path, "azure")
    assert list(list_rows_and_problems(lister)[0]) == ["a"]
    findings = list(lister.examine(StorageConfig(name="s", location="s3://source/lake/"), NOW))
    assert [finding.verdict for finding in findings] == ["warn", "ok"]
    assert "2026/11/22/04-00-00/audit/audit-manifest.json" in findings[0].found


def test_folder_without_a_valid_time_is_no_report(tmp_path: Path) -> None:
    AzureReport(["source/lake/a"], SCAN).write(write_to_disk(tmp_path))
    write_to_disk(tmp_path)("2026/13/32/04-00-00/rule/rule-manifest.json", b"{}")
    assert list(list_rows_and_problems(open_lister(tmp_path, "azure"))[0]) == ["a"]
    GcsReport(["lake/a"], SCAN).write(write_to_disk(tmp_path))
    write_to_disk(tmp_path)("7f_2026-13-32T04:00_manifest.json", b"{}")
    assert list(list_rows_and_problems(open_lister(tmp_path, "gcs"))[0]) == ["a"]


@pytest.mark.parametrize("case", NARROWER)
def test_azure_rules_can_share_a_container(tmp_path: Path, case: str) -> None:
    AzureReport(["source/lake/a"], OLDER).write(write_to_disk(tmp_path))
    AzureReport(["source/lake/b"], SCAN, "audit", **NARROWER[case]).write(write_to_disk(tmp_path))
    assert list(list_rows_and_problems(open_lister(tmp_path, "azure"))[0]) == ["a"]


def test_azure_rule_without_versions_is_skipped_only_if_the_container_has_versions(tmp_path: Path) -> None:
    AzureReport(["source/lake/a"], OLDER, filters={"includeBlobVersions": True}).write(write_to_disk(tmp_path))
    AzureReport(["source/lake/b"], SCAN, "audit").write(write_to_disk(tmp_path))
    for versions, report in ((False, SCAN), (True, OLDER)):
        found = open_lister(tmp_path, "azure", FakeBucket(versions=versions)).plan(2, NOW, frozenset(), NOW, None).report
        assert found is not None
        assert found.as_of == report


@pytest.mark.parametrize(
    "options, filters", [("object_metadata_report_options", "storage_filters"), ("objectMetadataReportOptions", "storageFilters")]
)
def test_gcs_configurations_can_share_a_folder(tmp_path: Path, options: str, filters: str) -> None:
    GcsReport(["lake/a"], OLDER).write(write_to_disk(tmp_path))
    GcsReport(["lake/b"], SCAN, "8f", "other", options, filters).write(write_to_disk(tmp_path))
    lister = open_lister(tmp_path, "gcs", FakeBucket(versions=True))
    assert list(list_rows_and_problems(lister)[0]) == ["a"]


def test_gcs_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GcsReport(["lake/a"], OLDER).write(write_to_disk(tmp_path))
    for hours in (1, 2, 3):
        GcsReport(["lake/b"], SCAN + timedelta(hours=hours), "8f", "other").write(write_to_disk(tmp_path))
    listed, files = list[str](), LocalReportFiles.files
    monkeypatch.setattr(LocalReportFiles, "files", lambda self, location: (listed.append(location), files(self, location))[1])
    assert list(list_rows_and_problems(open_lister(tmp_path, "gcs"))[0]) == ["a"]
    assert listed == [f"{tmp_path}/"]


def test_refusal_of_a_shared_container_gives_the_reason_of_the_own_rule(tmp_path: Path) -> None:
    AzureReport([], OLDER, filters={"creationTime": {"lastNDays": 7}}).write(write_to_disk(tmp_path))
    AzureReport([], SCAN, "audit", filters={"prefixMatch": ["other/"]}).write(write_to_disk(tmp_path))
    message = refusal(open_lister(tmp_path, "azure"))
    assert "2026/11/21/04-00-00/rule/rule-manifest.json: it lists only blobs of the last 7 days" in message
    assert "No other report since 2026-11-19T12:00:00+00:00 covers the storage" in message


@pytest.mark.parametrize("age, is_found", [("32h", True), ("31h59m", False)])
def test_skipping_ends_at_max_inventory_age(tmp_path: Path, age: str, is_found: bool) -> None:
    PlainReport([row("lake/a")], OLDER).write(write_to_disk(tmp_path))
    PlainReport([row("lake/b")], SCAN, bucket="other").write(write_to_disk(tmp_path))
    lister = open_lister(tmp_path, "plain", max_inventory_age=age)
    if is_found:
        assert list(list_rows_and_problems(lister)[0]) == ["a"]
    else:
        assert "lists bucket 'other', expected 'source'; correct `inventory.location`" in refusal(lister)


def test_refusal_mentions_a_report_that_is_not_finished(tmp_path: Path) -> None:
    S3Report([row("lake/a")], OLDER, manifest={"sourceBucket": "other"}).write(write_to_disk(tmp_path))
    S3Report([row("lake/a")], SCAN, unfinished=True).write(write_to_disk(tmp_path))
    message = refusal(open_lister(tmp_path))
    assert "lists bucket 'other', expected 'source'" in message
    assert "2026-11-22T04-00Z/manifest.checksum is missing" in message


# Filters of Azure rules, relative to the storage source/lake/


@pytest.mark.parametrize(
    "filters, message",
    [
        ({"excludePrefix": ["source/lake/tmp/"]}, "excludes keys that begin with 'lake/tmp/', but the storage has the prefix 'lake/'"),
        ({"excludePrefix": ["source/la"]}, "excludes keys that begin with 'la', but"),
        ({"excludePrefix": ["other/", "sou"]}, "excludes keys that begin with '', but"),
        ({"creationTime": {"lastNDays": 30}}, "it lists only blobs of the last 30 days; remove creationTime from the rule"),
        ({"blobTypes": ["blockBlob"]}, "it lists no blobs of type appendBlob; add it to blobTypes of the rule"),
        ({"blobTypes": ["appendBlob", "pageBlob"]}, "it lists no blobs of type blockBlob; add it"),
        ({"blobTypes": None}, "it lists no blobs of type appendBlob, blockBlob; add"),
    ],
)
def test_filtered_azure_report_is_refused_with_the_filter(tmp_path: Path, filters: dict[str, Any], message: str) -> None:
    AzureReport(["source/lake/a"], SCAN, filters=filters).write(write_to_disk(tmp_path))
    assert message in refusal(open_lister(tmp_path, "azure"))


WAY_OUT = "Wait for another report, or remove `inventory` to list the storage"
MALFORMED: dict[str, tuple[AzureReport | GcsReport | S3Report | PlainReport, str]] = {
    "filters in a list": (
        AzureReport([], SCAN, manifest={"ruleDefinition": {"filters": []}}),
        "ruleDefinition.filters is [], expected an object",
    ),
    "filters in a text": (
        AzureReport([], SCAN, manifest={"ruleDefinition": {"filters": "x"}}),
        "ruleDefinition.filters is 'x', expected an",
    ),
    "a rule in a list": (AzureReport([], SCAN, manifest={"ruleDefinition": []}), "ruleDefinition is [], expected an object"),
    "a prefix that is null": (
        AzureReport([], SCAN, filters={"prefixMatch": ["source/", None]}),
        "prefixMatch.1 is None, expected a valid string",
    ),
    "prefixes in a text": (AzureReport([], SCAN, filters={"prefixMatch": "source/"}), "filters.prefixMatch is 'source/', expected"),
    "an exclusion that is a number": (
        AzureReport([], SCAN, filters={"excludePrefix": [1]}),
        "excludePrefix.0 is 1, expected a valid string",
    ),
    "blob types in a mapping": (AzureReport([], SCAN, filters={"blobTypes": {"blockBlob": 1}}), "blobTypes is {'blockBlob': 1}, expected"),
    "a creation time of text": (AzureReport([], SCAN, filters={"creationTime": "7d"}), "filters.creationTime is '7d', expected an object"),
    "fields in a text": (AzureReport([], SCAN, rule={"schemaFields": "Name"}), "ruleDefinition.schemaFields is 'Name', expected"),
    "a flag of text": (
        AzureReport([], SCAN, filters={"includeBlobVersions": "no"}),
        "includeBlobVersions is 'no', expected a valid boolean",
    ),
    "no files": (AzureReport([], SCAN, manifest={"files": None}), "files is None, expected a valid"),
    "a file of text": (AzureReport([], SCAN, manifest={"files": ["a.csv"]}), "files.0 is 'a.csv', expected an object"),
    "a number in a text": (
        AzureReport([], SCAN, manifest={"summary": {"objectCount": "3"}}),
        "summary.objectCount is '3', expected a valid integer",
    ),
    "a summary in a list": (AzureReport([], SCAN, manifest={"summary": []}), "summary is [], expected an object"),
    "a time in words": (
        AzureReport([], SCAN, manifest={"inventoryStartTime": "noon"}),
        "inventoryStartTime is 'noon', expected a time in ISO 8601",
    ),
    "a time that is a number": (
        AzureReport([], SCAN, manifest={"inventoryStartTime": 7}),
        "inventoryStartTime is 7, expected a time in ISO 8601",
    ),
    "shards in a text": (
        GcsReport([], SCAN, manifest={"report_shards_file_names": "a.csv"}),
        "report_shards_file_names is 'a.csv', expected",
    ),
    "a shard without a name": (
        GcsReport([], SCAN, manifest={"report_shards_file_names": [None]}),
        "report_shards_file_names.0 is None, expected",
    ),
    "a bucket in a list": (GcsReport([], SCAN, bucket=["source"]), "bucket is ['source'], expected a valid string"),
    "a key that is null": (S3Report([], SCAN, manifest={"files": [{"key": None, "size": 1, "MD5checksum": "0"}]}), "files.0.key is None"),
    "a checksum that is null": (S3Report([], SCAN, manifest={"files": [{"key": "data/a", "size": 1}]}), "files.0.MD5checksum is missing"),
    "a schema in a list": (S3Report([], SCAN, manifest={"fileSchema": []}), "fileSchema is [], expected a valid string"),
    "versions in a text": (PlainReport([], SCAN, manifest={"versions": "yes"}), "versions is 'yes', expected a valid boolean"),
    "a checksum that is a number": (PlainReport([], SCAN, file={"md5": 1}), "files.0.md5 is 1, expected a valid string"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_manifest_is_refused_with_field_and_next_step(tmp_path: Path, case: str) -> None:
    report, finding = MALFORMED[case]
    report.write(write_to_disk(tmp_path))
    kind = type(report).__name__.removesuffix("Report").lower()
    message = refusal(open_lister(tmp_path, kind))
    assert str(tmp_path) in message
    assert "manifest.json" in message
    assert finding in message
    assert WAY_OUT in message


@pytest.mark.parametrize("excluded", ["", "source/other/", "source/lake2", "sources", "lake/", "source/lake/.gc-assets/"])
def test_azure_rule_may_exclude_what_the_storage_does_not_list(tmp_path: Path, excluded: str) -> None:
    AzureReport(["source/lake/a"], SCAN, filters={"excludePrefix": [excluded]}).write(write_to_disk(tmp_path))
    assert list(list_rows_and_problems(open_lister(tmp_path, "azure"))[0]) == ["a"]


def test_report_time_is_the_earlier_of_folder_and_manifest(tmp_path: Path) -> None:
    earlier = SCAN - timedelta(hours=3)
    S3Report([row("lake/a")], SCAN, manifest={"creationTimestamp": str(int(earlier.timestamp() * 1000))}).write(write_to_disk(tmp_path))
    report = open_lister(tmp_path).plan(2, NOW, frozenset(), NOW, None).report
    assert report is not None
    assert (report.as_of, report.rows) == (earlier, None)


# Each edge from both sides.


@pytest.mark.parametrize("age, refused", [("8h", False), ("7h59m", True)])
def test_report_older_than_max_inventory_age_is_refused(tmp_path: Path, age: str, refused: bool) -> None:
    S3Report([row("lake/a")], SCAN).write(write_to_disk(tmp_path))
    lister = open_lister(tmp_path, max_inventory_age=age)
    if refused:
        assert "2026-11-22T04:00:00+00:00: older than max_inventory_age (7h59m)" in refusal(lister)
    else:
        assert list(list_rows_and_problems(lister)[0]) == ["a"]


def test_report_from_the_future_is_refused(tmp_path: Path) -> None:
    S3Report([row("lake/a")], NOW + timedelta(hours=1)).write(write_to_disk(tmp_path))
    assert "set the clocks" in refusal(open_lister(tmp_path))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no report": ({}, {}, "there is no report in"),
    "not finished": ({"unfinished": True}, {}, "manifest.checksum is missing. Wait for another report"),
    "another bucket": ({"manifest": {"sourceBucket": "other"}}, {}, "lists bucket 'other', expected 'source'"),
    "no versions": ({}, {"versions": True}, "Include all versions in the inventory"),
    "no etag": ({"fields": ["Bucket", "Key", "Size", "LastModifiedDate"]}, {}, "add the field ETag to the inventory configuration"),
    "no size": ({"fields": ["Bucket", "Key", "ETag", "LastModifiedDate"]}, {}, "add the field Size to the inventory configuration"),
    "no time": ({"fields": ["Bucket", "Key", "ETag", "Size"]}, {}, "add the field LastModifiedDate to the inventory configuration"),
    "another version": ({"manifest": {"version": "2030-01-01"}}, {}, "its version is '2030-01-01', but this release supports 2016-11-30"),
    "another format": ({"manifest": {"fileFormat": "Avro"}}, {}, "fileFormat is 'avro', expected 'csv', 'orc' or 'parquet'"),
    "no time of creation": ({"manifest": {"creationTimestamp": "soon"}}, {}, "expected milliseconds since 1970"),
    "a time beyond the calendar": ({"manifest": {"creationTimestamp": "9" * 30}}, {}, "expected milliseconds since 1970"),
    "no list of files": ({"manifest": {"files": None}}, {}, "files is None, expected a valid array"),
    "a damaged manifest": ({"spoil": lambda name, content: content[:-1] if name.endswith(".json") else content}, {}, "its MD5 is"),
    "a damaged checksum": (
        {"spoil": lambda name, content: b"0" * 32 if name.endswith("sum") else content},
        {},
        "expected 000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_s3_report_is_refused_with_reason(tmp_path: Path, case: str) -> None:
    defect, bucket, text = REFUSED[case]
    tmp_path.joinpath("data").mkdir()
    if case != "no report":
        S3Report([row("lake/a")], SCAN, **defect).write(write_to_disk(tmp_path))
    message = refusal(open_lister(tmp_path, bucket=FakeBucket(**bucket)))
    assert text in message
    assert str(tmp_path) in message


def _cut(name: str, content: bytes) -> bytes:
    return content[:-3] if name.startswith("data/") else content


def _flip_bit(name: str, content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:] if name.startswith("data/") else content


def _remove(name: str, content: bytes) -> bytes | None:
    return None if name.startswith("data/") else content


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "truncated file": ({"spoil": _cut}, "bytes, expected"),
    "flipped bit": ({"spoil": _flip_bit}, "its MD5 is"),
    "missing file": ({"spoil": _remove}, "No such file"),
    "of another bucket": ({"rows": [row("lake/a", bucket="other")]}, "a row belongs to bucket 'other', expected 'source'"),
    "without a size": ({"rows": [row("lake/a", size=None)]}, "the row of b'a' has no size_bytes"),
    "with a size of text": ({"rows": [row("lake/a", size="large")]}, "'large'"),
    "with a time of text": ({"rows": [row("lake/a", last_modified_date="lately")]}, "'lately'"),
    "with a flag of text": ({"rows": [row("lake/a", version_id="v", is_latest="may", is_delete_marker=False)]}, "'may', expected true"),
    "without an etag": ({"rows": [row("lake/a", e_tag=None)]}, "the row of b'a' has no etag"),
    "of another format": ({"manifest": {"fileFormat": "Parquet", "fileSchema": "message s3 { optional int64 size; optional int64 "
                          "last_modified_date; optional binary e_tag }"}}, "Parquet magic bytes not found"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_makes_the_listing_incomplete(tmp_path: Path, case: str) -> None:
    defect, text = DAMAGED[case]
    values: dict[str, Any] = {"rows": [row("lake/a")], "scan": SCAN, "files": 1, **defect}
    S3Report(**values).write(write_to_disk(tmp_path))
    message = unreadable(open_lister(tmp_path))
    assert text in message
    assert f"{tmp_path}/data/11220400-0000.csv.gz" in message


def test_row_without_is_latest_makes_the_listing_incomplete(tmp_path: Path) -> None:
    S3Report([row("lake/a", version_id="v", is_latest=None, is_delete_marker=False)], SCAN, files=1).write(write_to_disk(tmp_path))
    assert "a row has no value in is_latest" in unreadable(open_lister(tmp_path, bucket=FakeBucket(versions=True)))


PLAIN_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "keys that are not the storage's": (
        {"prefix": "lake/sub/"},
        "lists keys that begin with 'lake/sub/', but the storage has the prefix 'lake/'",
    ),
    "another bucket": ({"manifest": {"bucket": "other"}}, "lists bucket 'other'"),
    "no rows": ({"file": {"rows": None}}, "rows is None, expected a valid integer"),
    "a file in another folder": ({"file": {"name": "../part-0.parquet"}}, "expected a file name without a slash"),
    "no list of files": ({"manifest": {"files": "part-0.parquet"}}, "files is 'part-0.parquet', expected a valid"),
}


@pytest.mark.parametrize("case", PLAIN_REFUSED)
def test_unusable_plain_report_is_refused_with_reason(tmp_path: Path, case: str) -> None:
    defect, text = PLAIN_REFUSED[case]
    PlainReport([row("lake/a")], SCAN, **defect).write(write_to_disk(tmp_path))
    assert text in refusal(open_lister(tmp_path, "plain"))


def test_storage_without_prefix_contains_all_keys_of_the_bucket(tmp_path: Path) -> None:
    S3Report([row("lake/a"), row("b"), row(".gc-assets/x")], SCAN).write(write_to_disk(tmp_path))
    assert set(list_rows_and_problems(open_lister(tmp_path, bucket=FakeBucket(prefix="")))[0]) == {"lake/a", "b"}


@pytest.mark.parametrize("prefix", ["", "la", "lake/"])
def test_report_covers_storages_under_the_report_prefix(tmp_path: Path, prefix: str) -> None:
    PlainReport([row("lake/a")], SCAN, prefix=prefix).write(write_to_disk(tmp_path))
    assert list(list_rows_and_problems(open_lister(tmp_path, "plain"))[0]) == ["a"]


@pytest.mark.parametrize("file_format", PLAIN_FORMATS)
def test_file_with_missing_rows_makes_the_listing_incomplete(tmp_path: Path, file_format: str) -> None:
    PlainReport([row("lake/a")], SCAN, file_format, file={"rows": 2}).write(write_to_disk(tmp_path))
    assert "it has 1 rows, expected 2 from the manifest" in unreadable(open_lister(tmp_path, "plain"))


@pytest.mark.parametrize("missing", ["key", "size_bytes", "last_modified", "etag"])
def test_plain_report_without_a_column_is_refused(tmp_path: Path, missing: str) -> None:
    names = {"key": "key", "size_bytes": "size", "last_modified": "last_modified_date", "etag": "e_tag"}
    short = {name: value for name, value in row("lake/a").items() if name != names[missing]}
    PlainReport([short], SCAN).write(write_to_disk(tmp_path))
    assert f"there is no column {missing}, only" in unreadable(open_lister(tmp_path, "plain"))


def test_empty_report_lists_no_objects(tmp_path: Path) -> None:
    for file_format in S3_FORMATS:
        S3Report([], SCAN, file_format, files=1, fields=["Key", "Size", "LastModifiedDate", "ETag"]).write(write_to_disk(tmp_path))
        assert list_rows_and_problems(open_lister(tmp_path)) == ({}, [])


@pytest.mark.parametrize("first", [b"\n", b"\xff\xfe,key\n"])
def test_plain_csv_without_header_makes_the_listing_incomplete(tmp_path: Path, first: bytes) -> None:
    content = first + b"lake/a,1,2026-11-01T00:00:00Z,e\n"
    PlainReport([], SCAN, "csv", file={"size": len(content), "rows": 1}).write(write_to_disk(tmp_path))
    write_to_disk(tmp_path)(f"{SCAN:%Y-%m-%dT%H-%M-%SZ}/part-0.csv", content)
    assert "expected column names" in unreadable(open_lister(tmp_path, "plain"))


def test_byte_order_marks_in_manifest_and_csv_are_skipped(tmp_path: Path) -> None:
    put, folder = write_to_disk(tmp_path), f"{SCAN:%Y-%m-%dT%H-%M-%SZ}"
    content = b"key,size_bytes,last_modified,etag\nlake/a,1,2026-11-01T00:00:00Z,e\n"
    file = {"size": len(BOM_UTF8 + content), "rows": 1}
    PlainReport([], SCAN, "csv", file=file).write(lambda name, written: put(name, BOM_UTF8 + written))
    put(f"{folder}/part-0.csv", BOM_UTF8 + content)
    assert list(list_rows_and_problems(open_lister(tmp_path, "plain"))[0]) == ["a"]
