"""Nights as runs of Databricks, by a fake of the calls that they make. No real workspace has run any of this.

Its library takes two seconds to import. So tests import it, and every other process that collects this file does without.
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
from tests.depth import deep
from tests.job.nights import Ran, run, sales, with_spark
from tests.job.serverless import aws
from tests.job.workspace import CANCELED, FAILED, NOT_INSTALLED, PENDING, RUNNING, SUCCESS, TOKEN, Workspace, workspace

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


def run_context(lake: Path, tmp_path: Path, meanwhile: Any = lambda _: None, **others: Any) -> Ran:
    """A night with a state of its own, of one table."""
    return run(with_spark(lake, tmp_path / "lakes.yaml", mode="databricks", databricks=settings(**others)), TABLES[:1], meanwhile)


def keys_below(there: Workspace, prefix: str) -> list[str]:
    return [item["Key"] for item in there.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.fixture
def staying(databricks: Workspace) -> Iterator[Workspace]:
    """The workspace, whose runs are not carried out."""
    databricks.state = RUNNING
    yield databricks
    databricks.state, databricks.error, databricks.broken, databricks.failing, databricks.denied = None, None, 0, 0, False


def runs_of(there: Workspace, token: str = TOKEN) -> WorkspaceJobs:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.config import Config

    from gc_assets.remote.databricks import WorkspaceJobs

    return WorkspaceJobs(WorkspaceClient(config=Config(host=there.host, token=token)).jobs, there.host)


def task_of(asked: Databricks) -> SubmitTask:
    from gc_assets.remote import databricks

    return databricks.build_task(asked)


def start(runs: WorkspaceJobs) -> WorkspaceJobs:
    runs.submit(run_name="gc-assets", idempotency_token=uuid4().hex, tasks=[task_of(Databricks(**settings()))])
    return runs


@deep
def test_a_run_publishes_and_is_told(databricks: Workspace, lake: Path) -> None:
    told = run(lake, TABLES)
    assert told.result.success, told.failure
    rows = {name: table.metadata["dagster/row_count"].value for name, table in told.tables().items()}
    assert rows == dict.fromkeys(TABLES, 1)
    assert set(told.checks().values()) == {True}
    assert any(line.startswith("sales/lake_refs") and "ended after" in line for line in told.lines)
    assert databricks.last.state == SUCCESS

    asked = databricks.last.asked
    assert (asked["run_name"], len(asked["tasks"]), len(asked["idempotency_token"])) == ("gc-assets", 1, 32)
    assert asked["tasks"][0]["spark_python_task"] == {"python_file": f"s3://{BUCKET}/code/job.py"}
    # What is asked of the job lies below `exchange`, and goes to nobody else; and a token goes to nobody at all.
    sent = json.dumps(asked)
    assert databricks.last.environment.keys() == {"LAKEFS_SECRET", "DAGSTER_PIPES_CONTEXT", "DAGSTER_PIPES_MESSAGES"}
    assert "{{secrets/gc/lakefs}}" in databricks.last.environment.values()
    assert str(lake) not in sent
    assert [place for place in (sent, *told.lines) if TOKEN in place] == []
    assert {key.split("/")[0] for key in keys_below(databricks, "")} == {"code", "exchange"}


def test_a_run_that_fails_ends_its_step_and_is_named(staying: Workspace, lake: Path, tmp_path: Path) -> None:
    staying.state, staying.error = FAILED, NO_MODULE
    failure = run_context(lake, tmp_path).failure
    ran = staying.last.run_id
    assert (
        f"run {ran} of {staying.host} ended as FAILED: Workload failed, see run output for details ({NO_MODULE}); "
        f"look at {staying.page(ran)}"
    ) in failure


def test_a_run_that_fails_leaves_no_request_that_could_be_asked_again(staying: Workspace, lake: Path, tmp_path: Path) -> None:
    staying.state = FAILED
    run_context(lake, tmp_path, exchange=f"s3://{BUCKET}/failing")
    assert decode_param(staying.last.environment["DAGSTER_PIPES_CONTEXT"])["key"].startswith("failing/")
    assert keys_below(staying, "failing/") == []


def test_a_run_that_nobody_can_watch_is_cancelled(staying: Workspace, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a plan would be carried out whose step had failed on the page."""

    def silent(*_: Any) -> Any:
        raise OSError("no answer")

    monkeypatch.setattr(f"{OF_DATABRICKS}.Runs.get_run", silent)
    failure = run_context(lake, tmp_path, exchange=f"s3://{BUCKET}/unwatched").failure
    ran = staying.last
    assert f"run {ran.run_id} of {staying.host} was RUNNING and could not be watched any longer, so it was cancelled (no answer)" in failure
    assert ran.is_cancelled
    assert keys_below(staying, "unwatched/") == []


def test_a_secret_that_stands_in_the_file_goes_to_no_bucket_and_no_workspace(staying: Workspace, lake: Path, tmp_path: Path) -> None:
    before, staying.state = len(staying.runs), FAILED
    cluster = {"spark_version": "20.0.x-scala2.13", "spark_env_vars": {"LAKEFS_SECRET": "hunter2"}}
    refused = run_context(lake, tmp_path, exchange=f"s3://{BUCKET}/refused", cluster=cluster)
    assert "spark.databricks.cluster.spark_env_vars.LAKEFS_SECRET: a secret stands there by its value" in refused.failure
    assert "hunter2" not in refused.failure
    assert (len(staying.runs), keys_below(staying, "refused/")) == (before, [])


def test_a_run_whose_state_nobody_says_does_not_count_as_ended(
    staying: Workspace, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{OF_DATABRICKS}.PATIENCE_SECONDS", 0.0)

    def deny(line: str) -> None:
        staying.denied |= "observed state transition" in line

    failure = run_context(lake, tmp_path, deny).failure
    ran = staying.last
    sentence = f"run {ran.run_id} of {staying.host} could not be watched any longer, and may go on (The token may not view this run."
    assert sentence in failure
    assert f"cancel it there, then run this again; look at {staying.page(ran.run_id)}" in failure
    assert [word for word in ("ended", TOKEN) if word in failure] == []


def test_a_run_that_is_cancelled_cancels_its_run_there(staying: Workspace, lake: Path, tmp_path: Path) -> None:
    def cancel(line: str) -> None:
        if "observed state transition" in line and "RUNNING" in line:
            os.kill(os.getpid(), signal.SIGINT)

    assert not run_context(lake, tmp_path, cancel).result.success
    assert staying.last.state == CANCELED  # and so its end was waited for


@pytest.mark.parametrize(
    "state, sentence",
    [
        (NOT_INSTALLED, "ended as FAILED: Task gc-assets failed with message: Library installation failed for library"),
        (CANCELED, "ended as CANCELED: Cancelled."),
        ({"life_cycle_state": "TERMINATED", "result_state": "TIMEDOUT"}, "ended as TIMEDOUT: no message"),
        ({"life_cycle_state": "SKIPPED", "state_message": "Skipped."}, "ended as SKIPPED: Skipped."),
    ],
)
def test_every_bad_end_is_told_in_the_words_of_its_state(staying: Workspace, state: Mapping[str, Any], sentence: str) -> None:
    staying.state = state
    told = start(runs_of(staying)).describe_end(ValueError())
    ran = staying.last.run_id
    assert told.startswith(f"run {ran} of {staying.host} {sentence}")
    assert told.endswith(f"; look at {staying.page(ran)}")


@pytest.mark.parametrize(
    "state, seen",
    [(PENDING, "PENDING"), (RUNNING, "RUNNING"), ({"life_cycle_state": "OF_A_LATER_API"}, "in a state unknown here")],
)
def test_a_run_that_has_not_ended_is_cancelled_and_never_said_to_have(staying: Workspace, state: Mapping[str, Any], seen: str) -> None:
    staying.state = state
    told = start(runs_of(staying)).describe_end(ValueError("the client gave up"))
    ran = staying.last
    assert told == (
        f"run {ran.run_id} of {staying.host} was {seen} and could not be watched any longer, so it was cancelled (the client gave up): "
        f"run this again; look at {staying.page(ran.run_id)}"
    )
    assert ran.is_cancelled


def test_a_workspace_that_fails_for_a_while_is_asked_again(staying: Workspace) -> None:
    runs, staying.failing = start(runs_of(staying)), 1
    state = runs.get_run(staying.last.run_id).state
    assert (staying.failing, state and state.life_cycle_state and state.life_cycle_state.value) == (0, "RUNNING")


def test_a_run_that_was_cancelled_before_it_was_started_is_cancelled_then(staying: Workspace) -> None:
    runs = runs_of(staying)
    runs.cancel()
    start(runs)
    assert staying.last.is_cancelled


def test_an_answer_that_got_lost_starts_no_second_run(staying: Workspace) -> None:
    before, staying.broken = len(staying.runs), 1
    runs = start(runs_of(staying))
    assert (staying.broken, len(staying.runs)) == (0, before + 1)
    assert runs.describe_end(ValueError()).startswith(f"run {staying.last.run_id} of {staying.host} was RUNNING")


def test_a_workspace_that_refuses_is_named(staying: Workspace) -> None:
    runs = runs_of(staying, "dapi-of-another")
    with pytest.raises(OSError, match="Credential was not sent") as refused:
        start(runs)
    told = runs.describe_end(refused.value)
    assert told.startswith(f"no run was started by {staying.host}: Credential was not sent")
    assert "dapi" not in told


@pytest.mark.parametrize(
    "wrong, place",
    [
        ({"cluster": {"spark_version": "20.0.x-scala2.13", "num_worker": 2}}, r"new_cluster\.num_worker"),
        ({"cluster": {"data_security_mode": "SINGEL_USER"}}, r"new_cluster\.data_security_mode"),
        ({"cluster": {"aws_attributes": {"instance_profile": "x"}}}, r"new_cluster\.aws_attributes\.instance_profile"),
        ({"cluster": {"existing_cluster_id": "0716-190309-boll22"}}, r"new_cluster\.existing_cluster_id"),
        ({"libraries": [{"whl": "/Volumes/a.whl"}, {"wheel": "/Volumes/b.whl"}]}, r"libraries\[1\]\.wheel"),
    ],
)
def test_what_the_api_does_not_take_is_refused(wrong: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError, match=rf"^spark\.databricks: the Jobs API, as the databricks-sdk here knows it, takes no {place}$"):
        task_of(Databricks(**settings(**wrong)))


def test_what_the_page_shows_is_what_the_api_takes() -> None:
    """The example of docs/managed_spark.md."""
    (block,) = re.findall(r"```yaml\n(state:[^`]+mode: databricks[^`]+)```", (ROOT / "docs" / "managed_spark.md").read_text())
    said = SparkConfig.model_validate(yaml.safe_load(block)["spark"]).databricks
    assert said is not None
    assert task_of(said).as_dict()["new_cluster"] == said.cluster


def test_a_machine_that_cannot_log_in_says_so_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gc_assets.remote.databricks import run_job

    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"^no workspace of Databricks can be asked for a job: "):
        run_job(Databricks(**settings()), None, None, {})  # pyright: ignore[reportArgumentType]


def test_an_installation_without_the_extra_names_it(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_spec", lambda _: None)
    assert "pip install 'gc-assets[databricks]'" in run_context(lake, tmp_path).failure
