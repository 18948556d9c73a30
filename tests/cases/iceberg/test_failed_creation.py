"""pyiceberg writes metadata of a new table before the catalog answers that the table exists.

So a job with `create_table_if_not_exists` leaves one such file in each run. An empty table of
another catalog in the same location looks the same, so a user must exclude such catalogs.

Source: a trial, in which each run of such a job led to a refused plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class Table:
    """A table with leftovers of a killed writer, and metadata of failed creations next to its own."""

    def __init__(self, spark: SparkSession, path: Path, failed_creations: str = "collect") -> None:
        self.house = Lakehouse(spark, path, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
        self.lake = lake = LakeBuilder(self.house.root)
        table = lake.table("db.orders", days_ago(40))
        table.overwrite(days_ago(30))
        table.overwrite(days_ago(20))
        table.leftovers(days_ago(20), 2)
        lake.table("db.other", days_ago(40)).overwrite(days_ago(20))
        self.house.lakes = [lake.config("sales", failed_creations=failed_creations)]
        loaded = lake.catalog.load_table("db.orders")
        self.directory = Path(loaded.metadata_location.removeprefix("file://")).parent
        before = set(self.directory.iterdir())
        for _ in range(3):
            lake.catalog.create_table_if_not_exists("db.orders", loaded.schema())
        self.empty = sorted(set(self.directory.iterdir()) - before)
        for file in self.empty:
            age(file)

    def change(self, **changes: object) -> None:
        """Change the metadata of the first failed creation."""
        file = self.empty[0]
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **changes}))
        age(file)

    def plan(self) -> tuple[set[str], set[str], str]:
        """Return the planned keys, the failed gates and the message of `foreign_metadata`."""
        header = self.house.plan()
        message = next(gate.message for gate in header.gates if gate.name == "foreign_metadata")
        return set(self.house.planned_actions()), self.house.failed_gates(header), message


def age(file: Path) -> None:
    at = days_ago(20).timestamp()
    os.utime(file, (at, at))


def test_metadata_of_failed_creations_is_collected_if_no_other_catalog_exists(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path)
    assert len(table.empty) == 3
    planned, failed, _ = table.plan()
    assert not failed
    assert set(map(table.house.key, table.empty)) < planned


def test_metadata_of_failed_creations_refuses_the_plan_by_default(spark: SparkSession, tmp_path: Path) -> None:
    _, failed, message = Table(spark, tmp_path, failed_creations="refuse").plan()
    assert failed == {"foreign_metadata"}
    assert "failed_creations" in message


def test_dropped_table_with_failed_creations_is_collected(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path)
    house = table.house
    files = {house.key(file) for file in (table.directory.parent / "data").iterdir()}
    assert not table.plan()[1]
    table.lake.catalog.drop_table("db.orders")
    for wait in (1, 8):
        house.now += timedelta(days=wait)
        house.plan()
    planned = set(house.planned_actions())
    assert files | set(map(house.key, table.empty)) <= planned


def change_of(name: str, value: object) -> Callable[[Table], dict[str, Any]]:
    return lambda _: {name: value}


def move(table: Table) -> dict[str, Any]:
    return {"location": f"file://{table.house.warehouse}/db/other"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change_of("snapshots", [{"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "m.avro"}]), id="snapshot"),
        pytest.param(change_of("metadata-log", [{"timestamp-ms": 1, "metadata-file": "a.metadata.json"}]), id="second-metadata"),
        pytest.param(change_of("properties", {"write.metadata.path": "file:///another"}), id="metadata-in-another-directory"),
        pytest.param(move, id="another-location"),
    ],
)
def test_unknown_table_metadata_beyond_a_failed_creation_refuses_the_plan(
    spark: SparkSession, tmp_path: Path, change: Callable[[Table], dict[str, Any]]
) -> None:
    table = Table(spark, tmp_path)
    table.change(**change(table))
    _, failed, message = table.plan()
    assert failed == {"foreign_metadata"}
    assert table.house.key(table.empty[0]) in message
