"""A plan checks once whether pyiceberg can edit a table, and again if the table or the catalog has changed, or an apply has tried."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg import preflight
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.stages.records.denials import request_retry
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.rest_server import serve_catalog
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
DAY = timedelta(days=1)
NAMES = ("db.items", "db.orders")


@dataclass
class Checks:
    """Records the tables that a plan checks. Those in `unloadable` fail the check."""

    unloadable: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def find_unloadable(self, _: CatalogClient, tables: Mapping[str, str]) -> dict[str, str]:
        self.names += sorted(tables.values())
        return {uuid: "cannot load it" for uuid, name in tables.items() if name in self.unloadable}

    def of(self, house: Lakehouse) -> tuple[str, ...]:
        """Make the plan of another day, and return the tables that it checks."""
        self.names.clear()
        house.now += DAY
        house.plan()
        return tuple(self.names)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    found = Checks()
    monkeypatch.setattr(preflight, "find_unloadable", found.find_unloadable)
    return found


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    return LakeBuilder(tmp_path)


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path, builder: LakeBuilder) -> Lakehouse:
    for name in NAMES:
        table = builder.table(name, days_ago(60), properties={"history.expire.max-snapshot-age-ms": "86400000"})
        for age in (50, 40, 30):
            table.overwrite(days_ago(age))
    return Lakehouse(spark, tmp_path, [builder.config("lk")], settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})


def test_writability_of_unchanged_table_is_not_checked_again(house: Lakehouse, checks: Checks) -> None:
    assert checks.of(house) == NAMES
    edits = house.plan().expiry_actions
    assert checks.of(house) == ()
    assert house.plan().expiry_actions == edits != {}


def test_writability_of_changed_table_is_checked_again(house: Lakehouse, builder: LakeBuilder, checks: Checks) -> None:
    checks.of(house)
    TableBuilder(builder, "db.orders").append(house.now)
    assert checks.of(house) == ("db.orders",)


def test_table_that_was_not_writable_is_checked_again(house: Lakehouse, checks: Checks) -> None:
    checks.unloadable.add("db.orders")
    checks.of(house)
    assert checks.of(house) == ("db.orders",)
    (left_out,) = house.plan().left_out
    assert (left_out.name, left_out.reason) == ("table db.orders of lake lk", "cannot load it")
    checks.unloadable.clear()
    assert checks.of(house) == ("db.orders",)
    assert checks.of(house) == ()


def test_all_tables_are_checked_again_in_another_catalog(house: Lakehouse, builder: LakeBuilder, checks: Checks) -> None:
    checks.of(house)
    shutil.copy(builder.root / "catalog.db", builder.root / "copy.db")
    house.lakes = [builder.config("lk", catalog={**builder.properties, "uri": f"sqlite:///{builder.root}/copy.db"})]
    assert checks.of(house) == NAMES


def test_table_is_checked_again_after_apply_failed_to_edit_it(house: Lakehouse, builder: LakeBuilder, checks: Checks) -> None:
    with serve_catalog(builder) as server:
        server.on_commit = lambda _: 403
        house.lakes = [builder.config("lk", catalog={"type": "rest", "uri": server.uri})]
        assert checks.of(house) == NAMES
        house.approve_and_apply(house.plan())
        request_retry(house.config, house.clock, "lk", "ada")
        assert checks.of(house) == NAMES
