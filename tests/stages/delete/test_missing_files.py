"""Missing live files of a lake affect its plans in all storages.

While live files of a lake are missing in one storage, nothing under its claims is planned in any
storage. Other lakes are still planned.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import LiveCount, PlanHeader
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import counts, days_ago
from tests.stages.two_storages import TwoStorages

pytestmark = [pytest.mark.spark, in_turn]


class SharedDisks(TwoStorages):
    """The lake `shop` with a table on each disk, and the lake `other` on the second one.

    Attributes:
        first: The table of `shop` on the first disk.
        garbage: Keys of garbage on the second disk, by lake.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        shop = LakeBuilder(root, warehouse=root)
        other = LakeBuilder(root, catalog_file="other.db", warehouse=root)
        self.first = shop.table("ns.first", days_ago(40), location=f"file://{root}/disk1/first")
        second = shop.table("ns.second", days_ago(40), location=f"file://{root}/disk2/second")
        third = other.table("ns.third", days_ago(40), location=f"file://{root}/disk2/third")
        for table in (self.first, second, third):
            table.append(days_ago(30))
        self.garbage = {
            name: {str(path.relative_to(root / "disk2")) for path in table.leftovers(days_ago(20), 1)}
            for name, table in (("shop", second), ("other", third))
        }
        self.lakes = [shop.config("shop"), other.config("other")]

    @property
    def all_garbage(self) -> set[str]:
        return self.garbage["shop"] | self.garbage["other"]

    def live_file(self) -> Path:
        """Return a live file of the first disk."""
        return Path(self.first.table.inspect.files().column("file_path")[0].as_py().removeprefix("file://"))


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> SharedDisks:
    return SharedDisks(spark, tmp_path)


def failed_gates(plan: PlanHeader) -> set[str]:
    return {gate.name for gate in plan.failed_gates}


def test_lake_with_missing_live_file_is_left_out_in_other_storages(house: SharedDisks) -> None:
    house.plans()
    assert house.planned_keys("disk2") == house.all_garbage
    lost = house.live_file()
    content = lost.read_bytes()
    lost.unlink()
    plans = house.plans()
    assert failed_gates(plans["disk1"]) == {"live_listed"}
    assert house.planned_keys("disk2") == house.garbage["other"]
    (left_out,) = plans["disk2"].left_out
    assert left_out.files == len(house.garbage["shop"])
    assert "lake shop" in left_out.reason
    assert "storage disk1" in left_out.reason
    lost.write_bytes(content)
    house.plans()
    assert house.planned_keys("disk2") == house.all_garbage


def test_run_with_clock_ahead_does_not_hide_missing_files(house: SharedDisks) -> None:
    house.plans()
    house.now += timedelta(days=25)
    house.plans()
    house.now -= timedelta(days=24)
    house.live_file().unlink()
    assert failed_gates(house.plans()["disk1"]) == {"live_listed"}
    assert house.planned_keys("disk2") == house.garbage["other"]


def test_table_with_few_missing_files_is_left_out_in_other_storages(house: SharedDisks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a table are moved to the other disk, while the catalog still has their old addresses."""
    monkeypatch.setattr("gc_assets.core.plan.MAX_UNLISTED", 0.5)
    old = house.live_file()
    new = house.root / "disk2" / "moved" / old.name
    house.first.set_properties(days_ago(12), {"write.data.path": f"file://{new.parent}"})
    house.plans()
    new.parent.mkdir()
    old.rename(new)
    house.now += timedelta(days=1)
    plans = house.plans()
    assert "live_listed" not in failed_gates(plans["disk1"])
    assert house.planned_keys("disk2") == house.all_garbage
    house.approve(plans["disk1"], "live_listed")
    house.plan_of("disk2")
    assert house.planned_keys("disk2") == {*house.all_garbage, f"moved/{new.name}"}


def test_files_that_are_live_since_the_sweep_do_not_hide_missing_files(house: SharedDisks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate passed, although the plan left out no files of the lake, because too many were missing in the sweep."""
    live = house.plans()["disk1"].live_files
    monkeypatch.setattr("gc_assets.core.plan.MAX_UNLISTED", 1 / (live + 1))
    house.live_file().unlink()
    assert failed_gates(house.plans()["disk1"]) == {"live_listed"}
    grown = LiveCount(live + 9, {"shop": live + 9})
    monkeypatch.setattr("gc_assets.stages.delete.plan_header.live_count", lambda *_: grown)
    assert failed_gates(house.plan_of("disk1")) == {"live_listed"}


def test_override_for_missing_files_applies_to_other_storages(house: SharedDisks) -> None:
    house.live_file().unlink()
    house.approve(house.plans()["disk1"], "live_listed")
    house.plan_of("disk2")
    assert house.planned_keys("disk2") == house.all_garbage
    house.now += timedelta(days=1)
    house.plans()
    assert house.planned_keys("disk2") == house.all_garbage, "the same file is missing"


def test_override_does_not_apply_to_files_lost_since(house: SharedDisks) -> None:
    """The override of a run's plan also applied to a later sweep of the same date, until its plan was made."""
    house.first.append(days_ago(29))
    house.live_file().unlink()
    house.approve(house.plans()["disk1"], "live_listed")
    for path in (house.root / "disk1").rglob("*.parquet"):
        path.unlink()
    house.sweep_all()
    house.plan_of("disk2")
    assert house.planned_keys("disk2") == house.garbage["other"]


def test_apply_of_older_plan_moves_no_file_of_lake_that_lacks_files_now(house: SharedDisks) -> None:
    old = {str(path.relative_to(house.root / "disk1")) for path in house.first.leftovers(days_ago(20), 1)}
    plan = house.plans()["disk1"]
    assert house.planned_keys("disk1") == old
    house.live_file().unlink()
    assert failed_gates(house.plans()["disk1"]) == {"live_listed"}
    house.approve(plan)
    applied = house.apply(plan)
    assert {outcome: count for (_, outcome), count in counts(applied.by_outcome).items()} == {"changed": len(old)}
    assert all((house.root / "disk1" / key).exists() for key in old)


class LargeDisk(SharedDisks):
    """The first disk also has many files of the lake `large`, and garbage of both lakes."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        large = LakeBuilder(root, catalog_file="large.db", warehouse=root)
        table = large.table("ns.large", days_ago(40), location=f"file://{root}/disk1/large")
        for day in range(30, 20, -1):
            table.append(days_ago(day))
        self.small_garbage, self.large_garbage = (
            {str(path.relative_to(root / "disk1")) for path in item.leftovers(days_ago(20), 1)} for item in (self.first, table)
        )
        keep_all = {"refs": [{"match": ".*", "keep": "forever"}], "max_snapshot_age": "36500d"}
        self.lakes.append(large.config("large", retention=keep_all))


def test_small_lake_with_missing_files_is_left_out_in_large_storage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of missing files was computed for the whole storage only, so a small lake without any
    of its files passed the gate.
    """
    monkeypatch.setattr("gc_assets.core.plan.MAX_UNLISTED", 0.1)
    house = LargeDisk(spark, tmp_path)
    house.plans()
    assert house.planned_keys("disk1") == house.small_garbage | house.large_garbage
    house.live_file().unlink()
    plan = house.plans()["disk1"]
    assert "live_listed" not in failed_gates(plan)
    assert house.planned_keys("disk1") == house.large_garbage
    assert "lake shop" in plan.left_out[0].reason
    assert house.planned_keys("disk2") == house.garbage["other"], "the other table of the lake waits, too"
    house.approve(plan, "live_listed")
    house.now += timedelta(days=1)
    house.plans()
    assert house.planned_keys("disk1") == house.small_garbage | house.large_garbage
    assert house.planned_keys("disk2") == house.all_garbage


def test_lake_with_missing_metadata_is_left_out_in_other_storages(house: SharedDisks) -> None:
    house.mark()
    (house.root / "disk1" / "first").rename(house.root / "lost")
    house.sweep_all()
    assert "metadata_present" in failed_gates(house.plan_of("disk1"))
    house.plan_of("disk2")
    assert house.planned_keys("disk2") == house.garbage["other"]


def test_apply_moves_no_file_if_lake_has_missing_files(house: SharedDisks) -> None:
    plan = house.plans()["disk2"]
    house.live_file().unlink()
    house.plans()
    house.approve(plan)
    applied = house.apply(plan)
    assert {outcome: count for (_, outcome), count in counts(applied.by_outcome).items()} == {"done": 2, "changed": 2}
    assert all((house.root / "disk2" / key).exists() for key in house.garbage["shop"])


def test_loss_that_is_too_large_to_accept_is_reported(house: SharedDisks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc_assets.stages.sweep.sweep_checks.MAX_ACCEPTED", 0)
    house.live_file().unlink()
    house.approve(house.plans()["disk1"], "live_listed")
    (left_out,) = house.plans()["disk2"].left_out
    assert "later runs cannot accept a loss of more than" in left_out.reason
