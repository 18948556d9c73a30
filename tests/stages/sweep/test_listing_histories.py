"""A plan without a listing against a plan with one, at the same time, on random tables.

The plan without a listing is a subset, and contains all files that a snapshot seen by a run
referenced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.depth import example_count, select_cases
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse
from tests.stages.oracles import iceberg_files, iceberg_tables, local_path
from tests.stages.random_lakes import NOW, STEP, TABLE_HISTORIES, TABLE_STEPS, TABLES_START, draw_examples, take_table_step

pytestmark = pytest.mark.spark

DRAWN = 200
EVERY = example_count(50, 1)
PURGES_NOTHING = {"listing": {"every": "30d"}, "quarantine_days": 90}


def build_until_listing(lake: LakeBuilder, history: tuple[Any, ...]) -> TableBuilder:
    properties, partitioned, steps = history
    at = TABLES_START
    table = lake.table(f"{lake.warehouse.name}.t", at, properties=properties, partitioned=partitioned)
    table.append(at)
    for gap, step in steps:
        at = min(at + gap * STEP, NOW)
        take_table_step(table, at, *step)
    return table


def named_by_snapshots(root: Path) -> Iterator[str]:
    """Yield the files that the snapshots in the catalog name."""
    for table in tables_of(root):
        for snapshot in table.get("snapshots", []):
            yield from iceberg_files(snapshot)


def named_statistics(root: Path) -> Iterator[str]:
    """Yield the statistics files of the snapshots in the catalog. No container references them."""
    for table in tables_of(root):
        snapshots = {snapshot["snapshot-id"] for snapshot in table.get("snapshots", [])}
        for statistics in (*table.get("statistics", []), *table.get("partition-statistics", [])):
            if statistics["snapshot-id"] in snapshots:
                yield local_path(statistics["statistics-path"])


def tables_of(root: Path) -> list[Any]:
    return [json.loads(Path(metadata).read_bytes()) for metadata in iceberg_tables(root / "catalog.db").values()]


def read_plan(house: Lakehouse) -> dict[tuple[str, str], tuple[Any, ...]]:
    columns = ("etag", "size_bytes", "reason", "lake", "after_expiry", "held_by", "kind")
    return {(row["key"], row["action"]): tuple(row[name] for name in columns) for row in house.rows("deletion_plan")}


@pytest.mark.parametrize("applies", select_cases([False], [True]))
def test_plan_without_listing_contains_formerly_referenced_garbage(spark: SparkSession, tmp_path: Path, applies: bool) -> None:
    histories = draw_examples(TABLE_HISTORIES, DRAWN)[::EVERY]
    later = draw_examples(TABLE_STEPS, DRAWN)
    house = Lakehouse(spark, tmp_path, now=NOW, settings=dict(PURGES_NOTHING))
    tables = [
        build_until_listing(LakeBuilder(tmp_path, warehouse=house.warehouse / f"h{number:03}"), history)
        for number, history in enumerate(histories)
    ]
    house.lakes = [LakeBuilder(tmp_path).config("sales")]
    named, first = set(named_by_snapshots(tmp_path)), house.plan()
    listed = {row["key"]: row["etag"] for row in house.rows("storage_inventory")}
    if applies:
        house.approve_and_apply(first)
    for number, table in enumerate(tables):
        for step in range(2):
            take_table_step(table, NOW + timedelta(days=1 + step, hours=number % 24), *later[(2 * number + step) % len(later)])
    named |= {*named_by_snapshots(tmp_path), *named_statistics(tmp_path)}
    house.now = NOW + timedelta(days=6)
    assert house.plan().listed_at == NOW
    found = read_plan(house)
    del house.settings["listing"]
    house.plan()
    full = read_plan(house)
    assert found.items() <= full.items()
    assert found == {
        (key, action): values
        for (key, action), values in full.items()
        if action == "restore" or (listed.get(key) == values[0] and str(house.warehouse / key) in named)
    }
    assert len(found) > (1 if applies else len(tables))
    assert len(found) < len(full)
