"""JSON output contains renamed keys under their deprecated names, too."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from gc_assets.cli.plans import plan_row
from gc_assets.cli.run import plan_summary
from gc_assets.core.plan import Unreadable
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, list_plans
from tests.assets.platforms import platform, stored_plan

TORN = Unreadable(lake="sales", table_uuid="u", why="torn", since=datetime(2026, 3, 14, tzinfo=UTC))


def test_run_prints_deprecated_keys(tmp_path: Path) -> None:
    row = plan_summary(header_of(stored_plan(platform(tmp_path), unreadable=(TORN,))))
    assert row["sick"] == row["unreadable"] != []


def test_plans_prints_deprecated_keys(tmp_path: Path) -> None:
    at = platform(tmp_path)
    approve(at.config, at.clock, header_of(stored_plan(at)).plan_id, "ada")
    (plan,) = list_plans(at.config)
    row = plan_row(plan, at.clock.now())
    assert row["said"] == row["decisions"]
    assert [(event["said"], event["by"]) for event in row["words"]] == [("approved", "ada")]
