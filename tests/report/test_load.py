"""The data of earlier runs in the report."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.report.load import load_report, past_plans
from gc_assets.report.run_report import StoragePage
from gc_assets.stages.records.plans import approve
from gc_assets.state.schemas import ORPHAN_FILES
from tests.assets.platforms import TODAY, platform, stored_plan
from tests.records import EMPTY_SWEEP, NOW, STORAGE, publish_mark, publish_table, run_context_at

NO_LAKE = ("-",)
YESTERDAY = (date.fromisoformat(TODAY) - timedelta(days=1)).isoformat()


def publish_sweep(root: Path, days_ago: int, live_bytes: int, **summary: Any) -> RunContext:
    """Publish `orphan_files` of an earlier run date."""
    context = run_context_at(root)
    context = replace(context, clock=Clock(NOW - timedelta(days=days_ago)), run_date=NOW.date() - timedelta(days=days_ago))
    storage_breakdown = {"live": {"files": 2, "bytes": live_bytes}}
    texts: dict[str, Any] = {**EMPTY_SWEEP, "storage_breakdown": storage_breakdown, "live_keys": 2, **summary}
    publish_table(context, STORAGE, ORPHAN_FILES, **texts)
    return context


def page_of(context: RunContext) -> StoragePage:
    publish_mark(context)
    (page,) = load_report(context, lakes=NO_LAKE).storages
    return page


def day(days_ago: int) -> date:
    return NOW.date() - timedelta(days=days_ago)


def test_changes_ignore_historical_runs(tmp_path: Path) -> None:
    publish_sweep(tmp_path, 3, 1_000)
    publish_sweep(tmp_path, 1, 9_000, historical=True)
    page = page_of(publish_sweep(tmp_path, 0, 4_000))
    assert page.previous_run_date == day(3)
    assert {change.label: (change.previous, change.current) for change in page.changes}["live, bytes"] == (1_000, 4_000)


def test_trend_omits_historical_runs(tmp_path: Path) -> None:
    runs = [publish_sweep(tmp_path, days_ago, size, historical=days_ago == 2) for days_ago, size in ((3, 10), (2, 20), (1, 30), (0, 40))]
    assert [(point.run_date, point.stored) for point in page_of(runs[3]).trend] == [(day(3), 10), (day(1), 30), (day(0), 40)]
    assert [point.run_date for point in page_of(runs[2]).trend] == [day(3), day(1)]


def test_historical_run_has_no_comparison(tmp_path: Path) -> None:
    publish_sweep(tmp_path, 1, 10)
    page = page_of(publish_sweep(tmp_path, 0, 20, historical=True))
    assert (page.previous_run_date, page.changes, page.trend) == (None, (), ())


def test_recent_plans_have_decisions(tmp_path: Path) -> None:
    at = platform(tmp_path)
    ids = [str(stored_plan(at, files=files, run_date=day).receipt.summary["plan_id"]) for files, day in ((1, TODAY), (2, YESTERDAY))]
    approve(at.config, at.clock, ids[1], "ada")
    today, yesterday = (at.run_context(date.fromisoformat(day)) for day in (TODAY, YESTERDAY))
    assert {plan.plan_id for plan in past_plans(today, STORAGE)} == set(ids)
    (only,) = past_plans(yesterday, STORAGE)
    assert (only.plan_id, only.status, only.amounts["quarantine"].files) == (ids[1], "REHEARSAL approved", 2)
    assert "approved by ada" in only.decisions[0]


def test_difference_between_live_and_listed_file_counts_is_reported(tmp_path: Path) -> None:
    assert page_of(publish_sweep(tmp_path, 1, 10)).live_named is None
    assert page_of(publish_sweep(tmp_path, 0, 10, live_keys=3)).live_named == 3
