"""A report that lacks old objects of the storage is partial, and `doctor` finds out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.buckets.protocol import Page, Versioning
from gc_assets.config.models import InventoryConfig, StorageConfig
from gc_assets.core.errors import StoreError
from gc_assets.stores.inventories import lister as lister_module
from gc_assets.stores.inventories.completeness import MAX_LAG, must_list, sample_old_objects
from gc_assets.stores.inventories.lister import ReportLister
from gc_assets.stores.local.report_files import LocalReportFiles
from tests.stores.inventories.report_builders import AzureReport, GcsReport, PlainReport, S3Report, write_to_disk

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCAN = NOW - timedelta(hours=8)
OLD, DUE, YOUNG = SCAN - timedelta(days=9), SCAN - MAX_LAG - timedelta(seconds=1), SCAN - MAX_LAG
DATA, METADATA = "t/data/a.parquet", "t/metadata/v1.metadata.json"


@pytest.mark.parametrize("modified, expected", [(OLD, True), (DUE, True), (YOUNG, False), (SCAN - timedelta(hours=1), False), (NOW, False)])
def test_report_must_list_objects_that_are_two_days_older_than_its_scan(modified: datetime, expected: bool) -> None:
    assert must_list(SCAN, modified) is expected


class ListedBucket:
    """The part of a `ConditionalBucket` that lists keys, without a server. It counts the requests."""

    name, prefix = "source", "lake/"

    def __init__(self, objects: Mapping[str, datetime]) -> None:
        self.objects, self.requests = objects, 0

    def versioning(self, role: str) -> Versioning:
        del role
        return Versioning(None)

    def address(self, key: str) -> str:
        return f"s3://{self.name}/{self.prefix}{key}"

    def list_pages(self, prefix: str = "", *, delimiter: str) -> Iterator[Page]:
        self.requests += 1
        names = sorted(key.removeprefix(prefix).partition(delimiter) for key in self.objects if key.startswith(prefix))
        keys = [f"{prefix}{name}" for name, separator, _ in names if not separator]
        common = dict.fromkeys(f"{self.prefix}{prefix}{name}{delimiter}".encode() for name, separator, _ in names if separator)
        columns = {"sizes": [1] * len(keys), "etags": ["e"] * len(keys), "classes": [None] * len(keys)}
        modified = [self.objects[key].isoformat() for key in keys]
        names_of_keys = [f"{self.prefix}{key}".encode() for key in keys]
        yield Page(names_of_keys, modified=modified, common=list(common), version_ids=[], latest=[], markers=[], **columns)  # type: ignore[arg-type]


def sample(objects: Mapping[str, datetime]) -> set[str]:
    return set(sample_old_objects(ListedBucket(objects), SCAN))  # type: ignore[arg-type]


def test_old_objects_of_several_directories_are_sampled() -> None:
    keys = [f"db{number:02}/t/{name}" for number in range(5) for name in ("data/a", "metadata/b")]
    found = sample(dict.fromkeys(keys, OLD) | {f"db00/t/data/{number}": OLD for number in range(2_000)})
    assert {key for key in found if key.endswith("b")} == {f"db{number:02}/t/metadata/b" for number in (0, 1, 3, 4)}
    assert {key.rpartition("/")[0] for key in found} >= {"db00/t/data", "db00/t/metadata"}


def test_sample_lacks_young_objects_and_reserved_keys() -> None:
    assert sample({".gc-assets/lease": OLD, "a": YOUNG, "b/c": DUE, "b/../d": OLD}) == {"b/c"}


def test_large_storage_is_sampled_with_few_requests() -> None:
    bucket = ListedBucket({f"{a}/{b}/{c}/x": YOUNG for a in range(9) for b in range(9) for c in range(9)})
    assert sample_old_objects(bucket, SCAN) == {}  # type: ignore[arg-type]
    assert bucket.requests == 24


def row(key: str) -> dict[str, object]:
    return {"bucket": "source", "key": key, "size": 1, "last_modified_date": OLD, "e_tag": "e", "storage_class": "STANDARD"}


def write(kind: str, location: Path, keys: list[str]) -> None:
    names = [f"lake/{key}" for key in keys]
    rows = [row(name) for name in names]
    reports = {
        "s3": S3Report(rows, SCAN, files=len(rows) and 1, fields=["Bucket", "Key", "Size", "LastModifiedDate", "ETag"]),
        "plain": PlainReport(rows, SCAN, "csv"),
        "azure": AzureReport([f"source/{name}" for name in names], SCAN),
        "gcs": GcsReport(names, SCAN),
    }
    reports[kind].write(write_to_disk(location))


def examine(location: Path, kind: str, bucket: ListedBucket) -> str:
    lister = ReportLister(
        InventoryConfig.model_validate({"kind": kind, "location": str(location)}),
        bucket,  # type: ignore[arg-type]
        LocalReportFiles(),
    )
    (finding,) = lister.examine(StorageConfig(name="s", location="s3://source/lake/"), NOW)
    assert (finding.check, finding.verdict) == ("inventory", "ok")
    return finding.found


@pytest.mark.parametrize("listed", [[DATA], ["landing/a"], []], ids=["data of a table", "another prefix", "nothing"])
@pytest.mark.parametrize("kind", ["s3", "plain", "azure", "gcs"])
def test_doctor_refuses_a_partial_report(tmp_path: Path, kind: str, listed: list[str]) -> None:
    write(kind, tmp_path, listed)
    with pytest.raises(StoreError, match=r"is partial: .*lacks s3://source/lake/t/metadata/v1.metadata.json, .* or remove `inventory`"):
        examine(tmp_path, kind, ListedBucket(dict.fromkeys((*listed, METADATA), OLD)))


@pytest.mark.parametrize("kind", ["s3", "plain", "azure", "gcs"])
def test_doctor_accepts_a_report_that_lacks_young_objects(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, [DATA, METADATA])
    bucket = ListedBucket({DATA: OLD, METADATA: OLD, "t/data/b.parquet": YOUNG})
    assert ", contains 2 old objects of the storage that were looked for;" in examine(tmp_path, kind, bucket)


def test_doctor_accepts_an_empty_report_about_a_new_lake(tmp_path: Path) -> None:
    write("s3", tmp_path, [])
    assert "old object" not in examine(tmp_path, "s3", ListedBucket({DATA: YOUNG, METADATA: NOW}))


def test_doctor_does_not_compare_a_large_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("s3", tmp_path, [DATA])
    monkeypatch.setattr(lister_module, "MAX_COMPARED_BYTES", 10)
    assert "not compared with the storage because of its size" in examine(tmp_path, "s3", ListedBucket({METADATA: OLD}))


def test_doctor_reports_a_damaged_file_of_the_report(tmp_path: Path) -> None:
    write("plain", tmp_path, [DATA])
    (part,) = tmp_path.glob("*/part-0.csv")
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"part-0.csv: a file of report .*manifest.json: it has"):
        examine(tmp_path, "plain", ListedBucket({DATA: OLD}))
