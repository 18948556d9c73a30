"""Progress on a terminal, and in a pipe after ten seconds without output."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.cells import cell_len
from rich.console import Console

from gc_assets.cli import progress
from gc_assets.cli.context import open_session
from gc_assets.cli.dagster_run import PublishedAsset
from gc_assets.cli.progress import CommandProgress, build_display, show_progress
from gc_assets.engine.progress import count_progress, log_activity, measure_work
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import load_platform
from tests.cli.lakes import write_config

LONG = "level 2: 1,234,567 containers to decode in 4,096 tasks, each of which takes a different and unknown amount of time to finish"


def screen(progress: CommandProgress, width: int) -> list[str]:
    """Return the lines that a terminal shows."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(build_display(progress, console).get_renderable())
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100])
def test_terminal_shows_step_activity_and_progress_bar(width: int) -> None:
    progress = CommandProgress()
    progress.start_assets(22)
    with measure_work("sales/live_files of 2026-11-21"):
        log_activity(LONG)
        with count_progress("containers", lambda: 308_641, 1_234_567):
            found = screen(progress, width)
    title, part, bar = found
    assert title == "1 of 22  sales/live_files of 2026-11-21"
    assert part.endswith("…")
    assert LONG.startswith(part.strip(" …"))
    assert "━" in bar
    assert bar.endswith("308,641 of 1,234,567 containers, 0 s so far")
    assert max(map(cell_len, found)) <= width


def test_terminal_shows_the_activity_between_steps() -> None:
    progress = CommandProgress()
    assert screen(progress, 80) == [""]
    progress.set_activity("starting Spark")
    assert screen(progress, 80) == ["starting Spark", "  0 s so far"]


def test_finished_step_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = CommandProgress()
    progress.start_assets(2)
    progress.finish_asset(PublishedAsset("sales", "lake_refs", 1_234, 0.5))
    assert capsys.readouterr().err == f"  {'sales/lake_refs':<40}{'1,234':>14} rows     0.5 s\n"
    assert screen(progress, 80) == ["asset 2 of 2"]
    progress.finish_asset(PublishedAsset("sales", "policy_table", None, 0.5))
    assert screen(progress, 80) == [""]


def test_progress_line_is_written_to_a_pipe_after_silence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.02)
    with show_progress(CommandProgress(), verbose=False), measure_work("warehouse/deletion_log of 2026-11-21"):
        log_activity("quarantine: 5,000 files")
        with count_progress("files on record", lambda: 1_000, 5_000):
            output = wait_for_output(capsys, "on record")
    pattern = r"  warehouse/deletion_log of 2026-11-21: \d+ s, quarantine: 5,000 files, 1,000 of 5,000 files on record"
    assert any(re.fullmatch(pattern, line) for line in output.splitlines())


def test_progress_line_is_printed_while_spark_output_is_redirected(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with show_progress(CommandProgress(), verbose=False) as shown:

        class Slow(Collector):
            def spark(self) -> SparkSession:
                shown.announce("checking sales")
                os.write(2, b"WARN Utils: Your hostname resolves to a loopback address")
                raise KeyboardInterrupt

        platform = load_platform({}, str(write_config(tmp_path, {"type": "sql", "uri": "sqlite:///catalog.db"})))
        with pytest.raises(KeyboardInterrupt):
            open_session(Slow.of(platform))
    assert capfd.readouterr().err == "  checking sales\n"


def test_verbose_option_disables_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.001)
    with show_progress(CommandProgress(), verbose=True), measure_work("doctor"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_progress_line_is_not_written_to_a_pipe_before_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(CommandProgress(), verbose=False), measure_work("doctor"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def wait_for_output(capsys: pytest.CaptureFixture[str], pattern: str) -> str:
    """Return the output after it contains a text, or after one minute."""
    output, end = "", time.monotonic() + 60
    while pattern not in output and time.monotonic() < end:
        time.sleep(0.01)
        output += capsys.readouterr().err
    return output
