"""A quick listing runs in this process, others on executors, and no object is listed twice."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine import sessions, tasks
from gc_assets.engine.progress import count_jobs
from gc_assets.stages.sweep import storage_inventory
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


def count_tasks_in_process(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch, seconds: float = storage_inventory.MAX_IN_PROCESS_SECONDS
) -> int:
    """List the storage with this time limit, and return how many tasks ran in this process."""
    ran: list[ListingTask] = []
    run = listing.LocalListingTask.run
    with monkeypatch.context() as bounds:
        bounds.setattr(storage_inventory, "MAX_IN_PROCESS_SECONDS", seconds)
        bounds.setattr(listing, "ENTRIES_PER_TASK", 5)
        bounds.setattr(listing.LocalListingTask, "run", lambda task, budget: ran.append(task) or run(task, budget))
        storage_inventory.storage_inventory(house.spark, house.run_context(), STORAGE)
    rows = house.rows("storage_inventory")
    assert sorted(row["key"] for row in rows) == sorted(house.files())
    return len(ran)


def test_storage_that_is_listed_quickly_needs_no_spark_job(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_tasks_in_process(house, monkeypatch) == 0
    assert 0 < house.summary("storage_inventory")["listing_seconds"] < storage_inventory.MAX_IN_PROCESS_SECONDS
    house.now += timedelta(days=1)
    before = count_jobs(house.spark)
    assert count_tasks_in_process(house, monkeypatch) == house.summary("storage_inventory")["tasks"] > 1
    assert count_jobs(house.spark) == before


def test_slow_or_unknown_storage_is_listed_in_executors(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_tasks_in_process(house, monkeypatch) == 0
    house.now += timedelta(days=1)
    assert count_tasks_in_process(house, monkeypatch, seconds=0.0) == 0


def test_listing_before_the_first_job_of_a_local_session_starts_no_job(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sessions.is_local(house.spark):
        pytest.skip("the limit applies to local sessions, and others report no number of jobs")
    count_tasks_in_process(house, monkeypatch)
    house.now += timedelta(days=1)
    before = count_jobs(house.spark)
    monkeypatch.setattr(tasks, "count_jobs", lambda _: 0)
    assert count_tasks_in_process(house, monkeypatch, seconds=0.0) == house.summary("storage_inventory")["tasks"] > 1
    assert count_jobs(house.spark) == before


def test_listing_tasks_over_time_limit_run_in_executors_once(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task uses all the time."""
    count_tasks_in_process(house, monkeypatch)
    house.now += timedelta(days=1)
    tick = iter(range(0, 10**6, 10))
    with monkeypatch.context() as slow:
        slow.setattr(storage_inventory, "time", SimpleNamespace(perf_counter=lambda: float(next(tick) // 20 * 20)))
        assert count_tasks_in_process(house, monkeypatch) == 1
    assert house.summary("storage_inventory")["tasks"] > 2
