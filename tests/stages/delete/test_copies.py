"""Several quarantined copies of one name, and which of them is restored."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.demo.iceberg_builder import parquet_bytes
from gc_assets.stages.delete.restore import restore
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]

FIRST = parquet_bytes(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}))
SECOND = parquet_bytes(pa.table({"id": pa.array([2, 3, 4], pa.int64()), "part": pa.array(["a", "a", "a"])}))
NAMES = ("older", "newer", "by_hand")


def write_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, (days_ago(20).timestamp(),) * 2)


def test_plan_restores_copy_of_recorded_size_and_command_the_newest(spark: SparkSession, tmp_path: Path) -> None:
    """Each name is quarantined twice with different bytes. Then the lake uses one of the two."""
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.settings = {"quarantine_days": 30}
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    data = house.warehouse / "db" / "t" / "data"
    places = {name: data / f"{name}.parquet" for name in NAMES}
    for day, content in ((3, FIRST), (2, SECOND)):
        house.now = days_ago(day)
        for place in places.values():
            write_file(place, content)
        house.approve_and_apply(house.plan())
        assert not any(place.exists() for place in places.values())

    house.now = days_ago(1)
    for name, content in (("older", FIRST), ("newer", SECOND)):
        write_file(places[name], content)
        with lake.at(house.now):
            table.table.add_files([f"file://{places[name]}"], check_duplicate_files=False)
        places[name].unlink()
    header = house.plan()
    assert header.totals["restore"].files == 2
    house.apply(header, ("restore",))
    assert places["older"].read_bytes() == FIRST
    assert places["newer"].read_bytes() == SECOND

    key = str(places["by_hand"].relative_to(house.warehouse))
    restore(lambda: spark, house.run_context(), house.storage, key=key)
    assert places["by_hand"].read_bytes() == SECOND


def test_replaced_object_in_deferred_quarantine_is_collected_by_its_own_age(spark: SparkSession, tmp_path: Path) -> None:
    """The storage was copied without times, so each object has another identity."""
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.settings = {"quarantine": "deferred", "quarantine_days": 1}
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    leftover = house.warehouse / "db" / "t" / "data" / NAMES[0]
    write_file(leftover, FIRST)
    house.now = days_ago(9)
    house.approve_and_apply(house.plan())
    copied = days_ago(8).timestamp()
    os.utime(leftover, (copied, copied))
    outcomes = list[dict[tuple[str, ...], int]]()
    for day in (4, 2):
        house.now = days_ago(day)
        outcomes.append(counts(house.approve_and_apply(house.plan()).by_outcome))
    assert outcomes == [{("quarantine", "done"): 1, ("purge", "changed"): 1}, {("purge", "done"): 1}]
    assert not leftover.exists()
    house.now = days_ago(1)
    assert not house.plan().totals
