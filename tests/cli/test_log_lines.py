"""`-v` prints the log lines of the stages to standard error."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gc_assets.cli.main import cli
from gc_assets.engine import telemetry
from tests.cli.lakes import write_config
from tests.dates import now_before_midnight


def run_policy(root: Path, *options: str) -> Result:
    """Run without Spark: read the policy of a lake whose catalog has a secret."""
    (root / "warehouse").mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "password": "hunter2"}
    path = write_config(root, catalog)
    return CliRunner().invoke(cli, ["run", "--config", str(path), "--lake", "sales", "--through", "current_rules", *options])


def test_verbose_prints_begin_and_end_of_each_stage(tmp_path: Path) -> None:
    run_date = now_before_midnight(minutes=0.5).date()
    result = run_policy(tmp_path, "-v")
    assert result.exit_code == 0, result.stderr
    lines = result.stderr.splitlines()
    for table in ("policy_table", "current_rules"):
        mine = [line for line in lines if f" INFO sales/{table} of {run_date}: " in line]
        assert ["begins run" in line for line in mine] == [True, False]
        assert mine[1].endswith(" 1 row")
    assert sum("begins run" in line for line in lines) == 2
    assert "hunter2" not in result.stderr


def test_log_lines_are_hidden_by_default(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run_policy(tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "sales/current_rules" in result.stderr, "progress is shown"
    assert "begins run" not in result.output
    assert "ended after" not in result.output
    lines_of_run = capfd.readouterr()
    assert "begins run" not in lines_of_run.out + lines_of_run.err


def test_verbose_can_precede_the_command(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    path = write_config(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    result = CliRunner().invoke(cli, ["-v", "run", "--config", str(path), "--through", "policy_table", "-v", "--format", "json"])
    assert sum("begins run" in line for line in result.stderr.splitlines()) == 1
    assert json.loads(result.stdout) == []


def test_stages_of_a_run_are_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    found = telemetry.Telemetry(tracers.get_tracer("test"), MeterProvider().get_meter("test"))
    monkeypatch.setattr(telemetry, "telemetry", lambda: found)
    assert run_policy(tmp_path).exit_code == 0
    *stages, run = spans.get_finished_spans()
    assert run.context is not None
    assert run.name == "run"
    assert {(span.name, span.parent and span.parent.span_id) for span in stages} == {
        (name, run.context.span_id) for name in ("policy_table", "current_rules")
    }


def test_log_handler_is_removed_after_the_command(tmp_path: Path) -> None:
    logger = logging.getLogger("gc_assets")
    before = logger.level, list(logger.handlers)
    run_policy(tmp_path, "-v")
    assert (logger.level, logger.handlers) == before
