"""A run does not read an inventory report that is older than the listing of the last run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import StoreError
from gc_assets.core.findings import FAIL, OK, Finding, run_check
from gc_assets.engine.progress import start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, publish
from gc_assets.stages.read.doctor_records import check_report
from gc_assets.stages.sweep.listings import require_newer_report
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.stores.protocol import ListingPlan, Report
from tests.stages.lakehouse import STORAGE, Lakehouse

SCAN = datetime(2026, 11, 22, 4, tzinfo=UTC)
NOW = SCAN + timedelta(hours=8)


def publish_inventory(root: Path, report_as_of: datetime | None, now: datetime = NOW, **summary: Any) -> Lakehouse:
    """Publish a listing of a run, and return its house."""
    spark: Any = None  # not used
    house = Lakehouse(spark, root, now=now)
    house.lakes = [house.weather()]
    context = house.run_context()
    run = start_run(context, STORAGE, STORAGE_INVENTORY)
    values = {"objects": 0, "bytes": 0, "problems": {}, "tasks": 1, "full_listing_on": context.run_date.isoformat()}
    values |= {"location": context.storage(STORAGE).location, "report": "s3://reports/newest/manifest.json", **summary}
    values |= {"report_as_of": None if report_as_of is None else report_as_of.isoformat()}
    publish(context.state, run, WrittenParts((), 0), context.clock, summary=values)
    return house


@dataclass(frozen=True)
class StubLister:
    """A lister with one report, which is usable by itself."""

    as_of: datetime

    def plan(self, *_: Any) -> ListingPlan:
        return ListingPlan([], Report("s3://reports/found/manifest.json", self.as_of))

    def examine(self, *_: Any) -> Iterator[Finding]:
        yield Finding(STORAGE, "inventory", OK, "a report")


def check(house: Lakehouse, as_of: datetime) -> None:
    require_newer_report(house.run_context(), STORAGE, Report("s3://reports/found/manifest.json", as_of))


@pytest.mark.parametrize("days", [0, 1], ids=["same run date", "next run date"])
def test_report_older_than_that_of_the_last_run_is_refused(tmp_path: Path, days: int) -> None:
    house = publish_inventory(tmp_path, SCAN)
    house.now += timedelta(days=days)
    check(house, SCAN)
    with pytest.raises(
        StoreError, match=r"found/manifest.json is from 2026-11-22T03:59:59.* the last run used .*newest/manifest.json from"
    ):
        check(house, SCAN - timedelta(seconds=1))


def test_report_older_than_the_last_listing_is_refused(tmp_path: Path) -> None:
    house = publish_inventory(tmp_path, None, listed_at=NOW.isoformat(), rehearsal=True)
    check(house, NOW)
    with pytest.raises(StoreError, match=r"manifest.json is from 2026-11-22T04:00.* the last run listed the storage at 2026-11-22T12:00"):
        check(house, SCAN)


def test_time_of_a_rehearsed_listing_does_not_matter_to_a_real_run(tmp_path: Path) -> None:
    house = publish_inventory(tmp_path, None, listed_at=NOW.isoformat(), rehearsal=False)
    check(house, SCAN)


def test_doctor_fails_for_a_report_that_a_run_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = publish_inventory(tmp_path, SCAN)
    context = house.run_context()
    for as_of, verdicts in ((SCAN, [OK]), (SCAN - timedelta(seconds=1), [FAIL])):
        monkeypatch.setattr(RunContext, "lister", lambda *_, scan=as_of: StubLister(scan))
        findings = list(run_check(STORAGE, "inventory", partial(check_report, context, context.storage(STORAGE))))
        assert [finding.verdict for finding in findings] == verdicts


def test_report_of_another_location_is_not_compared(tmp_path: Path) -> None:
    check(publish_inventory(tmp_path, SCAN, location="file:///moved/"), SCAN - timedelta(days=1))


def test_run_of_an_earlier_date_ignores_later_reports(tmp_path: Path) -> None:
    house = publish_inventory(tmp_path, SCAN)
    house.now -= timedelta(days=1)
    check(house, SCAN - timedelta(days=1))
