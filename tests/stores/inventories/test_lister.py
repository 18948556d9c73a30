"""What a report shows is what the listing of a real bucket shows; and what a report must be to be believed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gc_assets.config.models import StorageConfig
from gc_assets.core.errors import StoreError
from gc_assets.stores.protocol import INVENTORY_SCHEMA, Lister, Listed, Problem
from tests.stores.contract import inventory
from tests.stores.inventories.written import OwnReport, Row, S3Report, in_bucket, lister_of, on_disk, rows_of
from tests.stores.s3_bench import S3Bench, in_a_bucket

S3_FORMATS = ("CSV", "ORC", "Parquet")
OWN_FORMATS = ("csv", "parquet")
# Each breaks a reader that decodes, trims, quotes or normalises.
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
    """A scan that begins after everything that was put, in whole minutes as folders are named."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)


def listed(lister: Lister, now: datetime, budget: int = 10**9) -> tuple[list[Row], list[Problem], int]:
    tasks: list[Any] = list(lister.plan(2, now, frozenset(), now).tasks)
    steps: list[Listed] = []
    while tasks:
        for step in pickle.loads(pickle.dumps(tasks.pop())).run(budget):  # noqa: S301  (bytes made on this line)
            steps.append(step)
            tasks += step.leftover
    rows = pa.Table.from_batches([step.objects for step in steps], schema=INVENTORY_SCHEMA).to_pylist()
    return rows, [problem for step in steps for problem in step.problems], sum(step.report_rows for step in steps)


def shown(lister: Lister, now: datetime, budget: int = 10**9) -> dict[str, Row]:
    """Rows by their keys, each of which was met once, but for where they come from."""
    rows, problems, _ = listed(lister, now, budget)
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


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "versions"])
def bench(request: pytest.FixtureRequest) -> Iterator[S3Bench]:
    with in_a_bucket("ceph", versioned=request.param) as bench:
        fill(bench)
        yield bench


@pytest.mark.parametrize("file_format", S3_FORMATS)
def test_an_s3_inventory_shows_what_the_listing_shows(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    S3Report(rows_of(bench), scan(), file_format, bench.bucket).write(on_disk(tmp_path))
    assert shown(lister_of(bench, str(tmp_path)), scan()) == inventory(bench.store)


@pytest.mark.parametrize("file_format", OWN_FORMATS)
def test_a_report_of_ones_own_shows_what_the_listing_shows(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    OwnReport(rows_of(bench), scan(), file_format, bench.bucket).write(on_disk(tmp_path))
    assert shown(lister_of(bench, str(tmp_path), "plain"), scan()) == inventory(bench.store)


def test_a_report_in_another_bucket_shows_the_same(bench: S3Bench) -> None:
    with in_a_bucket("ceph", own=True) as reports:
        S3Report(rows_of(bench), scan(), "Parquet", bench.bucket).write(in_bucket(reports.client, reports.bucket, reports.prefix))
        assert shown(lister_of(bench, reports.store.location), scan()) == inventory(bench.store)


@pytest.mark.parametrize("file_format", S3_FORMATS)
def test_columns_are_taken_in_the_order_that_the_schema_names(bench: S3Bench, tmp_path: Path, file_format: str) -> None:
    fields = ["ETag", "LastModifiedDate", "Key", "StorageClass", "Size", "Bucket"]
    fields += ["IsDeleteMarker", "IsLatest", "VersionId"] if bench.mode == "versioned" else []
    S3Report(rows_of(bench), scan(), file_format, bench.bucket, fields=fields).write(on_disk(tmp_path))
    assert shown(lister_of(bench, str(tmp_path)), scan()) == inventory(bench.store)


def test_a_file_beyond_the_budget_is_left_over_and_read_in_another_round(bench: S3Bench, tmp_path: Path) -> None:
    S3Report(rows_of(bench), scan(), "CSV", bench.bucket, files=3).write(on_disk(tmp_path))
    lister = lister_of(bench, str(tmp_path))
    (task,) = lister.plan(2, scan(), frozenset(), scan()).tasks
    (first,) = task.run(1)
    assert (first.objects.num_rows, len(first.leftover)) == (0, 3)
    assert shown(lister, scan(), budget=1) == inventory(bench.store)


# Rows that no bucket was asked for.

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCAN = NOW - timedelta(hours=8)


def row(key: str, **values: Any) -> Row:
    named = {"bucket": "source", "key": key, "size": 1, "last_modified_date": SCAN - timedelta(days=9), "e_tag": "e", "storage_class": "STANDARD"}
    return {**named, "encryption_status": "SSE-S3", **values}


class _Bucket:
    """A fake of `Subject`: a storage that no server holds, so that a report can say anything."""

    bucket = "source"

    def __init__(self, prefix: str = "lake/", versions: bool = False) -> None:
        self.prefix, self.versions = prefix, versions

    def has_versions(self) -> bool:
        return self.versions

    def identities(self, etags: Any, sizes: Any, modified: Any) -> Any:
        del sizes, modified
        return etags

    def size_of(self, key: str) -> int | None:
        raise AssertionError(key)
