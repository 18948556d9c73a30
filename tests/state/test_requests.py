"""A run sends as many requests to the state after a thousand runs as the second run."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.engine import tasks
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.records import ledger
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.files import Files
from gc_assets.state.index import Index, IndexEntry, PastRun
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, EXPIRY_LOG, LAKE_REFS, MANIFEST_ENTRIES, Table
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

RUNS = example_count(300, 1_000)
# Every fifth run decoded new containers, and every twentieth applied a plan. The other runs of
# these tables have no rows.
EVERY = {MANIFEST_ENTRIES.name: 5, DELETION_LOG.name: 20, EXPIRY_LOG.name: 20}
REQUESTS = (
    "read",
    "read_version",
    "replace",
    "replace_if",
    "size",
    "modified_at",
    "list",
    "directories",
    "delete",
    "delete_directory",
    "spark_uri",
)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of a run to the state.

    Everything runs in this process. A file that Spark reads counts as one request (`spark_uri`),
    and so does a log that executors read.
    """
    for limit in ("MAX_IN_PROCESS_ROWS", "MAX_IN_PROCESS_FILES", "MAX_IN_PROCESS_BYTES", "MAX_TRIAL_ROWS", "MAX_TRIAL_BYTES"):
        monkeypatch.setattr(tasks, limit, 10**9)
    frame = ledger.LogReader.frame

    def record_log(reader: ledger.LogReader, spark: SparkSession) -> DataFrame:
        requested["log"] += reader.part_count
        return frame(reader, spark)

    monkeypatch.setattr(ledger.LogReader, "frame", record_log)
    requested, active = Counter[str](), list[str]()
    for name in REQUESTS:
        inner = getattr(Files, name)

        def count(files: Files, path: str, *more: Any, name: str = name, inner: Any = inner, **options: Any) -> Any:
            if not active:
                requested[name] += 1
            active.append(name)
            try:
                return inner(files, path, *more, **options)
            finally:
                active.pop()

        monkeypatch.setattr(Files, name, count)
    return requested


def run_until_plan(house: Lakehouse) -> PlanHeader:
    """Run all stages up to the plan."""
    for lake in house.config.lakes:
        policy_table(house.run_context(), lake.name)
        current_rules(house.run_context(), lake.name)
    return house.plan()


def add_earlier_runs(state: State, like: date, before: date) -> None:
    """Add copies of the runs of `like` with earlier dates to the indexes.

    They have no receipts, so opening one fails.
    """
    for path in sorted(Path(state.files.root).glob("*/*/_index.json")):
        group, asset = path.parts[-3:-1]
        index = Index(state.files, f"{group}/{asset}/{path.name}")
        entries = index.read()
        assert entries is not None
        runs = [entry for entry in entries.values() if entry.run_date == like]
        added = (copied for run in runs for copied in _copies(state, group, asset, run, before))
        index.replace({**entries, **{entry.run_id: entry for entry in added}})


def _copies(state: State, group: str, asset: str, run: IndexEntry, before: date) -> Iterator[IndexEntry]:
    for number in range(1, RUNS + 1):
        has_rows = number % EVERY.get(asset, RUNS + 1) == 0
        if asset in {DELETION_LOG.name, EXPIRY_LOG.name} and not has_rows:
            continue
        day = before - timedelta(days=number)
        changed: dict[str, Any] = {"run_date": day, "run_id": f"{day:%Y%m%d}{run.run_id[8:]}"}
        if asset == LAKE_REFS.name:
            changed["summary"] = {**run.summary, "frozen_at": f"{day}T03:00:00+00:00"}
        if asset == DELETION_PLAN.name:
            plan_id = hashlib.sha256(str(day).encode()).hexdigest()
            changed["summary"] = {"plan": {**run.summary["plan"], "plan_id": plan_id, "run_date": str(day)}}
        copied = run.model_copy(update=changed if has_rows else {**changed, "rows": 0, "parts": ()})
        for part in copied.parts:
            source, copy = (Path(state.files.root) / PastRun(group, asset, entry).path / part.name for entry in (run, copied))
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, copy)
        yield copied


def copy_log(house: Lakehouse, owner: str, log: Table) -> None:
    """Publish the rows of the newest log with rows as another execution."""
    state = house.run_context().state
    last = state.open([run for run in state.history(owner, log.name) if run.rows][-1])
    run = state.start(owner, log.name, house.clock.today(), house.clock)
    publish(state, run, write_rows(read_rows(state, log, last), log, run, state.files), house.clock, summary=last.receipt.summary)


def test_state_request_count_does_not_grow_with_runs(
    spark: SparkSession, tmp_path: Path, requests: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def count(house: Lakehouse) -> int:
        requests.clear()
        run_until_plan(house)
        return sum(requests.values())

    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    orders = lake.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.append(days_ago(2))
    orders.leftovers(days_ago(10))
    lake_name = "sales"
    house.lakes = [lake.config(lake_name)]
    house.approve_and_apply(run_until_plan(house))
    first = house.clock.today()
    house.now += timedelta(days=1)
    second = count(house)
    add_earlier_runs(house.run_context().state, first, first - timedelta(days=400))
    house.now += timedelta(days=1)
    orders.append(house.now - timedelta(hours=1))
    run_until_plan(house)  # decodes what is new
    for owner, log in ((house.storage, DELETION_LOG), (lake_name, EXPIRY_LOG)):
        copy_log(house, owner, log)
    house.now += timedelta(days=1)
    late = count(house)
    requests.clear()
    listed = len(list(list_plans(house.config)))
    with capsys.disabled():
        sys.stdout.write(f"\nrequests to the state: {second} in the second run, {late} after {RUNS:,}\n")
    assert late <= second
    assert listed > RUNS
    assert sum(requests.values()) <= 5
