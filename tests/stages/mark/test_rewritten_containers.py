"""A container whose bytes are written anew under its name, at whatever length: it is read again, or the plan stops."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.engine.tables import write_parts
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from gc_assets.stages.sweep.sweep_checks import rewritten_metadata
from gc_assets.state.side_tables import METADATA
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes import toy
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = pytest.mark.spark


class Rewritten(Lakehouse):
    """A lake of one commit that names one of the files `a` and `b`."""

    @property
    def lake(self) -> Path:
        return self.warehouse / "toys"

    def name(self, file: str, at: datetime) -> None:
        """Writes the commit at `at`. Its length is the same whatever file it names."""
        toy.write(self.lake, "c1", None, days_ago(40), {file: b"bytes"}, "main")
        os.utime(self.lake / "manifests" / "c1.json", (at.timestamp(),) * 2)

    def sweep(self) -> PlanHeader:
        night = self.run_context()
        live_filter(self.spark, night, self.storage)
        storage_inventory(self.spark, night, self.storage)
        orphan_files(self.spark, night, self.storage)
        return header_of(deletion_plan(self.spark, night, self.storage))


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rewritten:
    monkeypatch.setitem(KINDS, "toy", toy.KIND)
    house = Rewritten(spark, tmp_path)
    house.lakes = [toy.ToyConfig(name="toys", kind="toy", location=f"file://{house.lake}")]
    house.name("b", days_ago(40))
    house.name("a", days_ago(40))
    return house


def test_a_store_that_tells_identities_has_what_was_rewritten_read_again_before_anything_is_planned(house: Rewritten) -> None:
    house.now = days_ago(3)
    house.plan()
    assert house.planned_actions("toys/data/") == {"b": "quarantine"}
    house.name("b", days_ago(35))
    house.now = days_ago(2)
    assert not house.plan().failed_gates
    assert house.planned_actions("toys/data/") == {}, "what either object named counts"
    house.now = days_ago(1)
    house.plan()
    assert house.decoded_counts("toys") == [1, 1, 0]


def test_what_is_rewritten_after_the_mark_stops_the_plan_by_name_and_is_read_again(house: Rewritten) -> None:
    house.mark()
    for file in ("longer", "b"):
        house.name(file, days_ago(35))
        refused = house.sweep()
        assert house.failed_gates(refused) == {"metadata_present"}
        assert "manifest toys/manifests/c1.json, which was overwritten after it was read" in refused.failed_gates[0].message
        assert not refused.unreadable
    assert not house.plan().failed_gates
    assert house.planned_actions("toys/data/") == {"longer": "quarantine"}


def test_of_metadata_that_is_gone_since_the_mark_the_plan_says_which_night_found_it_last_and_an_older_plan_waits(house: Rewritten) -> None:
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
    house.name("a", days_ago(40))
    assert content == manifest.read_bytes()
    assert counts(house.apply(older).by_outcome) == {("quarantine", "changed"): 1}


def test_of_a_store_that_tells_none_the_sweep_sees_it_and_the_next_night_reads(house: Rewritten, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local store, made to tell no identities: a fake of a store that tells them in listings only."""
    monkeypatch.setattr(LocalObjects, "cached_identity", lambda *_: None)
    house.now = days_ago(5)
    house.plan()
    house.name("a", days_ago(35))
    house.now = days_ago(4)
    assert not house.plan().failed_gates, "other object, same bytes"
    house.now = days_ago(3)
    house.plan()
    assert house.decoded_counts("toys") == [1, 0, 1]
    house.name("b", days_ago(34))
    house.now = days_ago(2)
    assert house.failed_gates(house.plan()) == {"metadata_present"}
    house.now = days_ago(1)
    assert not house.plan().failed_gates
    assert house.planned_actions("toys/data/") == {}
    assert house.decoded_counts("toys") == [1, 0, 1, 0, 1]


def test_what_an_earlier_release_decoded_is_another_at_another_length(house: Rewritten, spark: SparkSession) -> None:
    """It knew lengths, and no identities."""
    night, shown = house.run_context(), [("same", "e", 10), ("longer", "e", 11), ("never decoded", "e", 5)]
    decoded = [{"key": "same", "container_size_bytes": 10}, {"key": "longer", "container_size_bytes": 10}, {"key": "never decoded"}]
    rows = [{"storage": house.storage, "kind": "manifest", "address": f"{house.lake}/{row['key']}", **row} for row in decoded]
    run = night.state.start("toys", "live_files", night.run_date, night.clock)
    [part] = write_parts(pa.Table.from_pylist(rows, METADATA), run, night.state.files, "_metadata")
    listed = spark.createDataFrame(shown, "key string, etag string, size_bytes long")
    found = rewritten_metadata(spark, night, house.storage, [f"{run.path}/{part.name}"], listed)
    assert [(row["key"], row["same"]) for row in found.to_pylist()] == [("longer", False)]
