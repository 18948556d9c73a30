"""Nights as job runs of EMR Serverless, by a server that speaks its API."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gc_assets.remote.emr_serverless import _EmrJob
from gc_assets.remote.spark_submit import ENTRY_POINT
from tests.depth import deep
from tests.job.nights import run, sales, with_spark
from tests.job.serverless import BUCKET, ROLE, Serverless, serverless

TABLES = ["sales/policy_table", "sales/lake_refs"]


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serverless]:
    with serverless(tmp_path_factory.mktemp("emr")) as started:
        started.s3.upload_file(str(ENTRY_POINT), BUCKET, "code/job.py")
        yield started


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, emr: Serverless) -> Path:
    return sales(tmp_path_factory.mktemp("lake"), {}, mode="emr_serverless", emr_serverless=settings(emr))


def settings(emr: Serverless, **others: Any) -> dict[str, Any]:
    return {
        "application_id": emr.application_id,
        "execution_role_arn": ROLE,
        "entry_point": f"s3://{BUCKET}/code/job.py",
        "exchange": f"s3://{BUCKET}/exchange",
        "parameters": "--master local[2] --conf spark.driver.memory=1g",
        **others,
    }


@deep
def test_a_job_run_publishes_and_is_told(emr: Serverless, lake: Path) -> None:
    night = run(lake, TABLES)
    assert night.result.success, night.failure
    rows = {name: table.metadata["dagster/row_count"].value for name, table in night.tables().items()}
    assert rows == dict.fromkeys(TABLES, 1)
    assert set(night.checks().values()) == {True}
    assert any(line.startswith("sales/lake_refs") and "ended after" in line for line in night.lines)
    (job,) = emr.runs
    assert (job.state, job.execution_role_arn) == ("SUCCESS", ROLE)


@deep
def test_what_is_exchanged_lies_below_its_prefix(emr: Serverless, lake: Path) -> None:
    found = emr.s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert {item["Key"].split("/")[0] for item in found} == {"code", "exchange"}


def test_a_job_run_that_fails_is_named_with_its_state(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    asked = settings(emr, entry_point=f"s3://{BUCKET}/code/job.py", parameters="--master no-such-master")
    failed = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=asked), TABLES[:1])
    assert f"job run {emr.runs[-1].id} of {emr.application_id} ended as FAILED: the driver failed" in failed.failure


def test_a_job_run_that_fails_leaves_no_request_that_could_be_asked_again(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    asked = settings(emr, exchange=f"s3://{BUCKET}/failing", parameters="--master no-such-master")
    run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=asked), TABLES[:1])
    left = emr.s3.list_objects_v2(Bucket=BUCKET, Prefix="failing/").get("Contents", [])
    assert [item["Key"] for item in left] == []


def test_a_job_run_that_nobody_can_watch_is_cancelled(emr: Serverless, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a plan would be carried out whose step had failed on the page."""

    def throttled(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "GetJobRun")

    monkeypatch.setattr(_EmrJob, "get_job_run", throttled)
    failed = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=settings(emr)), TABLES[:1])
    assert f"job run {emr.runs[-1].id} of {emr.application_id} was " in failed.failure
    assert "could not be watched any longer, so it was cancelled" in failed.failure
    assert emr.runs[-1].state in {"CANCELLING", "CANCELLED"}


def test_a_secret_that_stands_in_the_file_is_not_put_into_the_bucket(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    before = len(emr.runs)
    spark = {"mode": "emr_serverless", "emr_serverless": settings(emr), "token": "hunter2"}
    refused = run(with_spark(lake, tmp_path / "lakes.yaml", **spark), TABLES[:1])
    assert "spark.token: a secret stands there by its value" in refused.failure
    assert len(emr.runs) == before


def test_a_run_that_is_cancelled_cancels_its_job_run(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    def cancel(line: str) -> None:
        if "job started with job_run_id" in line:
            os.kill(os.getpid(), signal.SIGINT)

    asked = settings(emr)
    cancelled = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=asked), TABLES, cancel)
    assert not cancelled.result.success
    assert emr.runs[-1].state in {"CANCELLING", "CANCELLED"}
