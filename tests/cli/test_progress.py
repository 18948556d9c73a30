"""How far a command is: lines that change on a terminal, elsewhere a line whenever nothing was said for ten seconds."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.cells import cell_len
from rich.console import Console

from gc_assets.cli import progress as shown
from gc_assets.cli.dagster_run import PublishedAsset
from gc_assets.cli.progress import Progress, drawn, show_progress
from gc_assets.engine.progress import count_progress, log_activity, measure_work

LONG = "level 2: 1,234,567 containers to decode in 4,096 tasks, of which nobody can say tonight how long each of them will take"


def screen(progress: Progress, width: int) -> list[str]:
    """The lines that a terminal shows."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(drawn(progress, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_shows_the_step_what_it_does_and_how_far_it_is(width: int) -> None:
    progress = Progress()
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


def test_between_the_steps_it_shows_what_the_command_does() -> None:
    progress = Progress()
    assert screen(progress, 80) == [""]
    progress.set_activity("starting Spark")
    assert screen(progress, 80) == ["starting Spark", " 0 s so far"]


def test_a_finished_step_stays_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.start_assets(2)
    progress.finish_asset(PublishedAsset("sales", "lake_refs", 1_234, 0.5))
    assert capsys.readouterr().err == f"  {'sales/lake_refs':<40}{'1,234':>14} rows     0.5 s\n"
    assert screen(progress, 80) == ["2 of 2"]
    progress.finish_asset(PublishedAsset("sales", "policy_table", None, 0.5))
    assert screen(progress, 80) == [""]


def test_elsewhere_a_silence_is_broken_by_the_words_of_the_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "SILENCE_SECONDS", 0.02)
    with show_progress(Progress(), verbose=False), measure_work("warehouse/deletion_log of 2026-11-21"):
        log_activity("quarantine: 5,000 files")
        with count_progress("files on record", lambda: 1_000, 5_000):
            told = until_said(capsys, "on record")
    words = r"  warehouse/deletion_log of 2026-11-21: \d+ s, quarantine: 5,000 files, 1,000 of 5,000 files on record"
    assert any(re.fullmatch(words, line) for line in told.splitlines())


def test_who_reads_the_log_is_shown_nothing_beside_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "SILENCE_SECONDS", 0.001)
    with show_progress(Progress(), verbose=True), measure_work("doctor"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_nothing_is_said_before_the_silence_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(Progress(), verbose=False), measure_work("doctor"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def until_said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What was said once the words were; a minute is longer than any machine needs."""
    said, end = "", time.monotonic() + 60
    while words not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said
