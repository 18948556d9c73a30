"""Problems of `gc-assets doctor` with one cause are one entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gc_assets.cli import context as command_context
from gc_assets.cli.main import cli
from gc_assets.cli.problems import write_problems
from gc_assets.core.errors import GcError
from tests.ports import free_port

CAUSE = "cannot connect to 127.0.0.1:9"


def row(subject: str, check: str, cause: str = CAUSE, todo: str = "Fix it.") -> dict[str, str]:
    return {"subject": subject, "check": check, "verdict": "fail", "found": f"{subject}: {cause}", "todo": todo, "cause": cause}


def test_problems_with_one_cause_are_one_entry(capsys: pytest.CaptureFixture[str]) -> None:
    other = row("archive", "plans", cause="", todo="Make a new plan with `gc-assets run`.")
    write_problems([row("sales", "readable"), other, row("wh", "listable"), row("weather", "readable")])
    assert capsys.readouterr().out.splitlines() == [
        "fail  sales, weather: readable; wh: listable",
        "  Cannot connect to 127.0.0.1:9.",
        "  Fix this, then check again with",
        "    gc-assets doctor",
        "",
        "fail  archive: plans",
        "  archive:",
        "  Make a new plan with",
        "    gc-assets run",
    ]


def test_wide_option_prints_the_text_of_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    write_problems([row("sales", "readable"), row("wh", "listable")], wide=True)
    assert capsys.readouterr().out.count(CAUSE) == 2


def test_wrong_endpoint_is_one_problem_and_skips_dependent_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GcError("replaced")

    monkeypatch.setattr(command_context, "open_spark", refuse)
    endpoint = f"http://127.0.0.1:{free_port()}"
    document = {
        "state": str(tmp_path / "state"),
        "s3": {"endpoint": endpoint, "region": "us-east-1"},
        "storages": [{"name": name, "location": f"s3://lake/{name}/"} for name in ("wh", "other")],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": "s3://lake/wh/weather/"}],
    }
    (tmp_path / "lakes.yaml").write_text(json.dumps(document))
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1", "COLUMNS": "200"}
    result = CliRunner(env=keys).invoke(cli, ["doctor", "--config", str(tmp_path / "lakes.yaml")])
    assert result.exit_code == 1
    entries = [line for line in result.stdout.splitlines() if line.startswith("fail")]
    assert entries == ["fail  spark: session", "fail  weather: readable; wh, other: listable"]
    assert result.stdout.count(endpoint.removeprefix("http://")) == 1
    assert "`s3.endpoint`" in result.stdout
    assert " skipped" in result.stderr
