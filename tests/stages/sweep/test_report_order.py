"""A run does not read an older inventory report than the last run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import StoreError
from gc_assets.engine.progress import start_run
from gc_assets.engine.tables import WrittenParts, publish
from gc_assets.stages.sweep.listings import require_newer_report
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.stores.protocol import Report
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


def test_first_report_after_a_listing_may_be_older_than_the_listing(tmp_path: Path) -> None:
    check(publish_inventory(tmp_path, None, listed_at=NOW.isoformat()), SCAN)


def test_report_of_another_location_is_not_compared(tmp_path: Path) -> None:
    check(publish_inventory(tmp_path, SCAN, location="file:///moved/"), SCAN - timedelta(days=1))


def test_run_of_an_earlier_date_ignores_later_reports(tmp_path: Path) -> None:
    house = publish_inventory(tmp_path, SCAN)
    house.now -= timedelta(days=1)
    check(house, SCAN - timedelta(days=1))
