"""Tasks give the same results in this process and on executors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine import sessions, tasks
from gc_assets.engine.arrow_frames import has_arrow_frames
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.progress import count_jobs
from gc_assets.engine.tables import report_parts
from gc_assets.stages.delete.restore import restore
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import STORAGE_INVENTORY
from tests.dates import next_noon
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lake_writers import LAG, open_lake_writers
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago
from tests.stages.remote_execution import all_remote

pytestmark = [pytest.mark.spark, in_turn]

LAKE_ASSETS = ("commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
STORAGE_ASSETS = ("live_filter", "storage_inventory", "orphan_files")
# Summary values that contain run ids or depend on how the work is divided.
RUN_VALUES = {"tasks", "listing_seconds", "spark_jobs", "requests", "segments", "bases"}
# Balances that depend on the division of the listing.
RUN_BALANCES = {"listing tasks"}


@dataclass
class HouseVariant(Lakehouse):
    """A lakehouse whose receipts are compared."""

    def summaries(self) -> dict[str, Any]:
        """Return the comparable parts of the receipts of the current run, by group and asset."""
        context, found = self.run_context(), dict[str, Any]()
        assets = sorted(path for path in Path(str(self.state)).glob("[a-z]*/[a-z]*") if path.is_dir())
        for group, asset in (path.parts[-2:] for path in assets):
            published = context.state.current(group, asset, context.run_date)
            if published is None:
                continue
            receipt = published.receipt
            found[f"{group}/{asset}"] = {
                "rows": receipt.rows,
                "digest": receipt.digest,
                "sides": {name: sum(part.rows for part in parts) for name, parts in receipt.side.items()},
                "summary": {name: value for name, value in receipt.summary.items() if name not in RUN_VALUES},
                "balances": [balance for balance in receipt.balances if balance.name not in RUN_BALANCES],
            }
        return found


def test_in_process_and_remote_runs_have_equal_results(spark: SparkSession, nessie_server: Server, tmp_path: Path) -> None:
    chance, start = random.Random(11), next_noon(days=2)
    with open_lake_writers(tmp_path, nessie_server, start) as (lakes, configs):
        local, remote = (HouseVariant(spark, tmp_path, configs, now=start, state=str(tmp_path / name)) for name in ("local", "remote"))
        for day in range(example_count(2, 20)):
            local.now = remote.now = start + timedelta(days=day)
            for lake in lakes:
                for _ in range(chance.randint(0, 3)):
                    lake.change(chance, local.now - LAG)
            # Both marks precede both sweeps, because lakeFS writes to the storage when it lists
            # uncommitted objects.
            local.mark()
            with all_remote():
                remote.mark()
                remote_plan = remote.sweep()
            local_plan = local.sweep()
            assert local_plan.failed_gates == []
            summaries = local.summaries()
            assert summaries == remote.summaries(), f"day {day}"
            assert local_plan.plan_id == remote_plan.plan_id
            assert {name.split("/")[0] for name in summaries} == {STORAGE, *(config.name for config in configs)}
    assert local_plan.totals


def test_small_run_without_quarantined_files_starts_no_job(spark: SparkSession, tmp_path: Path) -> None:
    if sessions.is_remote(spark) or not has_arrow_frames(spark):
        pytest.skip("Spark Connect does not report the number of jobs, and Spark 3.5 has no small session")
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    for house.now in (NOW, NOW + timedelta(days=1)):
        before = count_jobs(spark)
        assert house.plan().totals
        assert count_jobs(spark) == before


def test_scan_before_first_job_of_local_session_runs_in_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sessions.is_local(spark):
        pytest.skip("the limit applies to local sessions, and others report no number of jobs")
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    iceberg.table("db.orders", days_ago(60)).append(days_ago(50))
    house.lakes = [iceberg.config("sales")]
    house.plan()
    inventory = house.run_context().table(STORAGE_INVENTORY, STORAGE)
    scan = ParquetScan.of(house.run_context().state.files, STORAGE_INVENTORY.schema, inventory.path, inventory.parts())
    monkeypatch.setattr(tasks, "MAX_IN_PROCESS_ROWS", -1)

    def jobs_of_scan() -> int:
        before = count_jobs(spark)
        (row,) = scan.run_task(spark, _count_rows, "rows long", inventory.rows)
        after = count_jobs(spark)
        assert before is not None
        assert after is not None
        assert row["rows"] == inventory.rows
        return after - before

    spark.range(1).count()  # a job
    assert jobs_of_scan() == 1
    monkeypatch.setattr(tasks, "count_jobs", lambda _: 0)
    assert jobs_of_scan() == 0
    monkeypatch.setattr(tasks, "MAX_FIRST_SCAN_ROWS", inventory.rows - 1)
    assert jobs_of_scan() == 1


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def test_tasks_before_the_first_job_of_a_local_session_run_in_this_process(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sessions.is_local(spark):
        pytest.skip("the limit applies to local sessions, and others report no number of jobs")

    def count_jobs_of(size_bytes: int, max_first_bytes: int) -> int:
        before = count_jobs(spark) or 0
        tasks.run_tasks(spark, _report_nothing, 2, size_bytes, max_first_bytes)
        return (count_jobs(spark) or 0) - before

    spark.range(1).count()  # a job
    first = 2 * tasks.MAX_IN_PROCESS_BYTES
    assert count_jobs_of(tasks.MAX_IN_PROCESS_BYTES, first) == 0
    assert count_jobs_of(tasks.MAX_IN_PROCESS_BYTES + 1, first) == 1
    monkeypatch.setattr(tasks, "count_jobs", lambda _: 0)
    assert count_jobs_of(first, first) == 0
    assert count_jobs_of(first + 1, first) == 1


def test_single_task_runs_in_this_process_if_executors_share_the_machine(spark: SparkSession) -> None:
    if not sessions.is_local(spark):
        pytest.skip("the limit applies to local sessions, and others report no number of jobs")

    def count_jobs_of(rows: int, files: int) -> int:
        before = count_jobs(spark) or 0
        (report,) = tasks.run_single_task(spark, _report_nothing, rows, files)
        assert report["digest"] == 7
        return (count_jobs(spark) or 0) - before

    assert count_jobs_of(tasks.MAX_LOCAL_TASK_ROWS, 1_000) == 0
    assert count_jobs_of(tasks.MAX_LOCAL_TASK_ROWS + 1, 1) == 1


def _report_nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield report_parts([], 7)


def test_small_apply_starts_one_spark_job_per_join(spark: SparkSession, tmp_path: Path) -> None:
    """The joins are the histories before and after the edits, the plan with the needs, and the
    directories of the plan before and after the edits.

    The mark before the edits is not compared, because the edits replace it.
    """
    if sessions.is_remote(spark) or not has_arrow_frames(spark):
        pytest.skip("Spark Connect does not report the number of jobs, and Spark 3.5 has no small session")
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    header = house.plan()
    before = count_jobs(spark)
    assert before is not None
    applied = house.approve_and_apply(header)
    assert applied.edited
    assert applied.by_outcome["quarantine", "done"].rows
    assert count_jobs(spark) == before + 5


def test_in_process_and_remote_apply_and_restore_have_equal_results(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, iceberg = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    house.settings = {"quarantine_days": 30}
    orders = iceberg.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.leftovers(days_ago(10))
    house.lakes = [iceberg.config("sales")]

    def outcomes(log: PublishedTable) -> list[list[Any]]:
        columns = ("key", "phase", "outcome", "size_bytes", "quarantine", "kind", "rehearsal")
        return sorted([row[name] for name in columns] for row in house.rows_of(log))

    def apply_and_restore(session: Callable[[], SparkSession]) -> list[list[list[Any]]]:
        header = house.plan()
        applied = house.approve_and_apply(header).published
        assert applied is not None
        restored, _ = restore(session, house.run_context(), STORAGE, plan_id=header.plan_id)
        return [outcomes(applied), outcomes(restored)]

    def no_spark() -> SparkSession:
        raise AssertionError("a small restore does not need Spark")

    local = apply_and_restore(no_spark)
    house.now += timedelta(days=1)
    monkeypatch.setattr(sessions, "MAX_SMALL_ROWS", -1)
    for limit in ("MAX_IN_PROCESS_ROWS", "MAX_LOCAL_ROWS", "MAX_LOCAL_TASK_ROWS", "MAX_IN_PROCESS_ACTIONS"):
        monkeypatch.setattr(tasks, limit, -1)
    assert all(len(rows) > 2 for rows in local)
    assert apply_and_restore(lambda: spark) == local
