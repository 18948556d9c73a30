"""The command line and Dagster's page show each other's actions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.definitions import build_definitions
from gc_assets.resources.platform import load_platform
from tests.cli.lakes import SmallLake, small_lake
from tests.dates import now_before_midnight
from tests.depth import full_suite_only, in_turn

pytestmark = [pytest.mark.spark, in_turn]
LOG, EDITS = dg.AssetKey(["warehouse", "deletion_log"]), dg.AssetKey(["sales", "expiry_log"])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    return small_lake(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """Create the instance of DAGSTER_HOME."""
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DAGSTER_HOME", str(home))
        with dg.DagsterInstance.get() as opened:
            yield opened


@pytest.fixture(scope="module")
def run_date() -> str:
    return now_before_midnight(minutes=4).date().isoformat()


@pytest.fixture(scope="module")
def applied_plan(spark: SparkSession, lake: SmallLake, instance: dg.DagsterInstance, run_date: str) -> str:
    """Execute a plan with `gc-assets apply`, and return its id."""
    lake.configure(mode="apply")
    (plan,) = json.loads(run_command(lake, "run", "--run-date", run_date, "--format", "json").stdout)
    run_command(lake, "approve", plan["plan_id"], "--by", "ada")
    run_command(lake, "apply", plan["plan_id"])
    return plan["plan_id"]


def run_command(lake: SmallLake, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, [*arguments, "--config", str(lake.lakes_yaml)])
    assert result.exit_code == 0, result.stderr
    return result


def newest_event(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization:
    event = instance.get_latest_materialization_event(key)
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization


def apply_metadata(lake: SmallLake, plan_id: str, run_date: str) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    """Return the metadata that the `apply` job reports for a plan."""
    return launch(lake, "apply", "warehouse__deletion_log", {"plan_id": plan_id}, run_date)


def launch(
    lake: SmallLake, job: str, op: str, config: dict[str, Any], partition_key: str | None = None
) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    """Launch a job of the page, and return its asset events."""
    platform = load_platform({}, str(lake.lakes_yaml))
    jobs = frozenset[str]() if job == "apply" else frozenset({"approve", "restore"})
    may = replace(platform, config=platform.config.model_copy(update={"page_may": jobs}))
    result = (
        build_definitions(may)
        .resolve_job_def(job)
        .execute_in_process(
            run_config={"ops": {op: {"config": config}}}, partition_key=partition_key, instance=dg.DagsterInstance.ephemeral()
        )
    )
    events = result.get_asset_materialization_events()
    return {event.step_materialization_data.materialization.asset_key: event.step_materialization_data.materialization for event in events}


def test_apply_command_emits_the_metadata_of_a_dagster_run(
    applied_plan: str, lake: SmallLake, instance: dg.DagsterInstance, run_date: str
) -> None:
    shown = newest_event(instance, LOG)
    assert (shown.partition, shown.metadata["plan_id"].value) == (run_date, applied_plan)
    assert shown.metadata["quarantined_files"].value >= len(lake.leftovers)
    metadata = apply_metadata(lake, applied_plan, run_date)[LOG]  # changes nothing, and reports the current log
    of_apply = {"status": "applied", "outcomes": shown.metadata["outcomes"].value}
    assert "11 files moved to quarantine" in str(of_apply["outcomes"])
    assert {name: shown.metadata[name].value for name in of_apply} == of_apply
    kept = {name: value for name, value in shown.metadata.items() if name not in of_apply}
    assert {name: value for name, value in metadata.metadata.items() if name != "nothing_changed"} == kept
    assert metadata.tags["dagster/data_version"] == shown.tags["dagster/data_version"]


def test_history_edits_are_reported_to_dagster(applied_plan: str, lake: SmallLake, instance: dg.DagsterInstance, run_date: str) -> None:
    shown = newest_event(instance, EDITS)
    rows = json.loads(run_command(lake, "show", "expiry_log", "--format", "json").stdout)
    assert (shown.partition, shown.metadata["plan_id"].value) == (run_date, applied_plan)
    assert shown.metadata["done_edits"].value == shown.metadata["dagster/row_count"].value == len(rows) > 0


def test_approval_is_reported_to_dagster_on_the_plan_asset(applied_plan: str, instance: dg.DagsterInstance, run_date: str) -> None:
    records = instance.fetch_observations(dg.AssetKey(["warehouse", "deletion_plan"]), limit=100, ascending=True).records
    observed = records[0].asset_observation
    assert observed is not None
    message = {name: observed.metadata[name].value for name in ("plan_id", "status", "approved_by", "approvals")}
    assert (message, observed.partition) == (
        {"plan_id": applied_plan[:12], "status": "approved", "approved_by": "ada", "approvals": "1 of 1"},
        run_date,
    )
    applied = records[1].asset_observation
    assert applied is not None
    assert (applied.metadata["status"].value, "**applied**" in str(applied.metadata["plan"].value)) == ("applied", True)
    assert newest_event(instance, LOG).metadata["approved_by"].value == "ada"


def test_checks_of_an_apply_are_reported_to_dagster(applied_plan: str, instance: dg.DagsterInstance) -> None:
    del applied_plan
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(LOG, name) for name in ("receipt", "complete", "no_failed_key")]
    )
    assert {key.name: record.status.value for key, record in records.items()} == dict.fromkeys(
        ("receipt", "complete", "no_failed_key"), "SUCCEEDED"
    )


def test_restore_is_reported_to_dagster(applied_plan: str, lake: SmallLake, instance: dg.DagsterInstance) -> None:
    (row,) = json.loads(run_command(lake, "restore", "--plan", applied_plan, "--format", "json").stdout)
    shown = newest_event(instance, LOG)
    assert shown.metadata["restored_files"].value == row["files"] > 0
    (newest,) = instance.fetch_observations(dg.AssetKey(["warehouse", "deletion_plan"]), limit=1).records
    assert newest.asset_observation is not None
    assert newest.asset_observation.metadata["status"].value == "restored"
    assert str(shown.metadata["plan_id"].value).startswith("restore-")


def test_failed_report_to_dagster_does_not_change_the_exit_code(
    applied_plan: str, lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "not/an/absolute/path")
    assert "Cannot report this to Dagster" in run_command(lake, "restore", "--plan", applied_plan).stderr


@full_suite_only
def test_command_line_shows_actions_done_in_dagster(lake: SmallLake, applied_plan: str, run_date: str) -> None:
    del applied_plan
    (plan,) = json.loads(run_command(lake, "run", "--format", "json").stdout)
    launch(lake, "approve", "approve_plan", {"plan_id": plan["plan_id"], "by": "ada"})
    shown = apply_metadata(lake, plan["plan_id"], run_date)[LOG]
    listed: dict[str, dict[str, Any]] = {row["plan_id"]: row for row in json.loads(run_command(lake, "plans", "--format", "json").stdout)}
    rows = json.loads(run_command(lake, "show", "deletion_log", "--format", "json").stdout)
    assert (listed[plan["plan_id"]]["status"], listed[plan["plan_id"]]["approved_by"]) == ("applied", "ada")
    done = [row for row in rows if (row["plan_id"], row["outcome"]) == (plan["plan_id"], "done")]  # without rows of earlier restores
    assert len(done) == shown.metadata["quarantined_files"].value > 0

    before = lake.keys()
    metadata = launch(lake, "restore", "put_files_back", {"plan_id": plan["plan_id"]})
    assert metadata[LOG].metadata["restored_files"].value == len(done) == len(lake.keys() - before)
    (status,) = {
        row["status"] for row in json.loads(run_command(lake, "plans", "--format", "json").stdout) if row["plan_id"] == plan["plan_id"]
    }
    assert status == "restored"
