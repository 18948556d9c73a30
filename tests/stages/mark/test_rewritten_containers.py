"""A container that is overwritten with any length is read again, or the plan stops."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.objects import Objects
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.tables import write_parts
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.mark import pending_containers
from gc_assets.stages.mark.object_sizes import read_sizes
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stages.sweep.sweep_checks import rewritten_metadata
from gc_assets.state.side_tables import METADATA
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import in_turn
from tests.lakes import toy
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class RewrittenLake(Lakehouse):
    """A lake with one commit, which references one file."""

    @property
    def lake(self) -> Path:
        return self.warehouse / "toys"

    def write_commit(self, file: str, at: datetime) -> None:
        """Write the commit with the time `at`. Files with names of the same length give the same length."""
        toy.write(self.lake, "c1", None, days_ago(40), {file: b"bytes"}, "main")
        os.utime(self.lake / "manifests" / "c1.json", (at.timestamp(),) * 2)

    def plan_at(self, day: float) -> PlanHeader:
        """Make the run of a day, counted back from `NOW`."""
        self.now = days_ago(day)
        return self.plan()

    def sweep(self) -> PlanHeader:
        context = self.run_context()
        live_filter(self.spark, context, self.storage)
        storage_inventory(self.spark, context, self.storage)
        orphan_files(self.spark, context, self.storage)
        return header_of(deletion_plan(self.spark, context, self.storage))


class ExternalManifests(RewrittenLake):
    """Only the directory of the data is a storage."""

    @property
    def lake(self) -> Path:
        return self.root / "warehouse" / "toys"

    @property
    def warehouse(self) -> Path:
        return self.lake / "data"


@pytest.fixture
def external(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExternalManifests:
    """The disk acts like a bucket, which returns an etag only if it is requested."""
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    house = ExternalManifests(spark, tmp_path)
    house.lakes = [toy.ToyConfig(name="toys", kind="toy", location=f"file://{house.lake}")]
    house.write_commit("b", days_ago(40))
    house.write_commit("a", days_ago(40))
    return house


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewrittenLake:
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    house = RewrittenLake(spark, tmp_path)
    house.lakes = [toy.ToyConfig(name="toys", kind="toy", location=f"file://{house.lake}")]
    house.write_commit("b", days_ago(40))
    house.write_commit("a", days_ago(40))
    return house


def test_rewritten_container_is_read_again_if_store_has_etags(house: RewrittenLake) -> None:
    house.now = days_ago(3)
    house.plan()
    assert house.planned_actions("toys/data/") == {"b": "quarantine"}
    house.write_commit("b", days_ago(35))
    house.now = days_ago(2)
    assert not house.plan().failed_gates
    assert house.planned_actions("toys/data/") == {}, "files of both objects are live"
    house.now = days_ago(1)
    house.plan()
    assert house.decoded_counts("toys") == [1, 1, 0]


def test_length_of_unchanged_container_is_not_requested_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg records no length of a manifest list."""
    looked_up = list[str]()

    def record(objects: Objects, addresses: Sequence[str], *, may_list: bool) -> list[int]:
        looked_up.extend(address.rpartition("/")[2] for address in addresses)
        return read_sizes(objects, addresses, may_list=may_list)

    monkeypatch.setattr(pending_containers, "read_sizes", record)
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.lakes = [lake.config("sales")]
    orders, lists = lake.table("db.orders", days_ago(40)), list[str]()
    for day, appended in ((3, True), (2, False), (1, True)):
        if appended:
            orders.append(days_ago(day))
        lists = [snapshot.manifest_list for snapshot in orders.table.snapshots()]
        house.now = days_ago(day - 0.5)
        house.mark()
        assert looked_up == ([lists[-1].rpartition("/")[2]] if appended else []), f"{day} days ago"
        looked_up.clear()
    rewritten = Path(lists[0].removeprefix("file://"))
    content = rewritten.read_bytes()
    rewritten.write_bytes(content)
    house.now = days_ago(0)
    house.mark()
    assert looked_up == [rewritten.name]


def test_plan_is_refused_if_container_was_rewritten_after_it_was_read(house: RewrittenLake) -> None:
    house.mark()
    for file in ("longer", "b"):
        house.write_commit(file, days_ago(35))
        refused = house.sweep()
        assert house.failed_gates(refused) == {"metadata_present"}
        assert "manifest toys/manifests/c1.json, which was overwritten after it was read" in refused.failed_gates[0].message
        assert not refused.unreadable
    assert not house.plan().failed_gates
    assert house.planned_actions("toys/data/") == {"longer": "quarantine"}


def test_older_plan_leaves_out_table_whose_metadata_was_lost_later(house: RewrittenLake) -> None:
    house.now = days_ago(2)
    older = house.plan()
    house.approve(older)
    house.now = days_ago(1)
    house.mark()
    manifest = house.lake / "manifests" / "c1.json"
    content = manifest.read_bytes()
    manifest.unlink()
    (item,) = house.sweep().unreadable
    assert (item.name, item.good_on) == ("lake toys", older.run_date)
    house.write_commit("a", days_ago(40))
    assert content == manifest.read_bytes()
    assert counts(house.apply(older).by_outcome) == {("quarantine", "changed"): 1}


def test_sweep_detects_rewritten_container_if_store_has_no_etags(house: RewrittenLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cached etags, the local store acts like a store that returns etags only in listings."""
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    house.plan_at(5)
    house.write_commit("a", days_ago(35))
    assert not house.plan_at(4).failed_gates, "other object, same bytes"
    house.plan_at(3)
    assert house.decoded_counts("toys") == [1, 0, 1]
    house.write_commit("b", days_ago(34))
    assert house.failed_gates(house.plan_at(2)) == {"metadata_present"}
    assert not house.plan_at(1).failed_gates
    assert house.planned_actions("toys/data/") == {}
    assert house.decoded_counts("toys") == [1, 0, 1, 0, 1]


def test_rewritten_container_outside_all_storages_is_read_again(external: ExternalManifests) -> None:
    """No sweep lists it, so its cached contents were never read again, and live files were planned."""
    external.plan_at(3)
    assert external.planned_actions("") == {"b": "quarantine"}
    external.write_commit("b", days_ago(35))
    external.plan_at(2)
    assert external.planned_actions("") == {}, "files of both objects are live"
    external.plan_at(1)
    assert external.decoded_counts("toys") == [1, 1, 0]


def test_external_container_that_cannot_be_examined_is_read_again(external: ExternalManifests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object may have been replaced. If it cannot be read either, the lake is unreadable."""

    def refuse(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Access Denied")

    external.plan_at(3)
    monkeypatch.setattr(LocalObjects, "identity", refuse)
    external.plan_at(2)
    assert external.decoded_counts("toys") == [1, 1]


def test_sweep_with_clock_ahead_does_not_hide_rewritten_containers(house: RewrittenLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of one run was ahead, and was corrected afterwards."""
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    house.plan_at(0)
    house.write_commit("b", days_ago(34))
    assert house.failed_gates(house.plan_at(2)) == {"metadata_present"}
    assert not house.plan_at(1).failed_gates


def test_container_cached_by_earlier_release_with_other_length_is_rewritten(house: RewrittenLake, spark: SparkSession) -> None:
    """The earlier release recorded lengths, but no etags."""
    context, objects = house.run_context(), [("same", "e", 10), ("longer", "e", 11), ("never decoded", "e", 5)]
    decoded = [{"key": "same", "container_size_bytes": 10}, {"key": "longer", "container_size_bytes": 10}, {"key": "never decoded"}]
    rows = [{"storage": house.storage, "kind": "manifest", "address": f"{house.lake}/{row['key']}", **row} for row in decoded]
    run = context.state.start("toys", "live_files", context.run_date, context.clock)
    [part] = write_parts(pa.Table.from_pylist(rows, METADATA), run, context.state.files, "_metadata")
    listed = spark.createDataFrame(objects, "key string, etag string, size_bytes long")
    found = rewritten_metadata(spark, context, house.storage, [f"{run.path}/{part.name}"], listed)
    assert [(row["key"], row["same"]) for row in found.to_pylist()] == [("longer", False)]


@pytest.mark.parametrize("is_listed", [True, False], ids=["rewritten after the plan", "rewritten between listings"])
def test_apply_keeps_files_of_rewritten_container(house: RewrittenLake, monkeypatch: pytest.MonkeyPatch, *, is_listed: bool) -> None:
    """Only the sweep of a newer listing would have found the other object, and the apply removed the file."""
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    house.settings = {"gates": {"max_delete_share": 1.0}, **({} if is_listed else {"listing": {"every": "7d"}})}
    house.write_commit("b", days_ago(40))
    house.plan_at(4)
    toy.write(house.lake, "c2", None, days_ago(40), {"a": b"bytes"}, "main")
    planned = house.plan_at(3)
    toy.write_manifest(house.lake, "c2", None, days_ago(40), {"b": 5})
    os.utime(house.lake / "manifests" / "c2.json", (days_ago(35).timestamp(),) * 2)
    if not is_listed:
        planned = house.plan_at(2)
    assert (planned.listed_at is None, house.planned_actions("toys/data/")["b"]) == (is_listed, "quarantine")
    house.approve(planned, *house.failed_gates(planned))
    assert ("quarantine", "changed") in house.apply(planned).by_outcome
    assert (house.lake / "data" / "b").exists()
