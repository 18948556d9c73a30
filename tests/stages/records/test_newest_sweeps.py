"""Which sweep counts as the newest one of a storage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.accepted_runs import accepted_runs
from gc_assets.stages.records.newest_sweeps import find_newest_sweep, find_sweep, list_newest_sweeps
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.other_listings import find_listing_time
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.schemas import ORPHAN_FILES, STORAGE_INVENTORY
from gc_assets.state.summaries import StorageInventorySummary
from tests.stages.lakehouse import NOW, STORAGE
from tests.stages.sweep.test_dropped_tables import Shop, touch

pytestmark = pytest.mark.spark


@dataclass
class Runs:
    """The runs of days 1, 2 and 25."""

    shop: Shop

    def context(self, day: float, run_day: float | None = None, *, verification_id: str | None = None) -> RunContext:
        """Return the context of a run of `run_day` at the time `day`, or of an apply."""
        run_date = (NOW + timedelta(days=day if run_day is None else run_day)).date()
        context = RunContext.of(self.shop.house.config, Clock(NOW + timedelta(days=day)), run_date)
        return replace(context, verification_id=verification_id)

    def run_id(self, day: float) -> str:
        """Return the run id of a run's sweep."""
        return self.context(25).state.require(STORAGE, "orphan_files", (NOW + timedelta(days=day)).date()).receipt.run_id


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    shop = Shop(spark, tmp_path_factory.mktemp("runs"), "a")
    for day in (1, 2, 25):
        shop.run(day)
    return Runs(shop)


def newest(context: RunContext) -> str | None:
    found = find_newest_sweep(context, STORAGE)
    return None if found is None else found.receipt.run_id


def test_sweep_with_clock_ahead_is_not_newest(runs: Runs) -> None:
    assert newest(runs.context(3)) == runs.run_id(2)
    assert newest(runs.context(26)) == runs.run_id(25)


def test_sweep_with_clock_ahead_is_not_newest_on_its_date_either(spark: SparkSession, tmp_path: Path) -> None:
    runs = Runs(Shop(spark, tmp_path, "a"))
    for day in (1, 12, 2):
        runs.shop.run(day)
    assert newest(runs.context(13)) == runs.run_id(2)
    assert newest(runs.context(12.1)) == runs.run_id(2), "the sweep of its own run date does not count either"
    assert next(accepted_runs(runs.context(13), STORAGE)).receipt.run_date == runs.context(2).run_date
    runs.shop.run(13)
    assert newest(runs.context(14)) == runs.run_id(13)


def test_sweep_with_clock_behind_does_not_replace_later_sweeps(spark: SparkSession, tmp_path: Path) -> None:
    runs = Runs(Shop(spark, tmp_path, "a"))
    for day in (1, 2, 3):
        runs.shop.run(day)
    runs.shop.run(1.1)
    assert newest(runs.context(1.2)) == runs.run_id(1), "the host itself knows no later run"
    assert newest(runs.context(4)) == runs.run_id(3)
    assert next(accepted_runs(runs.context(4), STORAGE)).receipt.run_date == runs.context(3).run_date
    runs.shop.run(4)
    assert newest(runs.context(5)) == runs.run_id(4)


def test_later_of_two_sweeps_of_date_is_newest(spark: SparkSession, tmp_path: Path) -> None:
    runs = Runs(Shop(spark, tmp_path, "a"))
    runs.shop.run(1.2)
    first = runs.run_id(1.2)
    touch(tmp_path / "stray.parquet", NOW)
    runs.shop.run(1.1)  # the clock was set back by hours in between
    assert first != newest(runs.context(2)) == runs.run_id(1.1)


@pytest.mark.parametrize("minutes, day", [(-5, 2), (-6, 1)], ids=["usual_difference", "larger_difference"])
def test_sweep_is_newest_despite_small_clock_difference(runs: Runs, minutes: int, day: float) -> None:
    assert newest(runs.context(2 + minutes / 1440, 1)) == runs.run_id(day)


def test_sweep_of_later_run_date_can_be_newest(runs: Runs) -> None:
    assert newest(runs.context(3, 1)) == runs.run_id(2)


def test_plan_uses_sweep_of_its_run_but_apply_newest_sweep(runs: Runs) -> None:
    plan, apply = runs.context(3, 1), runs.context(3, 1, verification_id="0123-1")
    found = {name: sweep.receipt.run_id for name, context in (("plan", plan), ("apply", apply)) if (sweep := find_sweep(context, STORAGE))}
    assert found == {"plan": runs.run_id(1), "apply": runs.run_id(2)}


def test_sweep_without_plan_can_be_newest(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "a")
    shop.run(1)
    house = shop.house
    house.now = NOW + timedelta(days=1, hours=2)
    orphan_files(spark, house.run_context(), STORAGE)
    house.now = NOW + timedelta(days=3)
    apply = replace(house.run_context(), verification_id="0123-1")
    swept = house.run_context().state.require(STORAGE, "orphan_files", (NOW + timedelta(days=1)).date())
    assert swept.receipt.created_at == NOW + timedelta(days=1, hours=2)
    assert newest(apply) == swept.receipt.run_id
    house.now = NOW + timedelta(days=1, hours=1)
    assert newest(replace(house.run_context(), verification_id="0123-1")) != swept.receipt.run_id


def test_listing_time_of_sweep_is_not_that_of_later_listing(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "a")
    shop.run(1)
    house = shop.house
    before = house.run_context()
    swept = before.table(ORPHAN_FILES, STORAGE)
    listed_at = find_listing_time(before, swept)
    house.now = NOW + timedelta(days=1, hours=2)
    storage_inventory(spark, house.run_context(), STORAGE)
    assert listed_at is not None
    assert house.run_context().table(STORAGE_INVENTORY, STORAGE).summary(StorageInventorySummary).as_of not in {None, listed_at}
    assert find_listing_time(house.run_context(), swept) == listed_at


def test_real_run_ignores_sweeps_of_rehearsals(runs: Runs) -> None:
    real = RunContext.of(runs.shop.house.config, Clock(), datetime.now(UTC).date())
    assert list(list_newest_sweeps(real)) == []
