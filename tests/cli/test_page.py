"""What the command line does is on Dagster's page, and what the page does is what the command line tells."""

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
from tests.days import now_for
from tests.depth import deep

pytestmark = pytest.mark.spark
LOG, EDITS = dg.AssetKey(["warehouse", "deletion_log"]), dg.AssetKey(["sales", "expiry_log"])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    return small_lake(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """The instance that DAGSTER_HOME names."""
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DAGSTER_HOME", str(home))
        with dg.DagsterInstance.get() as opened:
            yield opened


@pytest.fixture(scope="module")
def run_date() -> str:
    return now_for(minutes=4).date().isoformat()


@pytest.fixture(scope="module")
def applied(spark: SparkSession, lake: SmallLake, instance: dg.DagsterInstance, run_date: str) -> str:
    """The id of a plan that `gc-assets apply` executed."""
    lake.configure(mode="apply")
    (plan,) = json.loads(typed(lake, "run", "--run-date", run_date, "--format", "json").stdout)
    typed(lake, "approve", plan["plan_id"], "--by", "ada")
    typed(lake, "apply", plan["plan_id"])
    return plan["plan_id"]


def typed(lake: SmallLake, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, [*arguments, "--config", str(lake.lakes_yaml)])
    assert result.exit_code == 0, result.stderr
    return result


def newest(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization:
    event = instance.get_latest_materialization_event(key)
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization


def by_page(lake: SmallLake, plan_id: str, run_date: str) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    """What the job `apply` of the page says of a plan."""
    return launched(lake, "apply", "warehouse__deletion_log", {"plan_id": plan_id}, run_date)


def launched(
    lake: SmallLake, job: str, op: str, config: dict[str, Any], partition_key: str | None = None
) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    """What a job of the page says of assets, where the page may decide."""
    platform = load_platform({}, str(lake.lakes_yaml))
    may = replace(platform, config=platform.config.model_copy(update={"page_may": frozenset({"approve", "restore"})}))
    result = (
        build_definitions(may)
        .resolve_job_def(job)
        .execute_in_process(
            run_config={"ops": {op: {"config": config}}}, partition_key=partition_key, instance=dg.DagsterInstance.ephemeral()
        )
    )
    events = result.get_asset_materialization_events()
    return {event.step_materialization_data.materialization.asset_key: event.step_materialization_data.materialization for event in events}


def test_an_applied_plan_is_on_the_page_as_the_page_itself_would_show_it(
    applied: str, lake: SmallLake, instance: dg.DagsterInstance, run_date: str
) -> None:
    shown = newest(instance, LOG)
    assert (shown.partition, shown.metadata["plan_id"].value) == (run_date, applied)
    assert shown.metadata["quarantined_files"].value >= len(lake.leftovers)
    told = by_page(lake, applied, run_date)[LOG]  # it changes nothing, and shows the log as it is
    assert {name: value for name, value in told.metadata.items() if name != "nothing_changed"} == shown.metadata
    assert told.tags["dagster/data_version"] == shown.tags["dagster/data_version"]


def test_the_edits_of_an_applied_plan_are_on_the_page_too(
    applied: str, lake: SmallLake, instance: dg.DagsterInstance, run_date: str
) -> None:
    shown = newest(instance, EDITS)
    rows = json.loads(typed(lake, "show", "expiry_log", "--format", "json").stdout)
    assert (shown.partition, shown.metadata["plan_id"].value) == (run_date, applied)
    assert shown.metadata["done_edits"].value == shown.metadata["dagster/row_count"].value == len(rows) > 0


def test_who_approved_a_plan_is_on_the_page_with_the_plan(applied: str, instance: dg.DagsterInstance, run_date: str) -> None:
    records = instance.fetch_observations(dg.AssetKey(["warehouse", "deletion_plan"]), limit=100, ascending=True).records
    observed = records[0].asset_observation
    assert observed is not None
    said = {name: observed.metadata[name].value for name in ("plan_id", "status", "approved_by", "approvals")}
    assert (said, observed.partition) == ({"plan_id": applied, "status": "approved", "approved_by": "ada", "approvals": "1 of 1"}, run_date)
    assert newest(instance, LOG).metadata["approved_by"].value == "ada"


def test_the_checks_of_an_applied_plan_are_on_the_page(applied: str, instance: dg.DagsterInstance) -> None:
    del applied
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(LOG, name) for name in ("receipt", "complete", "no_failed_key")]
    )
    assert {key.name: record.status.value for key, record in records.items()} == dict.fromkeys(
        ("receipt", "complete", "no_failed_key"), "SUCCEEDED"
    )


def test_what_was_put_back_is_on_the_page(applied: str, lake: SmallLake, instance: dg.DagsterInstance) -> None:
    (row,) = json.loads(typed(lake, "restore", "--plan", applied, "--format", "json").stdout)
    shown = newest(instance, LOG)
    assert shown.metadata["restored_files"].value == row["files"] > 0
    assert str(shown.metadata["plan_id"].value).startswith("restore-")


def test_a_page_that_cannot_be_told_is_said_and_changes_no_exit_code(
    applied: str, lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "not/an/absolute/path")
    assert "Dagster's page was not told of this" in typed(lake, "restore", "--plan", applied).stderr


@deep
def test_what_the_page_decided_and_applied_is_what_the_command_line_tells(lake: SmallLake, applied: str, run_date: str) -> None:
    del applied
    (plan,) = json.loads(typed(lake, "run", "--format", "json").stdout)
    launched(lake, "approve", "approve_plan", {"plan_id": plan["plan_id"], "by": "ada"})
    shown = by_page(lake, plan["plan_id"], run_date)[LOG]
    listed: dict[str, dict[str, Any]] = {row["plan_id"]: row for row in json.loads(typed(lake, "plans", "--format", "json").stdout)}
    rows = json.loads(typed(lake, "show", "deletion_log", "--format", "json").stdout)
    assert (listed[plan["plan_id"]]["status"], listed[plan["plan_id"]]["approved_by"]) == ("applied", "ada")
    done = [row for row in rows if (row["plan_id"], row["outcome"]) == (plan["plan_id"], "done")]  # beside what was put back before
    assert len(done) == shown.metadata["quarantined_files"].value > 0

    before = lake.keys()
    told = launched(lake, "restore", "put_files_back", {"plan_id": plan["plan_id"]})
    assert told[LOG].metadata["restored_files"].value == len(done) == len(lake.keys() - before)
    (status,) = {row["status"] for row in json.loads(typed(lake, "plans", "--format", "json").stdout) if row["plan_id"] == plan["plan_id"]}
    assert status == "restored"
