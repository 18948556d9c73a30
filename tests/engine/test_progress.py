"""What a stage says while it works: a line where it begins, one for each part of the work, one at least every ten seconds."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

from gc_assets.core.errors import StateError
from gc_assets.engine import progress
from gc_assets.engine.progress import count_progress, current_work, log_activity, log_progress, measure_work, set_activity, start_run, track
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import CURRENT_RULES, POLICY_TABLE
from tests.assets.platforms import NOW, platform


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return platform(tmp_path).run_context(NOW.date())


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gc_assets")
    caplog.set_level(logging.INFO, logger=__name__)


class Heard(logging.Handler):
    """Set once a line has come that holds the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.heard = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.heard.set()

    def wait(self) -> None:
        """Until the line comes; a minute is longer than any machine needs."""
        logging.getLogger(__name__).addHandler(self)
        try:
            assert self.heard.wait(60)
        finally:
            logging.getLogger(__name__).removeHandler(self)


@log_progress(POLICY_TABLE)
def empty_table(context: RunContext, lake_name: str) -> PublishedTable:
    run = start_run(context, lake_name, POLICY_TABLE)
    log_activity("3 rules to read")
    return publish(context.state, run, write_rows(POLICY_TABLE.schema.empty_table(), POLICY_TABLE, run, context.state.files), context.clock)


def test_a_stage_says_what_it_begins_how_much_it_does_and_what_came_of_it(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    run_id = empty_table(context, "sales").receipt.run_id
    begun, much, ended = caplog.messages
    assert begun == f"sales/policy_table of 2026-03-14: begins run {run_id}"
    assert much == "sales/policy_table of 2026-03-14: 3 rules to read"
    assert re.fullmatch(r"sales/policy_table of 2026-03-14: ended after \d+\.\d s: policy_table 0 rows", ended)


def test_the_lines_of_a_stage_come_from_the_logger_of_its_module(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    empty_table(context, "sales")
    assert {record.name for record in caplog.records} == {__name__}


def test_a_silence_is_broken_by_what_the_stage_does_and_how_far_it_is(
    context: RunContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    @log_progress(POLICY_TABLE)
    def long(_: RunContext, __: str) -> None:
        with count_progress("edits", lambda: 12, 30):
            Heard("12 of 30 edits").wait()

    long(context, "sales")
    assert any(re.fullmatch(r"sales/policy_table of 2026-03-14: \d+ s, 12 of 30 edits", said) for said in caplog.messages)


def test_only_the_innermost_stage_breaks_the_silence(
    context: RunContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    heard = list[str]()

    @log_progress(CURRENT_RULES)
    def inner(_: RunContext, __: str) -> None:
        set_activity("reading")
        Heard("reading").wait()
        caplog.clear()  # of what a busy machine let the outer one say before
        for _ in range(2):
            Heard("reading").wait()
        heard.extend(caplog.messages)

    @log_progress(POLICY_TABLE)
    def outer(context: RunContext, name: str) -> None:
        set_activity("waiting for another")
        inner(context, name)

    outer(context, "sales")
    assert heard
    assert not any("waiting for another" in text for text in heard)


def test_progress_that_cannot_be_told_does_not_stop_the_stage(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    def unknown() -> int:
        raise OSError("the store does not answer")

    @log_progress(POLICY_TABLE)
    def long(_: RunContext, __: str) -> str:
        with count_progress("files", unknown):
            Heard(" s").wait()
        return "done"

    assert long(context, "sales") == "done"


def test_a_stage_that_fails_says_by_which_kind_of_error_and_no_more(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    @log_progress(POLICY_TABLE)
    def failing(_: RunContext, __: str) -> None:
        raise StateError("postgresql://ada:secret@host/catalog does not answer")

    with pytest.raises(StateError):
        failing(context, "sales")
    assert re.search(r"stopped by StateError after \d", caplog.messages[-1])
    assert "secret" not in caplog.text


def test_outside_of_a_stage_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    log_activity("nothing")
    set_activity("nothing")
    with count_progress("nothing", lambda: 1):
        assert current_work() is None
    assert list(track("ab", "letters")) == ["a", "b"]
    assert caplog.messages == []


def test_at_any_time_a_display_is_told_what_the_innermost_stage_does_and_how_far_all_is(context: RunContext) -> None:
    @log_progress(CURRENT_RULES)
    def inner(_: RunContext, __: str) -> str:
        log_activity("reading rules")
        with count_progress("rules", lambda: 3, 12):
            work = current_work()
        assert work is not None
        return f"{work.name} | {work.outer_activity} | {work}"

    @log_progress(POLICY_TABLE)
    def outer(context: RunContext, name: str) -> list[str]:
        log_activity("marking afresh")
        return [inner(context, lake) for lake in track(["sales", "weather"], "lakes", 2)]

    found = outer(context, "warehouse")
    assert found[0] == "sales/current_rules of 2026-03-14 | marking afresh, 0 of 2 lakes | 0 s, reading rules, 3 of 12 rules"
    assert found[1].startswith("weather/current_rules of 2026-03-14 | marking afresh")
    assert current_work() is None


def test_a_count_is_told_as_long_as_its_part_of_the_work_goes_on() -> None:
    with measure_work("doctor"):
        with count_progress("files", lambda: 7):
            assert str(current_work()) == "0 s, 7 files"
            set_activity("storage warehouse")
            assert str(current_work()) == "0 s, storage warehouse, 7 files"
        assert str(current_work()) == "0 s, storage warehouse"


def test_counting_asks_once_a_second_at_most_and_keeps_to_its_share_of_the_time() -> None:
    asked = list[int]()

    def done() -> int:
        asked.append(1)
        return len(asked)

    with measure_work("apply"), count_progress("files", done):
        told = {str(current_work()) for _ in range(50)}
    assert (len(asked), told) == (1, {"0 s, 1 files"})
