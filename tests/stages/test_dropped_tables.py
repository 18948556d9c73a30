"""Files of dropped tables are collected after a waiting time, and nothing else is.

Each story uses real catalogs. The clock is moved, so that the waiting time of seven days passes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.stages.records.accepted_runs import forget_lake
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago, outcomes

pytestmark = pytest.mark.spark
GATES = {"max_delete_share": 1.0, "max_live_drop": 1.0}


class Shop:
    """A lake with the tables db.a to db.d, read by a first run."""

    def __init__(self, spark: SparkSession, root: Path, tables: str = "abcd", **settings: Any) -> None:
        self.house = Lakehouse(spark, root, settings={"gates": GATES})
        self.lake = LakeBuilder(root)
        self.tables = {name: self.lake.table(f"db.{name}", days_ago(40)) for name in tables}
        for table in self.tables.values():
            table.append(days_ago(30))
        self.house.lakes = [self.lake.config(**settings)]
        self.house.plan()

    def drop(self, name: str) -> str:
        """Drop a table, and return its newest metadata file."""
        location = self.tables[name].metadata_location
        self.lake.catalog.drop_table(f"db.{name}")
        return location

    def run(self, day: float) -> PlanHeader:
        self.house.now = NOW + timedelta(days=day)
        return self.house.plan()

    def dropped(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the dropped tables in the last run, by name."""
        swept = self.house.find_table("orphan_files")
        rows = read_parts(self.house.run_context().state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES).to_pylist()
        return {row["table_name"]: row for row in rows if row["gone_since"] is not None}

    def waits_for(self, name: str) -> str | None:
        return self.dropped()[f"db.{name}"]["waits_for"]

    def planned(self) -> set[str]:
        """Return the first two components of the planned keys."""
        return {"/".join(key.split("/")[:2]) for key in self.house.keys("deletion_plan")}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def test_files_of_a_dropped_table_are_collected_after_seven_days(shop: Shop) -> None:
    files = {key for key in shop.house.files() if key.startswith("db/a/")}
    shop.drop("a")
    for day in (1, 7.5):
        header = shop.run(day)
        assert (header.rows, shop.waits_for("a")) == (0, "its waiting time ends at 2026-11-28 03:00 UTC")
    header = shop.run(8.1)
    assert shop.house.planned_actions() == dict.fromkeys(files, "quarantine")
    assert header.by_reason["dropped"].files == len(files)
    assert shop.house.failed_gates(header) == set()
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    purge = shop.run(8.2)
    assert shop.house.planned_actions() == dict.fromkeys(files, "purge")
    assert outcomes(shop.house.approve_and_apply(purge)) == {"done"}
    assert shop.run(8.3).rows == 0
    assert {key[:5] for key in shop.house.files()} == {"db/b/", "db/c/", "db/d/"}
