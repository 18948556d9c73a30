"""Runs as Databricks jobs, with a fake of the API. No real workspace was used.

The SDK takes two seconds to import, so only the tests import it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import yaml
from dagster_pipes import decode_param

from gc_assets.config.jobs import Databricks
from gc_assets.config.models import SparkConfig
from gc_assets.core.errors import UsageError
from gc_assets.remote import jobs
from gc_assets.remote.spark_submit import ENTRY_POINT
from tests.depth import full_suite_only, in_turn
from tests.job.runs import RunResult, run, sales, with_spark
from tests.job.serverless import aws
from tests.job.workspace import CANCELED, FAILED, NOT_INSTALLED, PENDING, RUNNING, SUCCESS, TOKEN, Workspace, workspace

pytestmark = in_turn

if TYPE_CHECKING:
    from databricks.sdk.service.jobs import SubmitTask

    from gc_assets.remote.databricks import WorkspaceJobs

OF_DATABRICKS = "gc_assets.remote.databricks"
ROOT = Path(__file__).parents[2]
TABLES = ["sales/policy_table", "sales/lake_refs"]
BUCKET = "runs"
NO_MODULE = "ModuleNotFoundError: No module named 'gc_assets'"


def settings(**others: Any) -> dict[str, Any]:
    return {
        "entry_point": f"s3://{BUCKET}/code/job.py",
        "exchange": f"s3://{BUCKET}/exchange",
        "cluster": {
            "spark_version": "20.0.x-scala2.13",
            "node_type_id": "m6i.xlarge",
            "num_workers": 2,
            "spark_env_vars": {"LAKEFS_SECRET": "{{secrets/gc/lakefs}}"},
        },
        **others,
    }


@pytest.fixture(scope="module")
def databricks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("databricks")
    with aws(BUCKET) as s3, workspace(folder, s3) as started, pytest.MonkeyPatch.context() as patch:
        s3.upload_file(str(ENTRY_POINT), BUCKET, "code/job.py")
        patch.setenv("DATABRICKS_HOST", started.host)
        patch.setenv("DATABRICKS_TOKEN", TOKEN)
        patch.setenv("DATABRICKS_CONFIG_FILE", str(folder / "none"))
        yield started


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, databricks: Workspace) -> Path:
    return sales(tmp_path_factory.mktemp("lake"), {}, mode="databricks", databricks=settings())


def run_table(lake: Path, tmp_path: Path, meanwhile: Any = lambda _: None, **others: Any) -> RunResult:
    """Run one table with a new state."""
    return run(with_spark(lake, tmp_path / "lakes.yaml", mode="databricks", databricks=settings(**others)), TABLES[:1], meanwhile)


def list_keys(workspace_url: Workspace, prefix: str) -> list[str]:
    return [item["Key"] for item in workspace_url.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.fixture
def idle_workspace(databricks: Workspace) -> Iterator[Workspace]:
    """Return a workspace that does not execute its runs."""
    databricks.state = RUNNING
    yield databricks
    databricks.state, databricks.error, databricks.broken, databricks.failing, databricks.denied = None, None, 0, 0, False


def build_jobs(workspace_url: Workspace, token: str = TOKEN) -> WorkspaceJobs:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.config import Config

    from gc_assets.remote.databricks import WorkspaceJobs

    return WorkspaceJobs(WorkspaceClient(config=Config(host=workspace_url.host, token=token)).jobs, workspace_url.host)


def build_task(request: Databricks) -> SubmitTask:
    from gc_assets.remote import databricks

    return databricks.build_task(request)


def start_run(runs: WorkspaceJobs) -> WorkspaceJobs:
    runs.submit(run_name="gc-assets", idempotency_token=uuid4().hex, tasks=[build_task(Databricks(**settings()))])
    return runs


@full_suite_only
def test_databricks_run_publishes_tables_and_reports_progress(databricks: Workspace, lake: Path) -> None:
    error = run(lake, TABLES)
    assert error.result.success, error.failure
    rows = {name: table.metadata["dagster/row_count"].value for name, table in error.tables().items()}
    assert rows == dict.fromkeys(TABLES, 1)
    assert set(error.checks().values()) == {True}
    assert any(line.startswith("sales/lake_refs") and "ended after" in line for line in error.lines)
    assert databricks.last.state == SUCCESS

    request = databricks.last.request
    assert (request["run_name"], len(request["tasks"]), len(request["idempotency_token"])) == ("gc-assets", 1, 32)
    assert request["tasks"][0]["spark_python_task"] == {"python_file": f"s3://{BUCKET}/code/job.py"}
    # The request is only in `exchange`, and the token is sent nowhere.
    sent = json.dumps(request)
    assert databricks.last.environment.keys() == {"LAKEFS_SECRET", "DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}
    assert "{{secrets/gc/lakefs}}" in databricks.last.environment.values()
    assert str(lake) not in sent
    assert [place for place in (sent, *error.lines) if TOKEN in place] == []
    assert {key.split("/")[0] for key in list_keys(databricks, "")} == {"code", "exchange"}


def test_failed_run_fails_the_step_and_deletes_the_request(idle_workspace: Workspace, lake: Path, tmp_path: Path) -> None:
    idle_workspace.state, idle_workspace.error = FAILED, NO_MODULE
    failure = run_table(lake, tmp_path, exchange=f"s3://{BUCKET}/failing").failure
    ran = idle_workspace.last.run_id
    assert (
        f"run {ran} of {idle_workspace.host} ended as FAILED: Workload failed, see run output for details ({NO_MODULE}). "
        f"See {idle_workspace.page(ran)}."
    ) in failure
    assert decode_param(idle_workspace.last.environment["DAGSTER_PIPES_CONTEXT"])["key"].startswith("failing/")
    assert list_keys(idle_workspace, "failing/") == []


def test_run_with_lost_connection_is_cancelled(
    idle_workspace: Workspace, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run would execute a plan although its step has failed in Dagster."""

    def raise_timeout(*_: Any) -> Any:
        raise OSError("no answer")

    monkeypatch.setattr(f"{OF_DATABRICKS}.WorkspaceJobs.get_run", raise_timeout)
    failure = run_table(lake, tmp_path, exchange=f"s3://{BUCKET}/unwatched").failure
    ran = idle_workspace.last
    assert (
        f"lost the connection to run {ran.run_id} of {idle_workspace.host}, which was RUNNING and is cancelled now (no answer)" in failure
    )
    assert ran.is_cancelled
    assert list_keys(idle_workspace, "unwatched/") == []


def test_literal_secret_is_not_sent(idle_workspace: Workspace, lake: Path, tmp_path: Path) -> None:
    before, idle_workspace.state = len(idle_workspace.runs), FAILED
    cluster = {"spark_version": "20.0.x-scala2.13", "spark_env_vars": {"LAKEFS_SECRET": "hunter2"}}
    refused = run_table(lake, tmp_path, exchange=f"s3://{BUCKET}/refused", cluster=cluster)
    assert "literal secrets in spark.databricks.cluster.spark_env_vars.LAKEFS_SECRET. " in refused.failure
    assert "hunter2" not in refused.failure
    assert (len(idle_workspace.runs), list_keys(idle_workspace, "refused/")) == (before, [])


def test_run_with_unknown_state_is_not_treated_as_ended(
    idle_workspace: Workspace, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{OF_DATABRICKS}.TIMEOUT_SECONDS", 0.0)

    def deny_access(line: str) -> None:
        idle_workspace.denied |= "observed state transition" in line

    failure = run_table(lake, tmp_path, deny_access).failure
    ran = idle_workspace.last
    sentence = (
        f"lost the connection to run {ran.run_id} of {idle_workspace.host}, which may still be running (The token may not view this run."
    )
    assert sentence in failure
    assert f"Cancel it in the workspace, then run this again. See {idle_workspace.page(ran.run_id)}." in failure
    assert [word for word in ("ended", TOKEN) if word in failure] == []


def test_cancelled_step_cancels_the_databricks_run(idle_workspace: Workspace, lake: Path, tmp_path: Path) -> None:
    def cancel(line: str) -> None:
        if "observed state transition" in line and "RUNNING" in line:
            os.kill(os.getpid(), signal.SIGINT)

    assert not run_table(lake, tmp_path, cancel).result.success
    assert idle_workspace.last.state == CANCELED  # and so its end was waited for


@pytest.mark.parametrize(
    "state, sentence",
    [
        (NOT_INSTALLED, "ended as FAILED: Task gc-assets failed with message: Library installation failed for library"),
        (CANCELED, "ended as CANCELED: Cancelled."),
        ({"life_cycle_state": "TERMINATED", "result_state": "TIMEDOUT"}, "ended as TIMEDOUT: no message"),
        ({"life_cycle_state": "SKIPPED", "state_message": "Skipped."}, "ended as SKIPPED: Skipped."),
    ],
)
def test_every_failure_state_is_reported(idle_workspace: Workspace, state: Mapping[str, Any], sentence: str) -> None:
    idle_workspace.state = state
    error = start_run(build_jobs(idle_workspace)).describe_end(ValueError())
    ran = idle_workspace.last.run_id
    assert error.startswith(f"run {ran} of {idle_workspace.host} {sentence}")
    assert error.endswith(f". See {idle_workspace.page(ran)}.")


@pytest.mark.parametrize(
    "state, seen",
    [(PENDING, "PENDING"), (RUNNING, "RUNNING"), ({"life_cycle_state": "OF_A_LATER_API"}, "in an unknown state")],
)
def test_running_run_is_cancelled_and_reported_as_running(idle_workspace: Workspace, state: Mapping[str, Any], seen: str) -> None:
    idle_workspace.state = state
    error = start_run(build_jobs(idle_workspace)).describe_end(ValueError("the client gave up"))
    ran = idle_workspace.last
    assert error == (
        f"lost the connection to run {ran.run_id} of {idle_workspace.host}, which was {seen} and is cancelled now (the client gave up). "
        f"Run this again. See {idle_workspace.page(ran.run_id)}."
    )
    assert ran.is_cancelled


def test_server_error_of_workspace_is_retried(idle_workspace: Workspace) -> None:
    runs, idle_workspace.failing = start_run(build_jobs(idle_workspace)), 1
    state = runs.get_run(idle_workspace.last.run_id).state
    assert (idle_workspace.failing, state and state.life_cycle_state and state.life_cycle_state.value) == (0, "RUNNING")


def test_cancel_before_start_cancels_the_run(idle_workspace: Workspace) -> None:
    runs = build_jobs(idle_workspace)
    runs.cancel()
    start_run(runs)
    assert idle_workspace.last.is_cancelled


def test_lost_response_to_submit_starts_only_one_run(idle_workspace: Workspace) -> None:
    before, idle_workspace.broken = len(idle_workspace.runs), 1
    runs = start_run(build_jobs(idle_workspace))
    assert (idle_workspace.broken, len(idle_workspace.runs)) == (0, before + 1)
    assert runs.describe_end(ValueError()).startswith(
        f"lost the connection to run {idle_workspace.last.run_id} of {idle_workspace.host}, which was RUNNING"
    )


def test_refused_credentials_are_reported_without_the_token(idle_workspace: Workspace) -> None:
    runs = build_jobs(idle_workspace, "dapi-of-another")
    with pytest.raises(OSError, match="Credential was not sent") as refused:
        start_run(runs)
    error = runs.describe_end(refused.value)
    assert error.startswith(f"Cannot start a run on {idle_workspace.host}: Credential was not sent")
    assert "dapi" not in error


@pytest.mark.parametrize(
    "wrong, path",
    [
        ({"cluster": {"spark_version": "20.0.x-scala2.13", "num_worker": 2}}, r"new_cluster\.num_worker"),
        ({"cluster": {"data_security_mode": "SINGEL_USER"}}, r"new_cluster\.data_security_mode"),
        ({"cluster": {"aws_attributes": {"instance_profile": "x"}}}, r"new_cluster\.aws_attributes\.instance_profile"),
        ({"cluster": {"existing_cluster_id": "0716-190309-boll22"}}, r"new_cluster\.existing_cluster_id"),
        ({"libraries": [{"whl": "/Volumes/a.whl"}, {"wheel": "/Volumes/b.whl"}]}, r"libraries\[1\]\.wheel"),
    ],
)
def test_unsupported_databricks_key_is_refused(wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(UsageError, match=rf"^spark\.databricks: the installed databricks-sdk does not support {path}\. Remove it"):
        build_task(Databricks(**settings(**wrong)))


def test_documented_example_is_accepted() -> None:
    """Uses the example of docs/managed_spark.md."""
    (block,) = re.findall(r"```yaml\n(state:[^`]+mode: databricks[^`]+)```", (ROOT / "docs" / "managed_spark.md").read_text())
    message = SparkConfig.model_validate(yaml.safe_load(block)["spark"]).databricks
    assert message is not None
    assert build_task(message).as_dict()["new_cluster"] == message.cluster


def test_missing_login_is_reported_before_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gc_assets.remote.databricks import run_job

    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"^Cannot connect to a Databricks workspace: "):
        run_job(Databricks(**settings()), None, None, {})  # pyright: ignore[reportArgumentType]


def test_missing_extra_is_reported_with_install_command(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_spec", lambda _: None)
    assert "pip install 'gc-assets[databricks]'" in run_table(lake, tmp_path).failure
