"""Where a storage is listed: here what takes a second, in executors all else, and nothing twice or not at all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.progress import jobs_of
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stores.local import listing
from gc_assets.stores.protocol import ListingTask
from tests.stages.lakehouse import STORAGE, Lakehouse

pytestmark = pytest.mark.spark

FOLDERS, FILES = 12, 4


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    house = Lakehouse(spark, tmp_path)
    house.lakes = [house.weather()]
    for folder in range(FOLDERS):
        (house.warehouse / f"f{folder}").mkdir(parents=True)
        for file in range(FILES):
            (house.warehouse / f"f{folder}" / str(file)).touch()
    return house


def listed_here(house: Lakehouse, monkeypatch: pytest.MonkeyPatch, in_a_second: int) -> int:
    """Lists the storage where one process lists so many files a second, and returns how many tasks ran in this process."""
    ran: list[ListingTask] = []
    run = listing.LocalListingTask.run
    with monkeypatch.context() as bounds:
        bounds.setattr(listing, "IN_A_SECOND", in_a_second)
        bounds.setattr(listing, "ENTRIES_PER_TASK", 5)
        bounds.setattr(listing.LocalListingTask, "run", lambda task, budget: ran.append(task) or run(task, budget))
        storage_inventory(house.spark, house.tonight(), STORAGE)
    rows = house.rows("storage_inventory")
    assert sorted(row["key"] for row in rows) == sorted(house.files())
    return len(ran)


def test_a_small_storage_is_listed_without_a_spark_job(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jobs_of(house.spark)
    tasks = listed_here(house, monkeypatch, 1_000)
    assert jobs_of(house.spark) == before
    assert tasks == house.facts("storage_inventory")["tasks"] > 1


def test_a_storage_that_nobody_listed_before_is_begun_here_and_ended_in_executors(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was listed here stands there once, and what was handed on too."""
    assert 0 < listed_here(house, monkeypatch, FILES) < house.facts("storage_inventory")["tasks"]


def test_a_storage_that_held_much_last_night_is_listed_in_executors_from_the_start(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_here(house, monkeypatch, 1_000)
    house.now += timedelta(days=1)
    assert listed_here(house, monkeypatch, FOLDERS * FILES - 1) == 0
    house.now += timedelta(days=1)
    assert listed_here(house, monkeypatch, FOLDERS * FILES) > 0
