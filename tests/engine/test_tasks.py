"""A piece of work gives the same in this process and in an executor."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config
from gc_assets.engine import sessions as few_rows
from gc_assets.engine import tasks as engine
from gc_assets.engine.progress import count_jobs
from gc_assets.stages.delete.restore import restore
from gc_assets.state.journal import PublishedTable
from tests.days import noon
from tests.depth import times
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.server import Server
from tests.stages.elsewhere import all_in_executors
from tests.stages.growing import LAG, growing_lakes
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago
from tests.stages.mark.carrying import always_carrying

pytestmark = pytest.mark.spark

OF_A_LAKE = ("commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
OF_THE_STORAGE = ("live_filter", "storage_inventory", "orphan_files")
# Facts that name runs, which have other names each time, or tell how the work was divided.
OF_RUNS = {"tasks", "listing_seconds", "spark_jobs", "requests", "segments", "segments_digest"}
OF_CARRYING = {"reused_files", "reused_from", "full_recompute_reason", "full_recompute_on", "incremental_runs", "uncompared_runs"}
# How the listing was divided, and which rows nobody computed anew.
BALANCES_OF_RUNS = {"listing tasks", "reused rows"}


@dataclass
class Way(Lakehouse):
    """A house whose nights compute every row, or carry over what stands."""

    full_every: int = 0

    @property
    def config(self) -> Config:
        return super().config.model_copy(update={"full_every": self.full_every})

    def told(self) -> dict[str, Any]:
        """What the receipts of the night say of each table, by group and asset."""
        night, found = self.tonight(), dict[str, Any]()
        assets = sorted(path for path in Path(str(self.state)).glob("[a-z]*/[a-z]*") if path.is_dir())
        for group, asset in (path.parts[-2:] for path in assets):
            published = night.state.current(group, asset, night.run_date)
            if published is None:
                continue
            receipt = published.receipt
            found[f"{group}/{asset}"] = {
                "rows": receipt.rows,
                "digest": receipt.digest,
                "sides": {name: sum(part.rows for part in parts) for name, parts in receipt.side.items()},
                "summary": {name: value for name, value in receipt.summary.items() if name not in OF_RUNS | OF_CARRYING},
                "balances": [balance for balance in receipt.balances if balance.name not in BALANCES_OF_RUNS],
            }
        return found


def test_nights_over_growing_lakes_of_all_kinds_are_alike_whether_rows_are_carried_over_here_or_all_computed_in_executors(
    spark: SparkSession, nessie_server: Server, tmp_path: Path
) -> None:
    chance, start, carried = random.Random(11), noon(days=2), 0
    with growing_lakes(tmp_path, nessie_server, start) as (lakes, configs):
        here, there = (
            Way(spark, tmp_path, configs, now=start, state=str(tmp_path / name), full_every=every)
            for name, every in (("here", 10**6), ("there", 0))
        )
        for night in range(times(2, 20)):
            here.now = there.now = start + timedelta(days=night)
            for lake in lakes:
                for _ in range(chance.randint(0, 3)):
                    lake.change(chance, here.now - LAG)
            # Both marks come before both sweeps: lakeFS writes into the storage when it is asked what is not committed.
            with always_carrying():
                here.mark()
            with all_in_executors():
                there.mark()
                theirs = there.sweep()
            mine = here.sweep()
            assert mine.failed_gates == []
            told = here.told()
            assert told == there.told(), f"night {night}"
            assert mine.plan_id == theirs.plan_id
            assert {name.split("/")[0] for name in told} == {STORAGE, *(config.name for config in configs)}
            carried += sum(here.summary("live_files", config.name).get("reused_files") or 0 for config in configs)
    assert carried
    assert mine.totals


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
        before = count_jobs(spark)
        assert before is not None
        assert house.plan().totals
        assert count_jobs(spark) == before + len(joins)
        told = {(table, owner): house.summary(table, owner).get("spark_jobs") for table, owner in tables}
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
    before = count_jobs(spark)
    assert before is not None
    applied = house.carry_out(header)
    assert applied.edited
    assert applied.by_outcome["quarantine", "done"].rows
    assert count_jobs(spark) == before + 4


def test_a_plan_is_applied_and_put_back_alike_from_here_and_from_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.settings = {"quarantine_days": 30}
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    def done(log: PublishedTable) -> list[list[Any]]:
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
    monkeypatch.setattr(few_rows, "MAX_SMALL_ROWS", -1)
    monkeypatch.setattr(engine, "MAX_IN_PROCESS_ROWS", -1)
    monkeypatch.setattr(engine, "MAX_IN_PROCESS_ACTIONS", -1)
    assert all(len(rows) > 2 for rows in here)
    assert there_and_back(lambda: spark) == here
