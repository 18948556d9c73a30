"""A manifest or manifest list that another valid one of the same table replaced makes its table unreadable.

Its files are then those of another snapshot, so that the live files of this one would be garbage.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.manifests import decode
from gc_assets.lakes.protocol import Container
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def list_of(table: TableBuilder, number: int) -> Path:
    """Return the manifest list of a snapshot by its number."""
    return table.path(table.table.snapshots()[number].manifest_list)


def added_manifest(table: TableBuilder, number: int) -> Path:
    """Return the manifest that a snapshot added."""
    snapshot = table.table.snapshots()[number]
    rows = decode(Container(snapshot.manifest_list, Kind.MANIFEST_LIST), list_of(table, number).read_bytes()).to_pylist()
    return table.path(next(row["address"] for row in rows if row["snapshot_id"] == str(snapshot.snapshot_id)))


def replace_last(table: TableBuilder, kind: str) -> None:
    """Replace the newest object of a kind by that of the snapshot before, and keep its time."""
    find = list_of if kind == Kind.MANIFEST_LIST else added_manifest
    shutil.copy2(find(table, -2), find(table, -1))


@pytest.mark.parametrize("is_first_run", [True, False])
def test_live_files_of_replaced_metadata_are_not_planned(spark: SparkSession, tmp_path: Path, is_first_run: bool) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
    lake = LakeBuilder(house.root)
    tables = {name: lake.table(f"db.{name}", days_ago(40)) for name in ("good", "manifest_list", "manifest")}
    for table in tables.values():
        for days in (30, 29, 28):
            table.append(days_ago(days))
    leftovers = {house.key(path) for path in tables["good"].leftovers(days_ago(20), 2)}
    kept = {key for key in house.files() if not key.startswith("db/good/")}
    house.lakes = [lake.config("sales")]
    if not is_first_run:
        house.plan()
        house.now += timedelta(days=1)
    for kind in (Kind.MANIFEST_LIST, Kind.MANIFEST):
        replace_last(tables[kind], kind)

    house.plan()
    first = set(house.planned_actions())
    house.now += timedelta(days=1)
    header = house.plan()

    assert not first & kept
    assert not set(house.planned_actions()) & kept
    assert {item.table_name for item in header.unreadable} == {"db.manifest_list", "db.manifest"}
    assert leftovers <= set(house.planned_actions())
