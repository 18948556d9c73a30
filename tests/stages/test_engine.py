"""A piece of work gives the same in this process and in an executor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages import engine, few_rows
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.progress import jobs_of
from gc_assets.stages.sweep import storage_inventory
from gc_assets.state.journal import Published
from tests.depth import some
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import document_tree
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark

OF_A_LAKE = ("commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
OF_THE_STORAGE = ("live_filter", "storage_inventory", "orphan_files")
# Facts that name runs, which have other names each time, or tell how the work was divided.
OF_RUNS = {"tasks", "spark_jobs", "segments", "segments_digest", "carried_from"}


def test_a_night_publishes_the_same_tables_from_here_and_from_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.leftovers(days_ago(10))
    document_tree(house.warehouse / "weather", days_ago(40))
    house.lakes = [iceberg.config("sales"), house.weather(retention={"default": "10d"})]

    def receipt_of(table: str, owner: str) -> dict[str, Any]:
        receipt = house.published(table, owner).receipt
        sides = {name: sum(part.rows for part in parts) for name, parts in receipt.side.items()}
        facts = {name: value for name, value in receipt.facts.items() if name not in OF_RUNS}
        balances = [balance for balance in receipt.balances if balance.name != "listing tasks"]
        return {"rows": receipt.rows, "digest": receipt.digest, "sides": sides, "facts": facts, "balances": balances}

    def nights() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for now in some([NOW], [NOW + timedelta(days=1)]):
            house.now = now
            plan = house.plan()
            found.append({"plan": plan.plan_id})
            found += [receipt_of(table, lake.name) for lake in house.config.lakes for table in OF_A_LAKE]
            found += [receipt_of(table, STORAGE) for table in OF_THE_STORAGE]
        return found

    here = nights()
    shutil.rmtree(tmp_path / "state")
    monkeypatch.setattr(few_rows, "FEW_ROWS", -1)
    monkeypatch.setattr(engine, "HERE_ROWS", -1)
    monkeypatch.setattr(engine, "HERE_BYTES", -1)
    monkeypatch.setattr(engine, "BEGUN_ROWS", -1)
    monkeypatch.setattr(storage_inventory, "HERE_ENTRIES", 1)
    assert nights() == here


def test_a_night_over_few_rows_is_a_spark_job_for_each_join_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    """Live files, the reasons of the candidates, and the plan: that is all that is joined. Where nothing changed, live files are not."""
    if not hasattr(spark, "sparkContext"):
        pytest.skip("Spark Connect does not tell how many jobs there were")
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    tables = [(table, "sales") for table in OF_A_LAKE] + [(table, STORAGE) for table in (*OF_THE_STORAGE, "deletion_plan")]
    swept = [("orphan_files", STORAGE), ("deletion_plan", STORAGE)]
    for house.now, joins in ((NOW, [("live_files", "sales"), *swept]), (NOW + timedelta(days=1), swept)):
        before = jobs_of(spark)
        assert before is not None
        assert house.plan().totals
        assert jobs_of(spark) == before + len(joins)
        told = {(table, owner): house.facts(table, owner).get("spark_jobs") for table, owner in tables}
        assert {name: count for name, count in told.items() if count} == dict.fromkeys(joins, 1)


def test_an_apply_over_few_rows_is_a_spark_job_for_each_join_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    """The history before and after its edits, the live files after them, and the plan with all that is needed. What was marked before
    the edits is compared with nothing: they put another mark in its place.
    """
    if not hasattr(spark, "sparkContext"):
        pytest.skip("Spark Connect does not tell how many jobs there were")
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    header = house.plan()
    before = jobs_of(spark)
    assert before is not None
    applied = house.carry_out(header)
    assert applied.edited
    assert applied.books["quarantine", "done"].rows
    assert jobs_of(spark) == before + 4


def test_a_plan_is_applied_and_put_back_alike_from_here_and_from_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.settings = {"quarantine_days": 30}
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    def done(log: Published) -> list[list[Any]]:
        told = ("key", "phase", "outcome", "size_bytes", "quarantine", "kind", "rehearsal")
        return sorted([row[name] for name in told] for row in house.rows_of(log))

    def there_and_back(session: Callable[[], SparkSession]) -> list[list[list[Any]]]:
        header = house.plan()
        applied = house.carry_out(header).published
        assert applied is not None
        back, _ = restore(session, house.tonight(), STORAGE, plan_id=header.plan_id)
        return [done(applied), done(back)]

    def no_spark() -> SparkSession:
        raise AssertionError("so little is put back without Spark")

    here = there_and_back(no_spark)
    house.now += timedelta(days=1)
    monkeypatch.setattr(few_rows, "FEW_ROWS", -1)
    monkeypatch.setattr(engine, "HERE_ROWS", -1)
    monkeypatch.setattr(engine, "HERE_ACTS", -1)
    assert all(len(rows) > 2 for rows in here)
    assert there_and_back(lambda: spark) == here
