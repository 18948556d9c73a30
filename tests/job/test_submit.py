"""Runs as spark-submit jobs on a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pyspark
import pytest
from pydantic import ValidationError

import gc_assets
from gc_assets.assets.asset_step import has_table
from gc_assets.assets.lake_assets import sort_steps
from gc_assets.assets.results import build_result
from gc_assets.assets.storage_assets import STORAGE_STEPS
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.definitions import build_definitions
from gc_assets.engine.run_context import RunContext
from gc_assets.remote.job_request import JobRequest, refuse_literal_secrets, versions
from gc_assets.remote.spark_submit import ENTRY_POINT
from gc_assets.resources.platform import Platform, load_platform
from gc_assets.resources.spark import properties
from gc_assets.stages.records.plans import approve, list_plans
from tests.cluster import CONF, Cluster
from tests.job.runs import LOG, RunResult, run, run_assets, sales, with_spark

KEY = "Zm9yIG5vYm9keSdzIGV5ZXM"
REFS = "sales/lake_refs"
REQUESTED = {"assets": [REFS.split("/")]}


@contextmanager
def started_commands() -> Iterator[set[str]]:
    """Record the command lines of child processes."""
    before, found, over = {child.pid for child in psutil.Process().children()}, set[str](), threading.Event()

    def poll() -> None:
        while not over.wait(0.05):
            for child in psutil.Process().children():
                if child.pid not in before:
                    try:
                        found.add(" ".join(child.cmdline()))
                    except psutil.Error:
                        continue

    watch = threading.Thread(target=poll)
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()


def job_processes() -> list[int]:
    """Return the processes of our jobs."""
    found = list[int]()
    for process in psutil.process_iter():
        try:
            if str(ENTRY_POINT) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def fake_submit(root: Path, script: str) -> dict[str, str]:
    """Write a replacement of spark-submit. `$job` is the script of the job."""
    program = root / "spark-submit"
    program.write_text(f"#!/bin/sh\nfor job; do :; done\n{script}\n")
    program.chmod(0o755)
    return {"mode": "submit", "submit_program": str(program)}


# A job that reports a failed check.
REFUSED = f"""
import sys
import dagster as dg
from dagster_pipes import open_dagster_pipes
key = dg.AssetKey({REFS.split("/")})
with open_dagster_pipes() as pipes:
    for event in (dg.AssetMaterialization(key), dg.AssetCheckEvaluation(key, "receipt", passed=False)):
        pipes.report_custom_message({{"event": dg.serialize_value(event)}})
    pipes.report_custom_message({{"failure": {{"text": "1 blocking asset check failed", "checks": True}}}})
sys.exit(1)
"""
JOB_WITHOUT_SPARK = f'exec {sys.executable} "$job"'


@pytest.fixture(scope="module")
def lake(spark_cluster: Cluster) -> Iterator[Path]:
    """Create a lake on a disk that driver and executors share."""
    with tempfile.TemporaryDirectory(prefix="gc-assets-lake-") as place, pytest.MonkeyPatch.context() as environment:
        environment.setenv("GC_TEST_KEY", KEY)
        conf = {**CONF, "spark.hadoop.fs.s3a.secret.key": "${GC_TEST_KEY}"}
        yield sales(Path(place), conf, mode="submit", master=spark_cluster.master, python=str(spark_cluster.python))


@pytest.fixture(scope="module")
def submitted_run(lake: Path) -> tuple[RunResult, set[str]]:
    """Run with a job, and return the result with the started processes."""
    with started_commands() as commands:
        run_context = run(lake)
    assert run_context.result.success, run_context.failure
    return run_context, commands


def test_remote_job_reports_the_metadata_of_a_local_step(submitted_run: tuple[RunResult, set[str]], lake: Path) -> None:
    tables, checks = submitted_run[0].tables(), submitted_run[0].checks()
    at = load_platform(os.environ, str(lake))
    run_context = at.run_context(Clock().today())
    boxes = [(box, owner) for owner in at.config.lakes for box in sort_steps(owner)]
    boxes += [(box, owner) for owner in at.config.storages for box in STORAGE_STEPS]
    message = [
        build_result(run_context, owner.name, shown, box.checks)
        for box, owner in boxes
        for shown in box.outputs
        if has_table(owner, shown.table)
    ]
    events = [dg.AssetMaterialization(result.asset_key, metadata=result.metadata) for result in message]
    assert {event.asset_key.to_user_string(): event.metadata for event in events} == {
        name: event.metadata for name, event in tables.items()
    }
    judged = [(result.asset_key.to_user_string(), check) for result in message for check in result.check_results]
    assert {(name, check.check_name): check.passed for name, check in judged} == checks


def test_table_is_reported_while_the_job_runs(submitted_run: tuple[RunResult, set[str]]) -> None:
    lines = submitted_run[0].lines
    (planned,) = [number for number, line in enumerate(lines) if line.startswith("warehouse/deletion_plan") and "begins run" in line]
    assert lines.index("Materialized value sales lake_refs.") < planned


def test_dagster_process_does_not_start_spark(submitted_run: tuple[RunResult, set[str]]) -> None:
    java = [command for command in submitted_run[1] if "org.apache.spark" in command]
    assert java
    assert all(command.endswith(str(ENTRY_POINT)) for command in java)


def test_secrets_are_not_in_command_lines_or_logs(submitted_run: tuple[RunResult, set[str]]) -> None:
    assert KEY in properties({"key": KEY})
    assert not [text for text in (*submitted_run[1], *submitted_run[0].lines) if KEY in text]


def test_job_executes_an_approved_plan(submitted_run: tuple[RunResult, set[str]], lake: Path) -> None:
    at = load_platform(os.environ, str(lake))
    (plan,) = list_plans(at.config)
    approve(at.config, at.clock, plan.header.plan_id, "ana", (), "")
    local = with_spark(lake, lake.parent / "here.yaml", state=at.config.state, mode="submit", master="local[2]")
    done = run(local, [LOG], plan_id=plan.header.plan_id, mode="apply")
    assert done.result.success, done.failure
    assert done.tables()[LOG].metadata["quarantined_files"].value == plan.header.rows
    assert "sales/expiry_log" in done.tables()  # published by no step


def test_cancelled_step_ends_the_job_processes(lake: Path, tmp_path: Path) -> None:
    """The job is a grandchild, as with the Java process of a spark-submit."""

    def cancel(line: str) -> None:
        if line.startswith(REFS) and "begins run" in line:
            assert job_processes()
            os.kill(os.getpid(), signal.SIGINT)

    program = fake_submit(tmp_path, f'{sys.executable} "$job"; sleep 60')
    cancelled = run(with_spark(lake, tmp_path / "lakes.yaml", **program), [REFS], cancel)
    assert not cancelled.result.success
    assert "DagsterExecutionInterruptedError" in cancelled.failure
    assert job_processes() == []


def test_restore_job_runs_remotely(lake: Path, tmp_path: Path) -> None:
    path = with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, JOB_WITHOUT_SPARK))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "page_may": ["restore"]}))
    restore = build_definitions(load_platform(os.environ, str(path))).resolve_job_def("restore")
    request = {"ops": {"put_files_back": {"config": {"prefix": "no/such/files"}}}}
    result = restore.execute_in_process(run_config=request, instance=dg.DagsterInstance.ephemeral())
    (output,) = [event.step_output_data for event in result.all_events if event.is_successful_output]
    assert output.metadata["nothing_changed"].value == "no such file is in quarantine in storage warehouse"


def test_failed_check_of_a_job_fails_the_step(lake: Path, tmp_path: Path) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    path = with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, f"exec {sys.executable} {script}"))
    refused = run(path, [REFS])
    assert "1 blocking asset check failed with ERROR severity" in refused.failure
    assert refused.checks() == {(REFS, "receipt"): False}
    # Later tables are not published.
    commits = "sales/commit_graph"
    assert run(path, [REFS, commits]).failure == f"the job did not publish {commits}. Failed checks: receipt of {REFS}."


def test_killed_job_is_reported_with_output(lake: Path, tmp_path: Path) -> None:
    program = fake_submit(tmp_path, "echo There is insufficient memory for the Java Runtime Environment; exit 137")
    died = run(with_spark(lake, tmp_path / "lakes.yaml", **program), [REFS])
    assert "exited with code 137" in died.failure
    assert "insufficient memory" in died.failure


def test_job_without_final_report_fails(lake: Path, tmp_path: Path) -> None:
    ended = run(with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, "exit 0")), [REFS])
    assert "its last report did not arrive" in ended.failure


def test_missing_submit_program_is_reported(lake: Path, tmp_path: Path) -> None:
    stopped = run(with_spark(lake, tmp_path / "lakes.yaml", mode="submit", submit_program="/opt/spark/bin/spark-submit"), [REFS])
    assert stopped.failure == (
        "Cannot start spark-submit as /opt/spark/bin/spark-submit: No such file or directory. Set spark.submit_program."
    )


def test_job_of_another_release_is_refused(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = gc_assets.__version__
    monkeypatch.setattr(gc_assets, "__version__", "0.0.9")
    refused = run(with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, JOB_WITHOUT_SPARK)), [REFS])
    assert refused.failure.startswith(f"the job has dagster {dg.__version__}, gc-assets {ours}, but Dagster has")
    assert "gc-assets 0.0.9. Install the same versions on both machines." in refused.failure


def test_job_with_an_unsupported_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"versions": versions()}
    monkeypatch.setattr(pyspark, "__version__", "3.4.1")
    with pytest.raises(
        UsageError, match=r"the job has Spark 3\.4\.1, but gc-assets supports Spark 3\.5 and 4\.0 to 4\.3\. Use a cluster or runtime"
    ):
        JobRequest.read(document)


@pytest.mark.parametrize("version", ["3.5.4-amzn-0", "4.0.2-amzn-0", "4.0.0", "4.3.1"])
def test_job_may_have_any_supported_spark_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A service builds its own Spark. The versions are accepted, and then the other fields are missing."""
    document = {"versions": versions()}
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ValidationError, match="policy_digest\n  Field required"):
        JobRequest.read(document)


class OtherMachine(Platform):
    """Sees another disk at the path of the state."""

    def run_context(self, run_date: date, as_of: datetime | None = None) -> RunContext:
        state = f"{self.config.state}-of-another-machine"
        other = replace(self, config=self.config.model_copy(update={"state": state}))
        return Platform.run_context(other, run_date, as_of)


def test_job_with_state_invisible_to_dagster_is_refused(lake: Path, tmp_path: Path) -> None:
    """This happens if each of two machines has a local directory at the path of the state."""
    at = load_platform(os.environ, str(with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, JOB_WITHOUT_SPARK))))
    refused = run_assets(OtherMachine(at.config, at.clock, at.unsafe, at.path), [REFS])
    assert refused.failure.startswith(f"a job published {REFS} of ")
    assert "`state` must be one location for Dagster and its jobs" in refused.failure


def test_job_request_with_changed_configuration_is_refused(lake: Path, tmp_path: Path) -> None:
    path = with_spark(lake, tmp_path / "lakes.yaml", mode="submit")
    at = load_platform(os.environ, str(path))
    document = json.loads(path.read_text())
    document["storages"][0]["quarantine_days"] = 30
    path.write_text(json.dumps(document))
    request = JobRequest.from_platform(at, None, Clock().today(), **REQUESTED)
    with pytest.raises(UsageError, match="has another policy on the job's machine"):
        request.platform(os.environ)


def test_job_with_different_state_location_is_refused(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, for example, a restore would search a state without the plan."""
    monkeypatch.setenv("GC_TEST_STATE", str(tmp_path / "of-dagster"))
    path = with_spark(lake, tmp_path / "lakes.yaml", state="${GC_TEST_STATE}", mode="submit")
    request = JobRequest.from_platform(load_platform(os.environ, str(path)), None, Clock().today(), **REQUESTED)
    remote = tmp_path / "of-the-job"
    with pytest.raises(UsageError, match=f"has the state {remote} on the job's machine, but {tmp_path}/of-dagster in Dagster"):
        request.platform({**os.environ, "GC_TEST_STATE": str(remote)})


def test_job_request_without_assets_or_job_is_invalid(lake: Path) -> None:
    """A job without a list of assets would materialize all assets, including deletions."""
    with pytest.raises(ValueError, match="a request must contain either assets or a job"):
        JobRequest.from_platform(load_platform(os.environ, str(lake)), None, Clock().today(), assets=[])


def test_selecting_only_checks_does_not_start_a_remote_job(lake: Path, tmp_path: Path) -> None:
    path = with_spark(lake, tmp_path / "lakes.yaml", **fake_submit(tmp_path, f"touch {tmp_path}/started; exit 1"))
    check = dg.AssetCheckKey(dg.AssetKey(REFS.split("/")), "receipt")
    checks = dg.define_asset_job("checks", dg.AssetSelection.checks(check))
    definitions = dg.Definitions.merge(build_definitions(load_platform(os.environ, str(path))), dg.Definitions(jobs=[checks]))
    job = definitions.resolve_job_def("checks")
    of_today = {"dagster/partition": Clock().today().isoformat()}
    result = job.execute_in_process(tags=of_today, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert f"no table is selected, but a job only checks tables that it publishes (receipt of {REFS})" in RunResult(result, []).failure
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "document, path",
    [
        ({"spark": {"token": "hunter2"}}, "spark.token"),
        ({"lakes": [{"catalog": {"s3.secret-access-key": "hunter2"}}]}, "lakes[0].catalog.s3.secret-access-key"),
        ({"lakes": [{"catalog": {"uri": "postgresql://ana:hunter2@db/catalog"}}]}, "lakes[0].catalog.uri"),
        ({"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}}}, "spark.conf.spark.hadoop.fs.s3a.secret.key"),
        (
            {"spark": {"databricks": {"cluster": {"spark_env_vars": {"A_TOKEN": "hunter2"}}}}},
            "spark.databricks.cluster.spark_env_vars.A_TOKEN",
        ),
        ({"plan_key": "hunter2hunter2hunter2"}, "plan_key"),
        ({"lakes": [{"catalog": {"header.Authorization": "Bearer hunter2"}}]}, "lakes[0].catalog.header.Authorization"),
        ({"lakes": [{"catalog": {"uri": "postgresql://db/c?user=ana&password=hunter2"}}]}, "lakes[0].catalog.uri"),
        ({"notify": [{"kind": "webhook", "headers": {"X-Team": "hunter2"}}]}, "notify[0].headers.X-Team"),
        (
            {"spark": {"databricks": {"cluster": {"spark_env_vars": {"PIN_SECRET": 1234}}}}},
            "spark.databricks.cluster.spark_env_vars.PIN_SECRET",
        ),
        ({"notify": [{"kind": "slack", "url": "https://hooks.slack.com/services/hunter2"}]}, "notify[0].url"),
    ],
)
def test_literal_secret_is_refused(document: dict[str, Any], path: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_literal_secrets(Path("lakes.yaml"), json.dumps(document))
    assert str(refused.value).startswith(f"lakes.yaml: literal secrets in {path}. ")
    assert "hunter2" not in str(refused.value)


def test_secret_references_are_accepted() -> None:
    conf = {"spark.hadoop.fs.s3a.aws.credentials.provider": "com.amazonaws.auth.Profile", "token-refresh-enabled": "true"}
    cluster = {"spark_env_vars": {"LAKEFS_SECRET": "{{secrets/gc/lakefs}}"}}  # resolved by Databricks
    spark = {"token": "${GC_TOKEN}", "conf": conf, "databricks": {"cluster": cluster}}
    document = {"spark": spark, "lakes": [{"uri": "http://nessie:19120/api/v2", "access_key_id": "AKIA"}]}
    refuse_literal_secrets(Path("lakes.yaml"), json.dumps(document))


def test_job_uses_clock_mode_and_limits_sent_by_dagster(lake: Path) -> None:
    """The rehearsal clock, the mode of the run and the lowered limits are sent."""
    at = load_platform(os.environ | {"GC_ASSETS_UNSAFE_NOW": "2026-11-20T03:00:00+00:00"}, str(lake))
    storages = tuple(storage.model_copy(update={"mode": "plan"}) for storage in at.config.storages)
    request = replace(at, config=at.config.model_copy(update={"storages": storages}))
    document = json.loads(json.dumps(JobRequest.from_platform(request, None, Clock().today(), **REQUESTED).model_dump(mode="json")))
    remote = JobRequest.read(document).platform(os.environ)
    assert (remote.clock, remote.unsafe, remote.config.storages, remote.config.own_files()) == (
        request.clock,
        request.unsafe,
        request.config.storages,
        request.config.own_files(),
    )


def test_settings_are_escaped_in_the_properties_file() -> None:
    assert properties({"a:b": " x=y\\z\n#1", "c": "${d}"}) == "a\\:b=\\ x\\=y\\\\z\\n\\#1\nc=${d}\n"
