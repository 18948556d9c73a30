"""Missing live files of a lake affect its plans in all storages.

While live files of a lake are missing in one storage, nothing under its claims is planned in any
storage. Other lakes are still planned.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core import gates
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.sweep import orphan_files
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
    for module in (gates, orphan_files):
        monkeypatch.setattr(module, "MAX_UNLISTED", 0.5)
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


def test_override_for_missing_files_applies_to_other_storages(house: SharedDisks) -> None:
    house.live_file().unlink()
    house.approve(house.plans()["disk1"], "live_listed")
    house.plan_of("disk2")
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
