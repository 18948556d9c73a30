"""An apply of an older plan keeps what later runs found.

The plan of day 1 is approved and applied days later. In between, runs find that files of the plan
belong to tables of another catalog, to a table that waits, or to a dataset in another format.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.apply import ApplyResult
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, STORAGE, days_ago, outcomes
from tests.stages.sweep.test_dropped_tables import Shop, touch

pytestmark = [pytest.mark.spark, in_turn]
ACTIONS = ("quarantine", "purge")


class OlderPlan(Shop):
    """An approved plan that quarantines garbage of `db.b`, or purges it while it is still in place.

    Attributes:
        garbage: The data files in the plan.
        day: Day of the last run.
    """

    def __init__(self, spark: SparkSession, root: Path, action: str) -> None:
        super().__init__(spark, root, "ab", retention={"max_snapshot_age": "3650d"})
        if action == "purge":
            self.house.settings["quarantine"] = "deferred"
        leftovers = self.tables["b"].leftovers(days_ago(20))
        self.garbage = [path for path in leftovers if path.suffix == ".parquet"]
        self.day = 1.0
        header = self.run(1)
        if action == "purge":
            self.house.approve_and_apply(header)
            self.day = 2.0
            header = self.run(2)
        assert set(self.house.planned_actions().values()) == {action}
        assert set(map(self.house.key, self.garbage)) <= self.house.planned_actions().keys()
        self.house.approve(header)
        self.header: PlanHeader = header

    def adopt(self, table: TableBuilder) -> TableBuilder:
        """Add the garbage to a table, some hours after the last run."""
        with self.lake.at(self.house.now + timedelta(hours=6)):
            table.table.add_files([f"file://{path}" for path in self.garbage])
        return table

    def add_foreign(self) -> TableBuilder:
        """Create a table of another catalog in the location of `db.b`, which adopts the garbage."""
        other = LakeBuilder(self.house.root, "second", "second.db")
        other.keep_times()
        return self.adopt(other.table("db.x", self.house.now, location=f"file://{self.house.warehouse}/db/b"))

    def run_next(self, days: float = 1) -> PlanHeader:
        self.day += days
        return self.run(self.day)

    def apply_older(self) -> ApplyResult:
        self.house.now = NOW + timedelta(days=self.day + 0.5)
        return self.house.apply(self.header)

    def are_kept(self) -> bool:
        return all(path.exists() for path in self.garbage)


@pytest.fixture(params=ACTIONS)
def older(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> OlderPlan:
    return OlderPlan(spark, tmp_path, request.param)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path, "ab")


def test_older_plan_is_executed_if_later_runs_found_no_problem(older: OlderPlan) -> None:
    older.run_next()
    assert outcomes(older.apply_older()) == {"done"}
    assert not older.are_kept()


def test_older_plan_is_refused_if_later_run_found_foreign_metadata(older: OlderPlan) -> None:
    foreign = older.add_foreign()
    assert older.house.failed_gates(older.run_next()) == {"foreign_metadata"}
    with pytest.raises(GateRefused, match=r"no longer matches the lakes:\n  foreign_metadata: .*" + foreign.uuid):
        older.apply_older()
    assert older.are_kept()


def test_override_for_older_plan_keeps_files_of_unknown_tables(older: OlderPlan) -> None:
    foreign = older.add_foreign()
    older.run_next(0.9)  # until then, the plan can be approved
    older.house.approve(older.header, "foreign_metadata")
    assert "changed" in outcomes(older.apply_older())
    assert older.are_kept()
    assert foreign.table.scan().to_arrow().num_rows > 0


def test_older_plan_keeps_files_adopted_by_table_dropped_later(older: OlderPlan) -> None:
    older.adopt(older.tables["a"])
    older.run_next()
    address = older.tables["a"].metadata_location
    older.drop("a")
    older.run_next()
    assert older.waits_for("a")
    assert "changed" in outcomes(older.apply_older())
    assert older.are_kept()
    older.register("a", address)
    assert older.lake.catalog.load_table("db.a").scan().to_arrow().num_rows > 0


def test_older_plan_keeps_dataset_of_another_format_found_later(shop: Shop) -> None:
    data = shop.house.warehouse / "db/b/data"
    assert_kept(shop, data / "left.parquet", data / "_versions/1.manifest", "denied", "another format")


def test_older_plan_keeps_files_next_to_unreadable_metadata_found_later(shop: Shop) -> None:
    table = shop.house.warehouse / "db/b/data/inner"
    left = table / "data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11-00001.parquet"
    assert_kept(shop, left, table / "metadata/00000-x.metadata.json", "changed", "cannot be read")


def assert_kept(shop: Shop, garbage: Path, sign: Path, outcome: str, reason: str) -> None:
    """Write the sign after the plan of a garbage file, run again, and apply the plan."""
    touch(garbage, days_ago(20))
    header = shop.run(1)
    assert shop.house.planned_actions() == {shop.house.key(garbage): "quarantine"}
    shop.house.approve(header)
    touch(sign, days_ago(20), "{")
    assert shop.house.failed_gates(shop.run(2)) == set()
    assert shop.house.planned_actions() == {}
    shop.house.now += timedelta(hours=12)
    assert outcomes(shop.house.apply(header)) == {outcome}
    assert garbage.exists()
    (row,) = shop.house.rows_of(shop.house.run_context().state.require(STORAGE, "deletion_log", header.run_date))
    assert reason in row["error"]
