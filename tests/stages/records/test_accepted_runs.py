"""The baseline of a run, and the lakes that users removed from it.

A lake can be forgotten in a real run, not by a rehearsal or a record from the future.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.gates import live_drop
from gc_assets.core.plan import GateResult, LiveCount, PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.accepted_runs import AcceptedRun, add_drops, forget_lake
from tests.core.test_plan import plan
from tests.records import LAKE, run_context_at

CREATED_AT = datetime.now(UTC) - timedelta(days=2)
THEN = plan(created_at=CREATED_AT, live_files=7, live_by_lake={LAKE: 7}, refs_digests={LAKE: "a" * 16})


def test_forgotten_lake_is_not_reported_as_missing(tmp_path: Path) -> None:
    config = run_context_at(tmp_path).config
    run_context = RunContext.of(config, Clock(), Clock().today())
    assert AcceptedRun.of(run_context, THEN).missing_lakes(LiveCount(0)) == ["weather (no live files now, 7 live files before)"]
    forget_lake(config, Clock(), LAKE, "ada")
    earlier = AcceptedRun.of(run_context, THEN)
    assert earlier.missing_lakes(LiveCount(0)) == []
    assert earlier.count(LiveCount(0)) == LiveCount(0)
    assert earlier.count(LiveCount(3, {LAKE: 3})) == LiveCount(7, {LAKE: 7}), "a lake that is still there is compared"


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(days=400)])
def test_lake_forgotten_in_rehearsal_is_missing_in_real_runs(tmp_path: Path, ahead: timedelta) -> None:
    config = run_context_at(tmp_path).config
    rehearsed = Clock(datetime.now(UTC) + ahead)
    forget_lake(config, rehearsed, LAKE, "ada")
    assert AcceptedRun.of(RunContext.of(config, rehearsed, rehearsed.today()), THEN).missing_lakes(LiveCount(0)) == []
    assert AcceptedRun.of(RunContext.of(config, Clock(), Clock().today()), THEN).missing_lakes(LiveCount(0)) != []


def test_lake_forgotten_before_plan_is_reported_as_missing(tmp_path: Path) -> None:
    config = run_context_at(tmp_path).config
    forget_lake(config, Clock(), LAKE, "ada")
    later = plan(created_at=datetime.now(UTC), live_files=7, live_by_lake={LAKE: 7}, refs_digests={LAKE: "a" * 16})
    assert AcceptedRun.of(RunContext.of(config, Clock(), Clock().today()), later).missing_lakes(LiveCount(0)) != []


def test_lake_that_never_had_live_files_is_not_reported_as_missing(tmp_path: Path) -> None:
    run_context = run_context_at(tmp_path)
    empty = plan(created_at=CREATED_AT, live_files=0, live_by_lake={}, refs_digests={"typo": "a" * 16})
    assert AcceptedRun.of(run_context, empty).missing_lakes(LiveCount(0)) == []
    old = plan(created_at=CREATED_AT, live_files=7, live_by_lake={}, refs_digests={"sales": "a" * 16})
    assert AcceptedRun.of(run_context, old).missing_lakes(LiveCount(0)) == ["sales (not in lakes.yaml now, configured before)"]


def header_of_run(*, expired: Mapping[str, int] | None = None, passed: bool = True, **live: int) -> PlanHeader:
    """The plan of a run with these live and expired files by lake."""
    since = LiveCount(sum((expired or {}).values()), expired or {})
    numbers = live_drop(LiveCount(1), LiveCount(1), 0.0, since).numbers
    gate = GateResult(name="live_drop", passed=passed, message="", overridable=True, numbers=numbers)
    return plan(live_files=sum(live.values()), live_by_lake=live, refs_digests=dict.fromkeys(live, "a" * 16), gates=(gate,))


def test_live_file_drops_of_plans_of_one_date_add_up() -> None:
    day_before = header_of_run(sales=60, little=40)
    assert add_drops([day_before]) == LiveCount(100, {"sales": 60, "little": 40})
    assert add_drops([header_of_run(sales=50, little=34), header_of_run(sales=55, little=38), day_before]) == add_drops([day_before])
    assert add_drops([header_of_run(sales=70, little=34), day_before]) == LiveCount(104, {"sales": 70, "little": 40})


def test_expired_files_do_not_count_as_live_file_drop() -> None:
    assert add_drops([header_of_run(sales=30, expired={"sales": 20}), header_of_run(sales=60)]) == LiveCount(40, {"sales": 40})


def test_expired_files_do_not_hide_drop_in_another_lake() -> None:
    plans = [header_of_run(sales=30, little=10, expired={"sales": 30}), header_of_run(sales=60, little=40)]
    assert add_drops(plans) == LiveCount(70, {"sales": 30, "little": 40})


def test_approved_live_file_drop_is_not_counted_in_later_runs() -> None:
    plans = [header_of_run(sales=28), header_of_run(sales=30, passed=False), header_of_run(sales=55), header_of_run(sales=60)]
    assert add_drops(plans) == LiveCount(30, {"sales": 30})


def test_removed_lake_is_not_counted_as_drop_in_later_runs() -> None:
    assert add_drops([header_of_run(sales=60), header_of_run(sales=60, little=40)]) == LiveCount(60, {"sales": 60})
