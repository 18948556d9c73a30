"""Tables are addressed through a symbolic link, which is re-pointed after the data was copied.

Case attack/00: keys that were cached before the change made 8 live files of the new disk look like
garbage, all gates passed, and the apply broke the table. After any change of links, a run with an
old state must find the same live set as a run with an empty state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, days_ago
from tests.stages.two_storages import DISKS, TwoStorages

pytestmark = [pytest.mark.spark, in_turn]

LAKE = "shop"


class LinkedLake(TwoStorages):
    """A lake whose addresses begin with the link `data`, which points to the first of two disks."""

    def __init__(self, spark: SparkSession, root: Path, disks: tuple[str, ...] = DISKS, **settings: str) -> None:
        super().__init__(spark, root, disks, **settings)
        self.link = root / "data"
        self.link.symlink_to("disk1")

    def build(self) -> None:
        """Create two tables, and garbage of one of them."""
        self.builder = LakeBuilder(self.root, warehouse=self.link)
        self.tables = [self.builder.table(f"ns.{name}", days_ago(40)) for name in ("t", "u")]
        for day in (30, 29, 28):
            for table in self.tables:
                table.append(days_ago(day))
        self.garbage = self.tables[0].leftovers(days_ago(20), 1)
        self.lakes = [self.builder.config(LAKE, retention={"refs": [{"match": ".*", "keep": "forever"}], "max_snapshot_age": "36500d"})]

    def mark_live(self) -> set[tuple[str, str, str]]:
        """Mark, and return storage, key and kind of every live file and metadata object."""
        self.mark()
        return {(row["storage"], row["key"], row["kind"]) for row in self.rows("live_files", LAKE)}

    def live_of_new_state(self) -> set[tuple[str, str, str]]:
        state, self.state = self.state, str(self.root / "new_state")
        shutil.rmtree(self.state, ignore_errors=True)
        try:
            return self.mark_live()
        finally:
            self.state = state

    def retarget(self, disk: str) -> None:
        self.link.unlink()
        self.link.symlink_to(disk)

    def copy(self) -> None:
        shutil.copytree(self.root / "disk1" / "ns", self.root / "disk2" / "ns")

    def rows_read(self) -> int:
        return sum(self.builder.catalog.load_table(f"ns.{name}").scan().to_arrow().num_rows for name in ("t", "u"))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> LinkedLake:
    lake = LinkedLake(spark, tmp_path)
    lake.build()
    return lake


def copy_data(lake: LinkedLake) -> None:
    lake.copy()
    lake.retarget("disk2")


def move_data(lake: LinkedLake) -> None:
    shutil.move(lake.root / "disk1" / "ns", lake.root / "disk2" / "ns")
    lake.retarget("disk2")


def chain_links(lake: LinkedLake) -> None:
    lake.copy()
    (lake.root / "current").symlink_to("disk2")
    lake.retarget("current")


def replace_link_by_directory(lake: LinkedLake) -> None:
    """The link becomes a directory outside all storages."""
    lake.link.unlink()
    shutil.copytree(lake.root / "disk1" / "ns", lake.link / "ns")


def replace_directory_by_link(lake: LinkedLake) -> None:
    """One directory of the storage becomes a link to another storage."""
    shutil.move(lake.root / "disk1" / "ns" / "u", lake.root / "disk2" / "u")
    (lake.root / "disk1" / "ns" / "u").symlink_to(lake.root / "disk2" / "u")


def link_nested_directory(lake: LinkedLake) -> None:
    """The link points to a directory inside the other disk."""
    copy_data(lake)
    lake.retarget("disk1")
    outer = lake.root / "disk2" / "mirror"
    outer.mkdir()
    shutil.copytree(lake.root / "disk2" / "ns", outer / "ns")
    lake.retarget("disk2/mirror")


CHANGES = [copy_data, move_data, chain_links, replace_link_by_directory, replace_directory_by_link, link_nested_directory]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_live_set_is_current_after_links_change(lake: LinkedLake, change: Callable[[LinkedLake], None]) -> None:
    before = lake.mark_live()
    change(lake)
    lake.now += timedelta(days=1)
    found = lake.mark_live()
    assert found == lake.live_of_new_state()
    assert found != before or change is replace_directory_by_link
    assert lake.rows_read() == 12


def test_live_set_is_current_if_links_change_within_a_run_date(lake: LinkedLake) -> None:
    lake.mark_live()
    copy_data(lake)
    assert lake.mark_live() == lake.live_of_new_state()


def test_live_set_is_current_after_links_change_back(lake: LinkedLake) -> None:
    before = lake.mark_live()
    copy_data(lake)
    lake.now += timedelta(days=1)
    lake.mark_live()
    lake.retarget("disk1")
    for _ in range(2):
        lake.now += timedelta(days=1)
        assert lake.mark_live() == before


def test_cache_stays_valid_if_links_do_not_change(lake: LinkedLake) -> None:
    lake.mark_live()
    lake.now += timedelta(days=1)
    lake.mark_live()
    assert lake.summary("manifest_entries", LAKE)["resolved_again"] == []
    assert lake.summary("manifest_entries", LAKE)["decoded"] == 0


@pytest.mark.parametrize("quarantine", ["trash", "deferred"])
def test_no_live_file_is_planned_after_links_change(spark: SparkSession, tmp_path: Path, quarantine: str) -> None:
    lake = LinkedLake(spark, tmp_path, quarantine=quarantine)
    lake.build()
    garbage = {str(path.relative_to(lake.link)) for path in lake.garbage}
    lake.plans()
    assert lake.planned_keys("disk1") == garbage
    copy_data(lake)
    lake.now += timedelta(days=1)
    plans = lake.plans()
    # The claim on the new disk is new, so its garbage waits until the claim is accepted.
    assert lake.planned_keys("disk2") <= garbage
    assert not plans["disk1"].rows
    assert lake.rows_read() == 12


def test_apply_after_links_change_does_not_move_live_files(lake: LinkedLake) -> None:
    """The plan of the new disk was made while the link pointed to the old one."""
    for path in lake.garbage:
        path.unlink()
    copy_data(lake)
    extra = lake.tables[0].leftovers(days_ago(20), 1)
    plan = lake.plans()["disk2"]
    assert plan.rows == len(extra)
    lake.retarget("disk1")
    lake.approve(plan, *(gate.name for gate in plan.gates if not gate.passed and gate.overridable))
    with pytest.raises(Exception, match=r"live_set|live_drop|lakes_present"):
        lake.apply(plan)
    assert all(path.exists() or (lake.root / "disk2" / path.relative_to(lake.link)).exists() for path in extra)
    assert lake.rows_read() == 12


def test_nothing_is_planned_after_links_point_outside_the_only_storage(spark: SparkSession, tmp_path: Path) -> None:
    lake = LinkedLake(spark, tmp_path, disks=("disk1",))
    lake.build()
    lake.plans()
    copy_data(lake)
    lake.now = NOW + timedelta(days=1)
    plan = lake.plans()["disk1"]
    assert not plan.rows
    assert lake.rows_read() == 12
