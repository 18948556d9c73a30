"""Several quarantined copies of one name, and which of them is restored."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.demo.iceberg_builder import parquet_bytes
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.safe_paths import Entry
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]

FIRST = parquet_bytes(pa.table({"id": pa.array([1], pa.int64()), "part": pa.array(["a"])}))
SECOND = parquet_bytes(pa.table({"id": pa.array([2, 3, 4], pa.int64()), "part": pa.array(["a", "a", "a"])}))
NAMES = ("older", "newer", "by_hand")


def write_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, (days_ago(20).timestamp(),) * 2)


def test_plan_restores_copy_of_live_size_but_command_newest_copy(spark: SparkSession, tmp_path: Path) -> None:
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


def test_denied_restore_can_be_repeated(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run restores files that are needed again, without an approval. Later, it has the right to."""
    house, lake = Lakehouse(spark, tmp_path, settings={"quarantine_days": 30}), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(3))  # no history expires, so the plan contains only the restore
    house.lakes = [lake.config("sales")]
    file = house.warehouse / "db" / "t" / "data" / "again.parquet"
    house.now = days_ago(2)
    write_file(file, FIRST)
    house.approve_and_apply(house.plan())

    house.now = days_ago(1)
    write_file(file, FIRST)
    with lake.at(house.now):
        table.table.add_files([f"file://{file}"], check_duplicate_files=False)
    file.unlink()
    header = house.plan()
    assert (set(header.totals), header.expiry_actions) == ({"restore"}, {})
    with monkeypatch.context() as patch:
        patch.setattr(Entry, "link_to", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
        assert counts(house.apply(header, ("restore",)).by_outcome) == {("restore", "denied"): 1}
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "ready"
    assert counts(house.apply(header, ("restore",)).by_outcome) == {("restore", "done"): 1}
    assert file.read_bytes() == FIRST
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"


@dataclass(frozen=True)
class DeferredFile:
    """A file of no commit, which deferred quarantine has contained for some days."""

    house: Lakehouse
    lake: LakeBuilder
    table: TableBuilder
    path: Path

    @classmethod
    def of(cls, spark: SparkSession, root: Path) -> DeferredFile:
        house, lake = Lakehouse(spark, root), LakeBuilder(root)
        house.settings = {"quarantine": "deferred", "quarantine_days": 1}
        table = lake.table("db.t", days_ago(40))
        table.append(days_ago(30))
        house.lakes = [lake.config("sales")]
        path = house.warehouse / "db" / "t" / "data" / NAMES[0]
        write_file(path, FIRST)
        house.now = days_ago(9)
        house.approve_and_apply(house.plan())
        return cls(house, lake, table, path)

    def approve_at(self, day: float) -> PlanHeader:
        self.house.now = days_ago(day)
        header = self.house.plan()
        self.house.approve(header)
        return header


def test_replaced_object_in_deferred_quarantine_waits_for_its_own_age(spark: SparkSession, tmp_path: Path) -> None:
    """The storage was copied without times, so each object has another identity."""
    file = DeferredFile.of(spark, tmp_path)
    copied = days_ago(8).timestamp()
    os.utime(file.path, (copied, copied))
    outcomes = [counts(file.house.apply(file.approve_at(day)).by_outcome) for day in (4, 2)]
    assert outcomes == [{("quarantine", "done"): 1, ("purge", "changed"): 1}, {("purge", "done"): 1}]
    assert not file.path.exists()
    file.house.now = days_ago(1)
    assert not file.house.plan().totals


def test_postponed_purge_of_deferred_file_is_in_next_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A table is unreadable during the apply, so all purges wait."""
    file = DeferredFile.of(spark, tmp_path)
    metadata = Path(file.table.metadata_location.removeprefix("file://"))
    content, header = metadata.read_bytes(), file.approve_at(7)
    metadata.write_bytes(content[:100])
    assert counts(file.house.apply(header).by_outcome) == {("purge", "changed"): 1}
    metadata.write_bytes(content)
    assert counts(file.house.apply(file.approve_at(6)).by_outcome) == {("purge", "done"): 1}
    assert not file.path.exists()


def test_file_that_is_live_again_at_purge_leaves_deferred_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    file = DeferredFile.of(spark, tmp_path)
    header = file.approve_at(7)
    with file.lake.at(file.house.now):
        file.table.table.add_files([f"file://{file.path}"])
    assert counts(file.house.apply(header).by_outcome) == {("purge", "changed"): 1}
    assert file.path.exists()
    assert read_quarantine(file.house.run_context().state, file.house.storage).num_rows == 0
