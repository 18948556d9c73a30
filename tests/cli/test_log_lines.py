"""`-v` prints the log lines of the stages on standard error; without it a command prints what it always did."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from tests.cli.lakes import write_config
from tests.days import now_for


def rules(root: Path, *options: str) -> Result:
    """A run without Spark: the policy of a lake whose catalog carries a secret."""
    (root / "warehouse").mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "password": "hunter2"}
    path = write_config(root, catalog)
    return CliRunner().invoke(cli, ["run", "--config", str(path), "--lake", "sales", "--through", "current_rules", *options])


def test_with_v_each_stage_says_what_it_begins_and_what_came_of_it_once(tmp_path: Path) -> None:
    run_date = now_for(minutes=0.5).date()
    result = rules(tmp_path, "-v")
    assert result.exit_code == 0, result.stderr
    lines = result.stderr.splitlines()
    for table in ("policy_table", "current_rules"):
        mine = [line for line in lines if f" INFO sales/{table} of {run_date}: " in line]
        assert ["begins run" in line for line in mine] == [True, False]
        assert mine[1].endswith(" rows")
    assert sum("begins run" in line for line in lines) == 2
    assert "hunter2" not in result.stderr


def test_without_v_no_log_line_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = rules(tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "sales/current_rules" in result.stderr, "progress is shown"
    assert "begins run" not in result.output
    assert "ended after" not in result.output
    told = capfd.readouterr()
    assert "begins run" not in told.out + told.err


def test_the_option_in_front_of_the_command_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    path = write_config(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    result = CliRunner().invoke(cli, ["-v", "run", "--config", str(path), "--through", "policy_table", "-v", "--format", "json"])
    assert sum("begins run" in line for line in result.stderr.splitlines()) == 1
    assert json.loads(result.stdout) == []


def test_once_a_command_has_ended_nobody_listens(tmp_path: Path) -> None:
    logger = logging.getLogger("gc_assets")
    before = logger.level, list(logger.handlers)
    rules(tmp_path, "-v")
    assert (logger.level, logger.handlers) == before
