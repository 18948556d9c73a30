"""The commands of docs/cli.md, line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from tests.cli.lakes import small_lake
from tests.commands import command_lines
from tests.dates import now_before_midnight
from tests.depth import full_suite_only
from tests.shell import blocks

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


@full_suite_only
def test_commands_of_the_cli_page_work_in_order(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks(PAGE.read_text()) if block.startswith("$ gc-assets doctor"))
    now_before_midnight(minutes=2)
    lake = small_lake(tmp_path)
    before = lake.keys()
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments])
        assert result.exit_code == 0, (arguments, result.stderr)
        return result.stdout

    def fill_placeholders(word: str) -> str:
        if word == "PLAN_ID":
            return json.loads(run_command("plans", "--format", "json"))[0]["plan_id"]
        return json.loads(run_command("show", "deletion_plan", "--format", "json"))[0]["key"] if word == "KEY" else word

    lines = [*command_lines(f"```console\n{block}```")]
    for line in lines:
        run_command(*map(fill_placeholders, line))
        assert (before - lake.keys() != set()) == (line[0] == "apply"), line
    assert [line[0] for line in lines[-3:]] == ["approve", "apply", "restore"]
    assert "<svg" in (tmp_path / "report.html").read_text()
