"""Runs as EMR Serverless job runs, with a server that implements its API."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gc_assets.remote.emr_serverless import EmrJob
from gc_assets.remote.spark_submit import ENTRY_POINT
from tests.depth import full_suite_only, in_turn
from tests.job.runs import run, sales, with_spark
from tests.job.serverless import BUCKET, ROLE, Serverless, serverless

pytestmark = in_turn

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


@full_suite_only
def test_emr_job_run_publishes_tables_and_reports_progress(emr: Serverless, lake: Path) -> None:
    result = run(lake, TABLES)
    assert result.result.success, result.failure
    rows = {name: table.metadata["dagster/row_count"].value for name, table in result.tables().items()}
    assert rows == dict.fromkeys(TABLES, 1)
    assert set(result.checks().values()) == {True}
    assert any(line.startswith("sales/lake_refs") and "ended after" in line for line in result.lines)
    (job,) = emr.runs
    assert (job.state, job.execution_role_arn) == ("SUCCESS", ROLE)


@full_suite_only
def test_exchange_files_are_under_the_configured_prefix(emr: Serverless, lake: Path) -> None:
    found = emr.s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert {item["Key"].split("/")[0] for item in found} == {"code", "exchange"}


def test_failed_job_run_is_reported_and_request_is_deleted(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    request = settings(emr, exchange=f"s3://{BUCKET}/failing", parameters="--master no-such-master")
    failed = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=request), TABLES[:1])
    assert f"job run {emr.runs[-1].id} of {emr.application_id} ended as FAILED: the driver failed" in failed.failure
    left = emr.s3.list_objects_v2(Bucket=BUCKET, Prefix="failing/").get("Contents", [])
    assert [item["Key"] for item in left] == []


def test_job_run_with_lost_connection_is_cancelled(emr: Serverless, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the job run would execute a plan although its step has failed in Dagster."""

    def raise_throttling(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "GetJobRun")

    monkeypatch.setattr(EmrJob, "get_job_run", raise_throttling)
    failed = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=settings(emr)), TABLES[:1])
    assert f"lost the connection to job run {emr.runs[-1].id} of {emr.application_id}, which was " in failed.failure
    assert "and is cancelled now" in failed.failure
    assert emr.runs[-1].state in {"CANCELLING", "CANCELLED"}


def test_literal_secret_is_not_written(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    before = len(emr.runs)
    spark = {"mode": "emr_serverless", "emr_serverless": settings(emr), "token": "hunter2"}
    refused = run(with_spark(lake, tmp_path / "lakes.yaml", **spark), TABLES[:1])
    assert "literal secrets in spark.token. " in refused.failure
    assert len(emr.runs) == before


def test_cancelled_step_cancels_the_emr_job_run(emr: Serverless, lake: Path, tmp_path: Path) -> None:
    def cancel(line: str) -> None:
        if "job started with job_run_id" in line:
            os.kill(os.getpid(), signal.SIGINT)

    request = settings(emr)
    cancelled = run(with_spark(lake, tmp_path / "lakes.yaml", mode="emr_serverless", emr_serverless=request), TABLES, cancel)
    assert not cancelled.result.success
    assert emr.runs[-1].state in {"CANCELLING", "CANCELLED"}
