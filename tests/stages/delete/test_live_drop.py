"""A run is compared with the last accepted run, never with a refused one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.stages.records.accepted_runs import forget_lake
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def build_table(lake: LakeBuilder, name: str, commits: int) -> TableBuilder:
    table = lake.table(name, days_ago(40))
    for day in range(commits):
        table.append(days_ago(30 - day))
    return table


def test_live_drop_is_refused_until_a_user_accepts_it(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    build_table(lake, "db.t", 1).leftovers(days_ago(20), 2)
    build_table(lake, "db.big", 9)
    house.lakes = [lake.config("sales")]
    house.now = days_ago(3)
    complete = house.plan()
    assert not house.failed_gates(complete)
    lake.catalog.drop_table("db.big")
    for day in (2, 1, 0):
        house.now = days_ago(day)
        refused = house.plan()
        assert house.failed_gates(refused) == {"live_drop"}
        assert f"after {complete.live_files:,} in the last accepted run" in refused.failed_gates[0].message
    with pytest.raises(GateRefused, match="--override live_drop"):
        house.approve(refused)
    house.approve(refused, "live_drop")
    house.now += timedelta(days=1)
    assert not house.failed_gates(house.plan())


def test_emptied_or_removed_lake_refuses_plans_until_it_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """The lake is small: its removal alone would pass `live_drop` of the storage."""
    house, large, small = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path), LakeBuilder(tmp_path, "small", "small.db")
    build_table(large, "db.t", 12).leftovers(days_ago(20), 2)
    build_table(small, "db.u", 1)
    house.lakes = [large.config("sales"), small.config("little")]
    house.now = days_ago(4)
    header = house.plan()
    assert not house.failed_gates(header)
    assert header.live_by_lake["little"] < header.live_files * house.config.storages[0].gates.max_live_drop

    small.catalog.drop_table("db.u")
    house.now = days_ago(3)
    emptied = house.plan()
    assert house.failed_gates(emptied) == {"lakes_present"}
    assert "little (no live files now" in emptied.failed_gates[0].message
    with pytest.raises(GateRefused, match=r"gc-assets forget LAKE --by WHO"):
        house.approve(emptied, "lakes_present")

    house.lakes = [large.config("sales")]
    house.now = days_ago(2)
    left = house.plan()
    assert house.failed_gates(left) == {"lakes_present"}
    assert "little (not in lakes.yaml" in left.failed_gates[0].message

    with pytest.raises(UsageError, match=r"no lake 'litle'.*sales"):
        forget_lake(house.config, Clock(house.now), "litle", "ada")
    with pytest.raises(UsageError, match="--by WHO"):
        forget_lake(house.config, Clock(house.now), "little", " ")
    forget_lake(house.config, Clock(house.now), "little", "ada")
    house.now = days_ago(1)
    assert not house.failed_gates(house.plan())
    house.lakes = [large.config("sales"), small.config("little")]
    build_table(small, "db.v", 1)
    house.now = days_ago(0)
    assert not house.failed_gates(house.plan())
    house.lakes = [large.config("sales")]
    house.now += timedelta(days=1)
    assert house.failed_gates(house.plan()) == {"lakes_present"}, "it was forgotten once, and came back since"


def test_live_drop_of_a_small_lake_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    house, large, small = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path), LakeBuilder(tmp_path, "small", "small.db")
    build_table(large, "db.t", 14)
    build_table(small, "db.u", 1)
    build_table(small, "db.v", 1)
    house.lakes = [large.config("sales"), small.config("little")]
    house.now = days_ago(1)
    house.plan()
    small.catalog.drop_table("db.u")
    house.now = days_ago(0)
    header = house.plan()
    assert house.failed_gates(header) == {"live_drop"}
    assert "lake little" in header.failed_gates[0].message
