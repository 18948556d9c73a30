"""A state from a backup does not know which files were restored since, so it purges none of them immediately."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


def quarantine_leftovers(house: Lakehouse) -> tuple[list[Path], PlanHeader]:
    """Return the leftovers of a table, and the plan that has quarantined them where they are."""
    lake = LakeBuilder(house.root)
    house.settings = {"quarantine": "deferred", "quarantine_days": 7, "gates": {"max_delete_share": 1}}
    house.lakes = [lake.config("sales")]
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    leftovers = [path for path in table.leftovers(days_ago(20)) if path.suffix == ".parquet"]
    plan = house.plan()
    assert set(counts(house.approve_and_apply(plan).by_outcome)) == {("quarantine", "done")}
    return leftovers, plan


def restore_and_put_back_the_state(house: Lakehouse, plan_id: str) -> None:
    """Restore the files of a plan, and then replace the state by a backup made before."""
    shutil.copytree(house.root / "state", house.root / "backup")
    house.restore(plan_id)
    shutil.rmtree(house.root / "state")
    shutil.copytree(house.root / "backup", house.root / "state")


def test_quarantine_time_restarts_after_state_was_restored_from_backup(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path)
    _, first = quarantine_leftovers(house)
    restore_and_put_back_the_state(house, first.plan_id)
    house.now += timedelta(days=9)
    plan = house.plan()
    assert "purge" not in plan.totals
    (warning,) = plan.warnings
    assert "The state lacks 1 lease of storage warehouse" in warning
    house.now += timedelta(days=7)
    plan = house.plan()
    assert plan.totals["purge"].files == first.totals["quarantine"].files
    assert plan.warnings == ()


def test_approved_purge_waits_after_state_was_restored_from_backup(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path)
    leftovers, first = quarantine_leftovers(house)
    house.now += timedelta(days=9)
    purge = house.plan()
    house.approve(purge)
    restore_and_put_back_the_state(house, first.plan_id)
    assert set(counts(house.apply(purge).by_outcome)) == {("purge", "denied")}
    assert all(path.exists() for path in leftovers)
