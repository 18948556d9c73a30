"""The S3 benchmark compares equal work on a real server and counts every request."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from benchmarks import iceberg_lake
from benchmarks.__main__ import main
from benchmarks.run_stages import build_stages
from benchmarks.s3 import deletion, listing, report
from benchmarks.s3.deletion import Side
from benchmarks.s3.lake import BUCKET, PREFIX, S3Lake
from benchmarks.s3.requests import AccessLog, Request, count_by_kind, parse_lines
from benchmarks.s3.run import Results, containers_of
from gc_assets.config.file import load_config
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import config_models
from tests.depth import full_suite_only
from tests.s3.servers import S3Server

pytestmark = full_suite_only

SIZE = iceberg_lake.Size(tables=2, commits=3, files_per_commit=20)
KEYS = 10
LINE = '2026-11-22T19:38:37.078+0000 7f40 1 beast: 0x7f40: ::1 - owner [22/Nov/2026:19:38:37.050 +0000] "{}" {} 1 - "Boto3" - latency=0.02s'


@pytest.fixture(scope="module")
def lake(ceph: S3Server, tmp_path_factory: pytest.TempPathFactory) -> S3Lake:
    built = S3Lake(tmp_path_factory.mktemp("benchmark") / "lake")
    iceberg_lake.build(built, SIZE)
    ceph.client().create_bucket(Bucket=BUCKET)
    built.upload(ceph)
    return built


@pytest.fixture
def log(ceph: S3Server) -> AccessLog:
    """The requests from now on."""
    access_log = AccessLog(ceph)
    access_log.take()
    return access_log


def test_pyiceberg_reads_all_files_of_an_uploaded_lake(lake: S3Lake, ceph: S3Server, tmp_path: Path) -> None:
    properties = lake.config_on(ceph, tmp_path)["lakes"][0]["catalog"]
    found = {f"s3://{BUCKET}/{PREFIX}{key}" for key, _ in listing.build_boto3_listing(ceph, BUCKET, PREFIX)()}
    for name in lake.table_names():
        table = SqlCatalog(iceberg_lake.CATALOG_NAME, **properties).load_table(name)
        named = {task.file.file_path for task in table.scan().plan_files()}
        assert len(named) == 3 * 20 - 20 // 10
        assert named <= found


def test_all_tools_list_equal_keys(lake: S3Lake, ceph: S3Server, log: AccessLog) -> None:
    runs = listing.measure_listings(ceph, BUCKET, PREFIX, rounds=1)
    keys = sum(path.is_file() for path in lake.warehouse.rglob("*"))
    assert [(run.tool, run.keys) for run in runs] == [(tool, keys) for tool in (listing.BOTO3, listing.PAGES, listing.ROWS)]
    requests = count_by_kind(log.take())
    # Each side twice, first under an empty prefix. Ours also checks for versions and directories,
    # and lists before and after its prefix.
    assert set(requests) == {"LIST", "other"}
    assert requests["LIST"] >= 3 * 2


@pytest.mark.parametrize(
    "sides", [deletion.REQUESTS, deletion.WITHOUT_VERSIONS, deletion.WITH_VERSIONS], ids=["requests", "without_versions", "with_versions"]
)
def test_every_tool_reports_refused_keys(sides: tuple[Side, ...], ceph: S3Server, log: AccessLog) -> None:
    runs = deletion.measure_deletions(ceph, log, sides, KEYS, rounds=1)
    looks = {} if sides is deletion.REQUESTS else {"HEAD": KEYS}
    assert runs[0].requests == {**looks, "DELETE of many": 1}
    assert len(list(report.lines(Results(0, 0, frozenset(), [], [runs], [])))) == 3 + len(sides)


def test_tool_that_hides_a_refused_key_fails(ceph: S3Server, log: AccessLog) -> None:
    silent = replace(deletion.REQUESTS[0], delete=lambda *batch: deletion.delete_with_boto3(*batch) and ())
    with pytest.raises(RuntimeError, match=r"boto3, delete_objects: expected 1 keys to be refused, found 0"):
        deletion.measure_deletions(ceph, log, (silent,), KEYS, rounds=1)


@pytest.mark.spark
def test_second_run_reads_only_new_containers(lake: S3Lake, ceph: S3Server, log: AccessLog, spark: SparkSession, tmp_path: Path) -> None:
    def read_containers(now: datetime) -> frozenset[str]:
        path = tmp_path / "lakes.yaml"
        path.write_text(json.dumps(lake.config_on(ceph, tmp_path / "state")))
        config = load_config(path, os.environ, config_models())
        for _, stage in build_stages(spark, RunContext.of(config, Clock(now), now.date(), as_of=now)):
            stage()
        return containers_of(log.take())

    first = read_containers(lake.now)
    before = set(lake.warehouse.rglob("*"))
    with iceberg_lake.add_one_percent(lake, SIZE) as later:
        lake.upload(ceph, [path for path in lake.warehouse.rglob("*") if path not in before and path.is_file()])
        log.take()
        second = read_containers(later)
    assert len(first) >= 2 * (3 + 3)
    assert len(second) == 2 * 2
    assert not first & second
    assert later - lake.now == timedelta(days=1)


@pytest.mark.parametrize(
    "line, status, expected",
    [
        ("PUT /b/a%20b/%C3%A4.parquet HTTP/1.1", 200, Request("PUT", "b", "a b/ä.parquet", 200)),
        ("HEAD /b/a HTTP/1.1", 404, Request("HEAD", "b", "a", 404)),
        ("GET /b?list-type=2&prefix=a HTTP/1.1", 200, Request("LIST", "b", "", 200)),
        ("GET /b?versions&prefix=a HTTP/1.1", 200, Request("LIST", "b", "", 200)),
        ("GET /b?versioning HTTP/1.1", 200, Request("other", "b", "", 200)),
        ("GET /b/a?versionId=x HTTP/1.1", 206, Request("GET", "b", "a", 206)),
        ("POST /b?delete HTTP/1.1", 200, Request("DELETE of many", "b", "", 200)),
        ("DELETE /b/a HTTP/1.1", 204, Request("DELETE", "b", "a", 204)),
    ],
)
def test_access_log_line_is_parsed_as_a_request(line: str, status: int, expected: Request) -> None:
    assert list(parse_lines(["something else", LINE.format(line, status)])) == [expected]


def test_size_of_another_benchmark_is_refused() -> None:
    result = CliRunner().invoke(main, ["s3", "--size", "w"])
    assert result.exit_code == 2
    assert "s3 has s, m and l" in result.output
