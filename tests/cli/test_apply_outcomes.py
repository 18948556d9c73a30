"""An apply that is interrupted, then runs out of time: messages, status and exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.stages.delete import execution
from tests.cli.lakes import SmallLake, small_lake
from tests.depth import in_turn

pytestmark = [pytest.mark.spark, in_turn]


class RehearsedShell:
    """Runs commands under a clock that the test moves."""

    def __init__(self, lake: SmallLake) -> None:
        self.lakes_yaml = lake.configure(mode="apply", rehearsals="allowed", quarantine_days=1)
        self.now = datetime.now(UTC)

    def __call__(self, *arguments: str) -> Result:
        env = {"GC_ASSETS_UNSAFE_NOW": self.now.isoformat(), "COLUMNS": "400"}
        return CliRunner(env=env).invoke(cli, [*arguments, "--config", str(self.lakes_yaml)])

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        return json.loads(self(*arguments, "--format", "json").stdout)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    return small_lake(tmp_path_factory.mktemp("outcomes"))


@pytest.fixture(scope="module")
def approved(spark: SparkSession, lake: SmallLake) -> tuple[RehearsedShell, dict[str, Any]]:
    """Return a shell and an approved plan with history edits and files."""
    shell = RehearsedShell(lake)
    (plan,) = json.loads(shell("run", "--format", "json").stdout)
    assert shell("approve", plan["plan_id"], "--by", "ada").exit_code == 0
    return shell, plan


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_apply_reports_final_edits_and_expired_rest_is_skipped(
    approved: tuple[RehearsedShell, dict[str, Any]], lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, plan = approved
    name, files, edits = plan["plan_id"][:12], plan["files"], plan["expiry_actions"]["sales"]
    before = lake.keys()
    with monkeypatch.context() as patch:
        patch.setattr(execution, "execute_in_process", interrupt)
        interrupted = shell("apply", name)
    assert interrupted.exit_code == 130
    made = f"- Expire: {edits} of {edits} edits of the history of lake sales made (shop.orders, shop.visits). They are final."
    assert made in interrupted.stderr
    assert "Quarantine:" not in interrupted.stderr
    assert f"gc-assets apply {name} --end" in interrupted.stderr
    assert "All steps so far are complete" not in interrupted.stderr
    assert shell.json("plans")[0]["status"] == "unfinished"

    shell.now += timedelta(days=4)
    late = shell("apply", name)
    assert late.exit_code == 1
    assert f"Quarantine: 0 files moved to quarantine; {files} were denied." in late.stderr
    assert f"- {files} denied: the plan was out of date before this key was executed." in late.stderr
    assert f"gc-assets show deletion_log --storage warehouse --run-date {plan['run_date']}" in late.stderr
    assert "Can be undone: nothing." in late.stderr
    assert f"Cannot be undone: {edits} edits of the history of lake sales" in late.stderr
    assert "Becomes free: nothing." in late.stderr
    assert f"Not changed: {files} files of phase quarantine (denied)" in late.stderr
    assert before <= lake.keys()

    (listed,) = shell.json("plans")
    assert (listed["status"], listed["not_done"]) == ("partially applied", {"quarantine/denied": files})
    again = shell("apply", name)
    assert (again.exit_code, "was applied in part" in again.stderr) == (1, True)
    assert shell("plans", "--status", "partially applied").exit_code == 0


def test_plan_ended_by_the_user_is_no_longer_unfinished(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = RehearsedShell(small_lake(tmp_path))
    (plan,) = json.loads(shell("run", "--format", "json").stdout)
    name = plan["plan_id"][:12]
    shell("approve", name, "--by", "ada")
    with monkeypatch.context() as patch:
        patch.setattr(execution, "execute_in_process", interrupt)
        shell("apply", name)
    (row,) = shell.json("plans", "--status", "unfinished")
    assert row["apply_by"] is not None
    ended = shell("apply", name, "--end")
    assert ended.exit_code == 0
    assert "The plan has ended, but is only partially applied. Not changed: " in ended.stderr
    assert f"gc-assets show expiry_log --lake sales --run-date {plan['run_date']}" in ended.stderr
    (row,) = shell.json("plans", "--status", "partially applied")
    assert row["apply_by"] is None
