"""A lake can be forgotten in a real run, not by a rehearsal or a record from the future."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.plan import LiveCount
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.accepted_runs import AcceptedRun, forget_lake
from tests.core.test_plan import plan
from tests.records import LAKE, run_context_at

CREATED_AT = datetime.now(UTC) - timedelta(days=2)
THEN = plan(created_at=CREATED_AT, live_files=7, live_by_lake={LAKE: 7}, refs_digests={LAKE: "a" * 16})


def test_forgotten_lake_is_not_missing(tmp_path: Path) -> None:
    config = run_context_at(tmp_path).config
    run_context = RunContext.of(config, Clock(), Clock().today())
    assert AcceptedRun.of(run_context, THEN).missing_lakes(LiveCount(0)) == ["weather (no live files now, 7 live files before)"]
    forget_lake(config, Clock(), LAKE, "ada")
    earlier = AcceptedRun.of(run_context, THEN)
    assert earlier.missing_lakes(LiveCount(0)) == []
    assert earlier.count(LiveCount(0)) == LiveCount(0)
    assert earlier.count(LiveCount(3, {LAKE: 3})) == LiveCount(7, {LAKE: 7}), "a lake that is still there is compared"


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(days=400)])
def test_record_of_a_rehearsal_counts_only_in_rehearsals(tmp_path: Path, ahead: timedelta) -> None:
    config = run_context_at(tmp_path).config
    rehearsed = Clock(datetime.now(UTC) + ahead)
    forget_lake(config, rehearsed, LAKE, "ada")
    assert AcceptedRun.of(RunContext.of(config, rehearsed, rehearsed.today()), THEN).missing_lakes(LiveCount(0)) == []
    assert AcceptedRun.of(RunContext.of(config, Clock(), Clock().today()), THEN).missing_lakes(LiveCount(0)) != []


def test_record_before_the_plan_does_not_count(tmp_path: Path) -> None:
    config = run_context_at(tmp_path).config
    forget_lake(config, Clock(), LAKE, "ada")
    later = plan(created_at=datetime.now(UTC), live_files=7, live_by_lake={LAKE: 7}, refs_digests={LAKE: "a" * 16})
    assert AcceptedRun.of(RunContext.of(config, Clock(), Clock().today()), later).missing_lakes(LiveCount(0)) != []


def test_lake_that_never_needed_a_file_is_not_missing(tmp_path: Path) -> None:
    run_context = run_context_at(tmp_path)
    empty = plan(created_at=CREATED_AT, live_files=0, live_by_lake={}, refs_digests={"typo": "a" * 16})
    assert AcceptedRun.of(run_context, empty).missing_lakes(LiveCount(0)) == []
    old = plan(created_at=CREATED_AT, live_files=7, live_by_lake={}, refs_digests={"sales": "a" * 16})
    assert AcceptedRun.of(run_context, old).missing_lakes(LiveCount(0)) == ["sales (not in lakes.yaml now, configured before)"]
