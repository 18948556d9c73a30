"""A stage logs its start, its activities, and a progress line at least every ten seconds."""

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


class LineWaiter(logging.Handler):
    """Waits for a log line that contains a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.lines = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.lines.set()

    def wait(self) -> None:
        """Wait for the line, at most a minute."""
        logging.getLogger(__name__).addHandler(self)
        try:
            assert self.lines.wait(60)
        finally:
            logging.getLogger(__name__).removeHandler(self)


@log_progress(POLICY_TABLE)
def empty_table(context: RunContext, lake_name: str) -> PublishedTable:
    run = start_run(context, lake_name, POLICY_TABLE)
    log_activity("3 rules to read")
    return publish(context.state, run, write_rows(POLICY_TABLE.schema.empty_table(), POLICY_TABLE, run, context.state.files), context.clock)


def test_stage_logs_run_stage_and_result(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    run_id = empty_table(context, "sales").receipt.run_id
    begun, much, ended = caplog.messages
    assert begun == f"sales/policy_table of 2026-03-14: begins run {run_id}"
    assert much == "sales/policy_table of 2026-03-14: 3 rules to read"
    assert re.fullmatch(r"sales/policy_table of 2026-03-14: ended after \d+\.\d s: policy_table 0 rows", ended)


def test_stage_logs_to_module_logger(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    empty_table(context, "sales")
    assert {record.name for record in caplog.records} == {__name__}


def test_long_silent_stage_logs_progress(context: RunContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    @log_progress(POLICY_TABLE)
    def long(_: RunContext, __: str) -> None:
        with count_progress("edits", lambda: 12, 30):
            LineWaiter("12 of 30 edits").wait()

    long(context, "sales")
    assert any(re.fullmatch(r"sales/policy_table of 2026-03-14: \d+ s, 12 of 30 edits", message) for message in caplog.messages)


def test_only_innermost_stage_logs_progress(context: RunContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    lines = list[str]()

    @log_progress(CURRENT_RULES)
    def inner(_: RunContext, __: str) -> None:
        set_activity("reading")
        LineWaiter("reading").wait()
        caplog.clear()  # drop the lines that the outer stage logged on a busy machine
        for _ in range(2):
            LineWaiter("reading").wait()
        lines.extend(caplog.messages)

    @log_progress(POLICY_TABLE)
    def outer(context: RunContext, name: str) -> None:
        set_activity("waiting for another")
        inner(context, name)

    outer(context, "sales")
    assert lines
    assert not any("waiting for another" in text for text in lines)


def test_failing_progress_counter_does_not_stop_stage(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.05)

    def unknown() -> int:
        raise OSError("the store does not answer")

    @log_progress(POLICY_TABLE)
    def long(_: RunContext, __: str) -> str:
        with count_progress("files", unknown):
            LineWaiter(" s").wait()
        return "done"

    assert long(context, "sales") == "done"


def test_failed_stage_logs_error_type_only(context: RunContext, caplog: pytest.LogCaptureFixture) -> None:
    @log_progress(POLICY_TABLE)
    def failing(_: RunContext, __: str) -> None:
        raise StateError("postgresql://ada:secret@host/catalog does not answer")

    with pytest.raises(StateError):
        failing(context, "sales")
    assert re.search(r"stopped by StateError after \d", caplog.messages[-1])
    assert "secret" not in caplog.text


def test_no_progress_is_logged_outside_stages(caplog: pytest.LogCaptureFixture) -> None:
    log_activity("nothing")
    set_activity("nothing")
    with count_progress("nothing", lambda: 1):
        assert current_work() is None
    assert list(track("ab", "letters")) == ["a", "b"]
    assert caplog.messages == []


def test_current_work_contains_inner_and_outer_stage(context: RunContext) -> None:
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


def test_progress_counter_applies_only_inside_its_context() -> None:
    with measure_work("doctor"):
        with count_progress("files", lambda: 7):
            assert str(current_work()) == "0 s, 7 files"
            set_activity("storage warehouse")
            assert str(current_work()) == "0 s, storage warehouse, 7 files"
        assert str(current_work()) == "0 s, storage warehouse"


def test_progress_counter_is_called_at_most_once_a_second() -> None:
    calls = list[int]()

    def count() -> int:
        calls.append(1)
        return len(calls)

    with measure_work("apply"), count_progress("files", count):
        texts = {str(current_work()) for _ in range(50)}
    assert (len(calls), texts) == (1, {"0 s, 1 files"})
