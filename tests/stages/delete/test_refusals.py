"""Gates that refuse a plan, each in the incident that caused it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.stages.read.acceptances import describe_dead_table
from gc_assets.stages.records.dead_tables import accept_dead_table
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes

pytestmark = [pytest.mark.spark, in_turn]


def small_lake(spark: SparkSession, root: Path) -> tuple[Lakehouse, LakeBuilder, TableBuilder]:
    house, iceberg = Lakehouse(spark, root), LakeBuilder(root)
    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [iceberg.config("sales")]
    return house, iceberg, table


def write_old(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (days_ago(30).timestamp(),) * 2)
    return path


def test_refusal_lists_all_failed_checks(spark: SparkSession, tmp_path: Path) -> None:
    """A table in no catalog inside a claimed location, a live file under another spelling of its name,
    and live files behind a link.
    """
    house, iceberg, _ = small_lake(spark, tmp_path)
    home = house.warehouse / "db" / "t"
    stranger = LakeBuilder(tmp_path, "stranger", "stranger.db").table("x.stranger", days_ago(40), location=f"file://{home}/inside")
    stranger.append(days_ago(30))
    live = next((home / "data").glob("*.parquet"))
    write_old(live.with_name(live.name.replace("-", "%2D", 1)))
    live.unlink()
    moved = iceberg.table("db.linked", days_ago(40))
    moved.append(days_ago(30))
    linked = house.warehouse / "db" / "linked"
    (linked / "data").rename(house.warehouse / "db" / "t" / "real")
    (linked / "data").symlink_to(house.warehouse / "db" / "t" / "real")

    header = house.plan()
    assert house.failed_gates(header) == {"foreign_metadata", "spelling", "links", "live_listed"}
    with pytest.raises(GateRefused) as refusal:
        house.approve(header)
    for fragment in ("which is in no configured catalog", "%2D", "symbolic links", "This gate cannot be overridden"):
        assert fragment in str(refusal.value)
    with pytest.raises(GateRefused, match="spelling"):
        house.approve(header, "foreign_metadata", "live_listed")


def test_large_live_drop_needs_specific_override(spark: SparkSession, tmp_path: Path) -> None:
    house, iceberg, table = small_lake(spark, tmp_path)
    table.leftovers(days_ago(20), 2)
    other = iceberg.table("db.big", days_ago(40))
    for day in range(30, 20, -1):
        other.append(days_ago(day))
    house.now = days_ago(1)
    house.plan()
    iceberg.catalog.drop_table("db.big")
    house.now = days_ago(0)
    header = house.plan()
    assert house.failed_gates(header) == {"live_drop"}
    with pytest.raises(GateRefused, match="--override live_drop"):
        house.approve(header)


def test_plan_above_max_delete_share_is_refused_and_override_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    house, _, table = small_lake(spark, tmp_path)
    house.settings = {"gates": {"max_delete_share": 0.1, "max_delete_bytes": 1}}
    table.leftovers(days_ago(20), 5)
    header = house.plan()
    assert house.failed_gates(header) == {"delete_share", "delete_bytes"}
    with pytest.raises(GateRefused, match="delete_bytes"):
        house.approve(header, "delete_share")
    plan = house.approve(header, "delete_share", "delete_bytes")
    assert plan.verdict.overrides == ("delete_bytes", "delete_share")
    applied = house.apply(header)
    assert applied.published is not None
    assert applied.published.receipt.summary["overrides"] == ["delete_bytes", "delete_share"]


def test_historical_plan_is_never_applied(spark: SparkSession, tmp_path: Path) -> None:
    house, _, table = small_lake(spark, tmp_path)
    table.leftovers(days_ago(20), 2)
    from gc_assets.engine.run_context import RunContext
    from gc_assets.stages.delete.plan import deletion_plan, header_of
    from gc_assets.stages.mark.mark_lake import mark
    from gc_assets.stages.sweep.live_filter import live_filter
    from gc_assets.stages.sweep.orphan_files import orphan_files
    from gc_assets.stages.sweep.storage_inventory import storage_inventory

    context = RunContext.of(house.config, house.clock, days_ago(9).date())
    mark(spark, context, "sales")
    for stage in (live_filter, storage_inventory, orphan_files):
        stage(spark, context, "warehouse")
    header = header_of(deletion_plan(spark, context, "warehouse"))
    assert header.historical
    assert header.totals["quarantine"].files > 0
    with pytest.raises(GateRefused, match="never applied"):
        house.approve(header)


def test_storage_without_claimed_files_has_empty_plan(spark: SparkSession, tmp_path: Path) -> None:
    """The lake is in another storage. An empty plan needs no refusal."""
    house, _, _ = small_lake(spark, tmp_path)
    other_storage = Lakehouse(spark, tmp_path / "elsewhere", house.lakes)
    write_old(other_storage.warehouse / "db" / "t" / "data" / "x.parquet")
    header = other_storage.plan()
    assert other_storage.failed_gates(header) == set()
    assert header.totals == {}


def test_catalog_copy_that_is_older_than_storage_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The writers use another catalog, and the configured copy has the same table uuid."""
    house, iceberg, table = small_lake(spark, tmp_path)
    moved = LakeBuilder(tmp_path, "moved", "moved.db")
    moved.catalog.create_namespace("db")
    moved.catalog.register_table("db.t", table.metadata_location)
    writer = TableBuilder(moved, "db.t")
    writer.append(days_ago(20), ids=(3, 4))
    header = house.plan()
    assert house.failed_gates(header) == {"foreign_metadata"}
    assert "has a newer snapshot here than in its catalog" in next(gate.message for gate in header.failed_gates)
    house.lakes = [iceberg.config("sales"), moved.config("moved")]
    house.now = days_ago(-1)
    assert house.failed_gates(house.plan()) == set()


def test_replaced_table_is_collected_if_accepted_as_dead(spark: SparkSession, tmp_path: Path) -> None:
    house, iceberg, _ = small_lake(spark, tmp_path)
    dead = {house.key(path) for path in (house.warehouse / "db" / "t").rglob("*") if path.is_file()}
    uuid = str(iceberg.catalog.load_table("db.t").metadata.table_uuid)
    iceberg.catalog.drop_table("db.t")
    iceberg.table("db.t", days_ago(20)).append(days_ago(19))
    house.settings = {"gates": {"max_delete_share": 1.0}}
    accept_dead_table(house.config, house.clock, uuid, f"file://{house.warehouse}/db/t/", "ada", "dropped in spring")
    header = house.plan()
    assert header.failed_gates == []
    gate = next(gate for gate in header.gates if gate.name == "foreign_metadata")
    assert f"table {uuid} under db/t/, accepted as dead by ada" in gate.message
    assert house.keys("deletion_plan") == dead
    house.approve(header)
    accept_dead_table(house.config, house.clock, uuid, f"file://{house.warehouse}/db/t/", "ada", withdraw=True)
    assert outcomes(house.apply(header)) == {"denied"}
    assert all((house.warehouse / key).exists() for key in dead)


@pytest.mark.parametrize("uuid", ["Orders, 2024", "9C12D44103FE46939A96A0705DDF69C1"], ids=["no_uuid", "without_hyphens"])
def test_table_with_unusual_uuid_can_be_accepted_as_dead(spark: SparkSession, tmp_path: Path, uuid: str) -> None:
    house, _, _ = small_lake(spark, tmp_path)
    content = json.dumps({"table-uuid": uuid, "snapshots": []}).encode()
    metadata = write_old(house.warehouse / "db" / "t" / "metadata" / "00009-old.metadata.json", content)
    (gate,) = house.plan().failed_gates
    advice = re.search(r"if it is dead: `gc-assets accept (.*?) --by WHO`", gate.message)
    assert advice is not None
    table, location = shlex.split(advice[1])
    assert table == uuid
    storage, record = accept_dead_table(house.config, house.clock, table, location, "ada")
    assert describe_dead_table(house.config, storage, record) is None
    house.now = days_ago(-1)
    assert house.plan().failed_gates == []
    assert house.key(metadata) in house.keys("deletion_plan")
