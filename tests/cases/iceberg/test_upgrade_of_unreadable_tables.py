"""Rows that an earlier release decoded protect the files of a table that has been unreadable since.

A new release decodes all containers again. A damaged manifest cannot be decoded, so that its files outside
the claims of its table were garbage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.manifests import decode
from gc_assets.lakes.protocol import Container
from gc_assets.stages.mark import manifest_entries
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


def find_manifest(table: TableBuilder) -> Path:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    raw = table.path(snapshot.manifest_list).read_bytes()
    rows = decode(Container(snapshot.manifest_list, Kind.MANIFEST_LIST), raw).to_pylist()
    return table.path(next(row["address"] for row in rows if row["snapshot_id"] == str(snapshot.snapshot_id)))


def find_list(table: TableBuilder) -> Path:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    return table.path(snapshot.manifest_list)


def find_metadata(table: TableBuilder) -> Path:
    return table.path(table.metadata_location)


@pytest.mark.parametrize("find", [find_manifest, find_list, find_metadata])
def test_files_of_an_unreadable_table_stay_live_after_an_upgrade(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[TableBuilder], Path]
) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
    lake = LakeBuilder(house.root)
    owner, reader = (lake.table(f"db.{name}", days_ago(40)) for name in ("owner", "reader"))
    for table in (owner, reader):
        table.append(days_ago(30))
    # A file in the location of `owner` that only `reader` needs.
    [own] = (house.warehouse / "db/owner/data").glob("*.parquet")
    shared = own.with_name(own.name.replace("00000-0-", "00000-9-"))
    shared.write_bytes(own.read_bytes())
    os.utime(shared, (days_ago(30).timestamp(),) * 2)
    reader.table.add_files([f"file://{shared}"])
    lake.date_files(days_ago(29))
    leftovers = {house.key(path) for path in owner.leftovers(days_ago(20), 2)}
    house.lakes = [lake.config("sales")]
    house.plan()
    assert set(house.planned_actions()) >= leftovers

    damaged = find(reader)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    planned = []
    for release in ("0.4.1", "0.4.2"):
        house.now += timedelta(days=1)
        house.plan()
        planned.append(set(house.planned_actions()))
        monkeypatch.setattr(manifest_entries, "__version__", release)
    for _ in range(2):  # the second run finds the copies of the first
        house.now += timedelta(days=1)
        header = house.plan()
        planned.append(set(house.planned_actions()))
        assert [item.table_name for item in header.unreadable] == ["db.reader"]

    assert [house.key(shared) in actions for actions in planned] == [False] * 4
    assert leftovers <= planned[-1]
