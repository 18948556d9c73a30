"""Runs without a listing plan with the listing of an earlier run."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.core.plan import PlanHeader, is_intact
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.live_set import MAX_KEYS
from gc_assets.stages.sweep import orphan_files, unlisted_files
from gc_assets.stages.sweep.listings import find_earlier_listing
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.state.listings import open_listing
from gc_assets.state.summaries import StorageInventorySummary
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

EVERY_WEEK = {"listing": {"every": "7d"}, "quarantine_days": 1}


class Scene:
    """A table with two snapshots that the catalog forgets after the first run lists the storage."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.house, self.lake = Lakehouse(spark, root, settings=dict(EVERY_WEEK)), LakeBuilder(root)
        self.table = self.lake.table("db.t", days_ago(40))
        for days in (30, 29, 28):
            self.table.overwrite(days_ago(days)) if days < 30 else self.table.append(days_ago(days))
        before = self.lake.files()
        self.table.leftovers(days_ago(20), 1)
        self.leftovers = set(map(self.house.key, self.lake.files() - before))
        self.house.lakes = [self.lake.config("sales")]
        self.first = self.house.plan()

    def forget_history(self) -> None:
        """Expire all snapshots but the current one, as an engine does that deletes no files."""
        current = self.table.table.metadata.current_snapshot_id
        with self.lake.at(self.house.now):
            for snapshot in self.table.table.metadata.snapshots:
                if snapshot.snapshot_id != current:
                    self.table.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()

    def after(self, days: float) -> PlanHeader:
        self.house.now += timedelta(days=days)
        return self.house.plan()

    def read_plan(self) -> set[str]:
        return self.house.keys("deletion_plan")


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    return Scene(spark, tmp_path)


def list_again(house: Lakehouse) -> PlanHeader:
    """Plan the same run date with a listing."""
    house.settings = {name: value for name, value in house.settings.items() if name != "listing"}
    return house.plan()


def inventory(house: Lakehouse) -> StorageInventorySummary:
    return house.find_table("storage_inventory").summary(StorageInventorySummary)


def test_plan_without_listing_contains_only_once_referenced_files(scene: Scene) -> None:
    scene.forget_history()
    header = scene.after(4)
    named = scene.read_plan()
    assert header.failed_gates == []
    assert (header.listed_at, is_intact(header)) == (days_ago(0), True)
    assert inventory(scene.house).earlier is not None
    assert list_again(scene.house).listed_at is None
    assert len(scene.leftovers) == 2
    assert named
    assert scene.read_plan() == named | scene.leftovers


@pytest.mark.parametrize("max_keys", [MAX_KEYS, 0], ids=["few", "many"])
def test_files_written_after_the_listing_are_live(scene: Scene, monkeypatch: pytest.MonkeyPatch, max_keys: int) -> None:
    for module in (orphan_files, unlisted_files):
        monkeypatch.setattr(module, "MAX_KEYS", max_keys)
    scene.house.now += timedelta(days=2)
    scene.table.append(scene.house.now)
    scene.forget_history()
    header = scene.after(3)
    assert header.failed_gates == []
    assert scene.house.summary("orphan_files")["live_unlisted_count"] == 0
    assert scene.read_plan()
    assert not scene.read_plan() & scene.house.live()


def test_missing_live_file_newer_than_listing_is_detected(scene: Scene) -> None:
    scene.house.now += timedelta(days=2)
    before = scene.lake.files()
    scene.table.append(scene.house.now)
    (data,) = (path for path in scene.lake.files() - before if path.suffix == ".parquet")
    data.unlink()
    header = scene.after(1)
    assert scene.house.failed_gates(header) == {"live_listed"}
    assert scene.house.summary("orphan_files")["live_unlisted"] == [scene.house.key(data)]


def test_object_removed_or_replaced_since_listing_is_not_planned(scene: Scene) -> None:
    scene.forget_history()
    scene.after(4)
    gone, replaced, *_ = data = sorted(key for key in scene.read_plan() if key.endswith(".parquet"))
    (scene.house.warehouse / gone).unlink()
    (scene.house.warehouse / replaced).write_bytes(b"another file")
    assert scene.after(1).failed_gates == []
    assert not scene.read_plan() & set(data)
    assert scene.house.summary("orphan_files")["storage_breakdown"]["changed_since"]["files"] == 2


def test_object_quarantined_since_the_listing_is_not_planned_again(scene: Scene) -> None:
    scene.forget_history()
    header = scene.after(1)
    planned = scene.read_plan()
    assert scene.house.approve_and_apply(header).by_outcome.keys() == {("quarantine", "done")}
    second = scene.after(4)
    assert scene.read_plan() == set()
    assert [(item.name, item.files) for item in second.left_out] == [("quarantined files due for purge", len(planned))]
    third = list_again(scene.house)
    assert {name: amount.files for name, amount in third.totals.items()} == {"purge": len(planned), "quarantine": 2}


def test_copy_that_is_needed_again_is_restored_without_a_listing(scene: Scene) -> None:
    snapshots = scene.table.table.metadata.snapshots
    scene.forget_history()
    scene.house.approve_and_apply(scene.after(1))
    lost = [key for key in scene.read_plan() if key.endswith(".parquet")]
    scene.table.table.refresh()
    catalog = scene.lake.catalog
    first = next(path for path in scene.lake.files() if path.name.startswith("00003"))
    catalog.drop_table("db.t")
    catalog.register_table("db.t", f"file://{first}")
    assert len(catalog.load_table("db.t").metadata.snapshots) <= len(snapshots)
    header = scene.after(1)
    assert set(header.totals) == {"restore"}
    assert set(lost) & scene.read_plan()


def test_statistics_and_metadata_newer_than_listing_do_not_count_as_missing(scene: Scene) -> None:
    scene.house.now += timedelta(days=2)
    scene.table.append(scene.house.now)
    scene.table.statistics(scene.house.now, str(scene.table.table.metadata.current_snapshot_id))
    assert scene.after(1).failed_gates == []
    assert scene.house.summary("orphan_files")["notes"] == []
    assert scene.house.summary("orphan_files")["rewritten"] == 0


class Shelf:
    """A storage that only its inventory stage reads. The lake is never opened."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.house = Lakehouse(spark, root, settings=dict(EVERY_WEEK))
        self.house.lakes = [self.house.weather()]
        self.house.warehouse.mkdir()
        (self.house.warehouse / "a").write_bytes(b"1")

    def list_after(self, days: float) -> StorageInventorySummary:
        self.house.now += timedelta(days=days)
        storage_inventory(self.house.spark, self.house.run_context(), STORAGE)
        return inventory(self.house)


@pytest.fixture
def shelf(spark: SparkSession, tmp_path: Path) -> Shelf:
    return Shelf(spark, tmp_path)


def test_storage_is_listed_if_no_earlier_listing_is_usable(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shelf.list_after(0).listed_because == "there is no earlier listing"
    assert shelf.list_after(7).listed_because == "the listing of 2026-11-20 is at least 7d old"
    assert shelf.list_after(1).earlier is not None
    assert shelf.house.find_table("storage_inventory").rows == 0
    monkeypatch.setattr("gc_assets.stages.sweep.listings.__version__", "99.0")
    assert shelf.list_after(1).listed_because == (
        "the settings of the storage, or the release of gc-assets, changed since the listing of 2026-11-27"
    )
    shelf.house.settings["listing"] = {"every": "1d"}
    assert shelf.list_after(1).listed_because == "the listing of 2026-11-29 is at least 1d old"


def test_listing_made_with_another_clock_is_not_used(shelf: Shelf) -> None:
    shelf.list_after(0)
    config, real = shelf.house.config, Clock(not_before=shelf.house.now + timedelta(days=1))
    context = RunContext.of(config, real, shelf.house.now.date() + timedelta(days=1))
    assert find_earlier_listing(context, STORAGE) == (None, "the listing of 2026-11-20 was made by a rehearsal")
    assert find_earlier_listing(shelf.house.run_context(), STORAGE)[1] is None


def test_listing_made_with_clock_days_ahead_is_not_used_on_its_date(shelf: Shelf) -> None:
    shelf.list_after(0)
    assert shelf.list_after(10).listed_because is not None
    assert shelf.list_after(-9).earlier is not None
    assert shelf.list_after(9).listed_because == (
        "the run of 2026-11-30 was made before one of an earlier date, so a host's clock was wrong"
    )
    assert shelf.list_after(1).earlier is not None


def test_removed_listing_is_made_again(shelf: Shelf) -> None:
    shelf.list_after(0)
    assert shelf.list_after(1).earlier is not None
    listed = shelf.house.root / "state" / STORAGE / "storage_inventory" / "run_date=2026-11-20"
    shutil.rmtree(listed)
    with pytest.raises(StateError, match="run --listing"):
        open_listing(shelf.house.run_context().state, shelf.house.find_table("storage_inventory"))
    assert shelf.list_after(1).listed_because == "the last listing is missing in the state, or damaged"


def test_prune_keeps_listing_that_later_run_of_date_uses(shelf: Shelf) -> None:
    house = shelf.house
    shelf.list_after(0)
    earlier = shelf.list_after(0).earlier
    assert earlier is not None
    state, clock = house.run_context().state, Clock(house.now + timedelta(days=400))
    assert not any(path.endswith(earlier.run_id) for path in state.prune(1, clock))
    assert open_listing(state, house.find_table("storage_inventory")).receipt.run_id == earlier.run_id
    house.settings.pop("listing")
    shelf.list_after(0)
    assert any(path.endswith(earlier.run_id) for path in state.prune(1, clock))
