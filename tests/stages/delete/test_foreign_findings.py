"""Foreign metadata (of tables in no configured catalog) refuses the plans of all storages that its
lake claims.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core import gates
from gc_assets.core.phases import PHASES
from gc_assets.stages.delete.apply import apply_plan
from gc_assets.stages.records.plans import approve, find_plan
from gc_assets.stages.sweep import sweep_checks
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import days_ago
from tests.stages.two_storages import TwoStorages

pytestmark = [pytest.mark.spark, in_turn]
# The data is swept before the metadata.
DATA, METADATA = "disk1", "disk2"


class SplitTables(TwoStorages):
    """Tables with data on the first disk and metadata on the second one, and a lake on the first disk only."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root, gates={"max_delete_share": 1.0, "max_live_drop": 1.0})
        self.shop = LakeBuilder(root, warehouse=root)
        self.tables = [self.add(name) for name in ("ns.a", "ns.b", "ns.c")]
        other = LakeBuilder(root, catalog_name="other", catalog_file="other.db", warehouse=root)
        other.table("ns.x", days_ago(40), location=f"file://{root}/{DATA}/x").append(days_ago(30))
        self.lakes = [self.shop.config("shop"), other.config("other")]

    def add(self, name: str) -> TableBuilder:
        path = name.replace(".", "/")
        properties = {"write.data.path": f"file://{self.root}/{DATA}/{path}"}
        table = self.shop.table(name, days_ago(40), location=f"file://{self.root}/{METADATA}/{path}", properties=properties)
        table.append(days_ago(30))
        return table

    def register(self) -> TableBuilder:
        """Register the last table in a catalog that is not configured."""
        new = LakeBuilder(self.root, catalog_name="new", catalog_file="new.db", warehouse=self.root)
        new.catalog.create_namespace("ns")
        new.keep_times()
        return new.register("ns.c", self.tables[-1].metadata_location)

    def add_foreign(self, named: str) -> TableBuilder:
        """Create a table of an unconfigured catalog with metadata on the second disk and data on the first one."""
        data, metadata = f"file://{self.root}/{DATA}/x", f"file://{self.root}/{METADATA}/a"
        location, properties = (
            (data, {"write.metadata.path": f"{metadata}/metadata"})
            if named == "location"
            else (metadata, {"write.data.path": f"{data}/data"})
        )
        new = LakeBuilder(self.root, catalog_name="new", catalog_file="new.db", warehouse=self.root)
        table = new.table("ns.y", days_ago(40), location=location, properties=properties)
        table.append(days_ago(30))
        return table

    def sweep_data(self) -> None:
        """List both storages, and sweep only that with the data."""
        context = self.run_context()
        storage_inventory(self.spark, context, METADATA)
        for stage in (live_filter, storage_inventory, orphan_files):
            stage(self.spark, context, DATA)

    def put_orphan(self, key: str, written: datetime) -> None:
        path = self.root / DATA / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        os.utime(path, (written.timestamp(), written.timestamp()))

    def failed_gates_of(self, name: str) -> set[str]:
        return self.failed_gates(self.plan_of(name))


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> SplitTables:
    return SplitTables(spark, tmp_path)


def test_foreign_metadata_in_another_storage_refuses_the_plan(house: SplitTables) -> None:
    table = house.register()
    table.append(days_ago(20))
    table.append(days_ago(19))
    plans = house.plans()
    assert {name: house.failed_gates(plan) for name, plan in plans.items()} == {name: {"foreign_metadata"} for name in (DATA, METADATA)}
    message = next(gate.message for gate in plans[DATA].failed_gates)
    assert f"file://{house.root}/{METADATA}/ns/c/metadata/" in message


def test_foreign_metadata_refuses_plans_for_all_storages_of_lake(house: SplitTables) -> None:
    """The foreign metadata does not reference the data disk, but its manifests may reference files
    there.
    """
    new = LakeBuilder(house.root, catalog_name="new", catalog_file="new.db", warehouse=house.root)
    new.table("ns.y", days_ago(40), location=f"file://{house.root}/{METADATA}/ns/c").append(days_ago(30))
    plans = house.plans()
    assert {name: house.failed_gates(plan) for name, plan in plans.items()} == {name: {"foreign_metadata"} for name in (DATA, METADATA)}


def test_foreign_metadata_passes_in_storages_that_its_lake_does_not_use(house: SplitTables) -> None:
    """The lake `other` is on one disk only."""
    LakeBuilder(house.root, catalog_name="new", catalog_file="new.db", warehouse=house.root).table(
        "ns.y", days_ago(40), location=f"file://{house.root}/{DATA}/x"
    )
    plans = house.plans()
    assert {name: house.failed_gates(plan) for name, plan in plans.items()} == {DATA: {"foreign_metadata"}, METADATA: set()}


@pytest.mark.parametrize("named", ["location", "write.data.path"])
def test_foreign_metadata_refuses_plans_for_storages_that_it_references(house: SplitTables, named: str) -> None:
    """The lake `third` is on the disk with the metadata only, the lake `other` on that with the data."""
    third = LakeBuilder(house.root, catalog_name="third", catalog_file="third.db", warehouse=house.root)
    third.table("ns.z", days_ago(40), location=f"file://{house.root}/{METADATA}/a").append(days_ago(30))
    house.lakes.append(third.config("third"))
    house.add_foreign(named)
    plans = house.plans()
    assert {name: house.failed_gates(plan) for name, plan in plans.items()} == {name: {"foreign_metadata"} for name in (DATA, METADATA)}
    assert f"file://{house.root}/{METADATA}/a/metadata/" in next(gate.message for gate in plans[DATA].failed_gates)


@pytest.mark.parametrize("named", ["location", "write.data.path"])
def test_override_keeps_files_in_storages_that_foreign_metadata_references(house: SplitTables, named: str) -> None:
    """The lake `third` is on the disk with the metadata only, the lake `other` on that with the data."""
    third = LakeBuilder(house.root, catalog_name="third", catalog_file="third.db", warehouse=house.root)
    third.table("ns.z", days_ago(40), location=f"file://{house.root}/{METADATA}/a").append(days_ago(30))
    house.lakes.append(third.config("third"))
    house.put_orphan("ns/a/left.parquet", days_ago(20))
    house.put_orphan("x/data/left.parquet", days_ago(20))
    table = house.add_foreign(named)
    plans = house.plans()
    assert house.planned_keys(DATA) == {"ns/a/left.parquet"}
    (left_out,) = plans[DATA].left_out
    assert left_out.files >= 2
    assert "`foreign_metadata`" in left_out.reason
    for plan in plans.values():
        approve(house.config, house.clock, plan.plan_id, "tester", ("foreign_metadata",))
        apply_plan(house.spark, house.run_context(), find_plan(house.config, plan.plan_id), PHASES)
    assert table.table.scan().to_arrow().num_rows == 2


def test_files_in_other_storages_referenced_under_dropped_table_are_kept(house: SplitTables) -> None:
    house.put_orphan("ns/a/left.parquet", days_ago(20))
    house.plans()
    house.shop.catalog.drop_table("ns.c")
    house.now += timedelta(days=1)
    house.plans()
    new = LakeBuilder(house.root, catalog_name="new", catalog_file="new.db", warehouse=house.root)
    location, data = f"file://{house.root}/{METADATA}/ns/c/inner", f"file://{house.root}/{DATA}/ns/a/theirs"
    new.keep_times()
    table = new.table("ns.y", days_ago(40), location=location, properties={"write.data.path": data})
    table.append(days_ago(30))
    house.now += timedelta(days=9)
    plans = house.plans()
    assert {name: house.failed_gates(plan) for name, plan in plans.items()} == {DATA: set(), METADATA: set()}
    assert house.planned_keys(DATA) == {"ns/a/left.parquet"}


def test_override_keeps_files_of_table_with_foreign_metadata_everywhere(house: SplitTables) -> None:
    """The foreign metadata does not reference the data disk, but its manifests may reference files
    there.
    """
    house.put_orphan("ns/a/left.parquet", days_ago(20))
    house.put_orphan("ns/c/left.parquet", days_ago(20))
    new = LakeBuilder(house.root, catalog_name="new", catalog_file="new.db", warehouse=house.root)
    new.table("ns.y", days_ago(40), location=f"file://{house.root}/{METADATA}/ns/c").append(days_ago(30))
    house.plans()
    assert house.planned_keys(DATA) == {"ns/a/left.parquet"}


def test_override_plans_no_file_if_earlier_release_found_foreign_metadata(house: SplitTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of that sweep does not contain the prefixes of the tables."""
    monkeypatch.setattr(sweep_checks.ForeignMetadata, "write", lambda *_: {})
    house.put_orphan("ns/a/left.parquet", days_ago(20))
    new = LakeBuilder(house.root, catalog_name="new", catalog_file="new.db", warehouse=house.root)
    new.table("ns.y", days_ago(40), location=f"file://{house.root}/{METADATA}/ns/c").append(days_ago(30))
    house.plans()
    assert house.planned_keys(DATA) == set()


def test_many_foreign_files_in_one_lake_do_not_hide_another_lake(house: SplitTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake `third` is on the disk with the metadata only, and its files are first by key."""
    monkeypatch.setattr(sweep_checks, "MAX_NAMED", 1)
    location = f"file://{house.root}/{METADATA}/a"
    third = LakeBuilder(house.root, catalog_name="third", catalog_file="third.db", warehouse=house.root)
    third.table("ns.z", days_ago(40), location=location)
    house.lakes.append(third.config("third"))
    LakeBuilder(house.root, catalog_name="fourth", catalog_file="fourth.db", warehouse=house.root).table(
        "ns.z", days_ago(40), location=location
    )
    table = house.register()
    table.append(days_ago(20))
    table.append(days_ago(19))
    plan = house.plans()[DATA]
    assert house.failed_gates(plan) == {"foreign_metadata"}
    assert plan.failed_gates[0].numbers["objects"] >= 3


def test_plan_is_refused_if_another_storage_of_lake_was_never_swept(house: SplitTables) -> None:
    house.mark()
    house.sweep_data()
    assert house.failed_gates_of(DATA) == {"foreign_metadata"}


def test_last_sweep_of_another_storage_is_valid_for_grace_period(house: SplitTables) -> None:
    house.plans()
    house.now += timedelta(days=1)
    house.mark()
    house.sweep_data()
    plan = house.plan_of(DATA)
    assert house.failed_gates(plan) == set()
    assert "was last read by the run of 2026-11-20" in next(gate.message for gate in plan.gates if gate.name == "foreign_metadata")


def test_only_files_older_than_last_listing_of_other_storages_are_planned(house: SplitTables) -> None:
    """Metadata written since the last listing is unknown, and so are the files that only this
    metadata references.
    """
    house.plans()
    house.now += timedelta(days=2)
    listed_on = house.now
    house.plans()
    for name, written in (("older", listed_on - timedelta(hours=1)), ("newer", listed_on + timedelta(hours=1))):
        house.put_orphan(f"ns/a/{name}.parquet", written)
    house.now += timedelta(days=8)
    house.mark()
    house.sweep_data()
    plan = house.plan_of(DATA)
    assert house.failed_gates(plan) == set()
    message = next(gate.message for gate in plan.gates if gate.name == "foreign_metadata")
    assert f"Storage {METADATA} was last listed at {listed_on:%Y-%m-%d %H:%M} UTC, so only older files are planned" in message
    assert "gc-assets run --listing" in message
    assert house.planned_keys(DATA) == {"ns/a/older.parquet"}
    house.plans()
    house.now += timedelta(days=1)
    assert house.failed_gates(house.plans()[DATA]) == set()
    assert house.planned_keys(DATA) == {"ns/a/older.parquet", "ns/a/newer.parquet"}


def test_files_of_table_with_unreadable_metadata_are_kept_in_other_storages(house: SplitTables) -> None:
    """The file may be metadata of another table, with data next to the data of this table."""
    for name in "ab":
        house.put_orphan(f"ns/{name}/left.parquet", days_ago(20))
    path = house.root / METADATA / "ns/a/metadata/x.metadata.json"
    path.write_text('{"format-version": 2, "table-uuid": 7}')
    plan = house.plans()[DATA]
    assert house.failed_gates(plan) == set()
    assert house.planned_keys(DATA) == {"ns/b/left.parquet"}
    (left_out,) = plan.left_out
    assert left_out.files == 1
    assert "ns.a of lake shop: ns/a/metadata/x.metadata.json in storage disk2 cannot be read" in left_out.reason
    path.unlink()
    house.now += timedelta(hours=1)
    assert house.plans()[DATA].left_out == ()
    assert house.planned_keys(DATA) == {"ns/a/left.parquet", "ns/b/left.parquet"}


@pytest.mark.parametrize("moved", [True, False])
def test_dropped_table_data_waits_for_sweep_of_metadata_storage(house: SplitTables, moved: bool) -> None:
    table = house.tables[-1]
    if moved:
        table = house.register()
    assert all(not house.failed_gates(plan) for plan in house.plans().values())
    if moved:
        table.append(days_ago(3))
    house.shop.catalog.drop_table("ns.c")
    for wait in (1, 8, 1):
        house.now += timedelta(days=wait)
        plans = house.plans()
        assert all(not house.failed_gates(plan) for plan in plans.values())
    planned = {key for key in house.planned_keys(DATA) if key.startswith("ns/c/")}
    assert bool(planned) != moved


def test_gate_message_reports_why_foreign_metadata_is_unknown() -> None:
    gate = gates.foreign_metadata(0, [], unknown=["storage meta has no sweep"])
    assert (gate.passed, gate.overridable) == (False, False)
    assert "storage meta has no sweep" in gate.message
    assert "`gc-assets run --listing`" in gate.message


def test_gate_message_reports_what_override_does_not_protect() -> None:
    gate = gates.foreign_metadata(1, ["t/metadata/v1.metadata.json: table"])
    assert gate.overridable
    assert "an override does not protect files in other places that only their manifests reference" in gate.message
