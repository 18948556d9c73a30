"""A night makes as many requests to the state after a thousand nights as the second one."""

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
from gc_assets.engine import tasks as engine
from gc_assets.engine.tables import publish, read_rows, write_rows
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.records import ledger
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.files import Files
from gc_assets.state.index import Index, IndexEntry, PastRun
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, EXPIRY_LOG, LAKE_REFS, MANIFEST_ENTRIES, Table
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

NIGHTS = 1_000
# Every so many of them something was new to decode, and every so many a plan was applied. The other
# tables of those nights have no rows.
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
    """What a night asks of the state, each request once.

    All that may run in this process does. A file that Spark is told to read is one request (`spark_uri`), and so is a log that executors
    read.
    """
    for limit in ("MAX_IN_PROCESS_ROWS", "MAX_IN_PROCESS_FILES", "MAX_IN_PROCESS_BYTES", "MAX_TRIAL_ROWS", "MAX_TRIAL_BYTES"):
        monkeypatch.setattr(engine, limit, 10**9)
    frame = ledger.Reading.frame

    def told(reading: ledger.Reading, spark: SparkSession) -> DataFrame:
        asked["log"] += reading.pieces
        return frame(reading, spark)

    monkeypatch.setattr(ledger.Reading, "frame", told)
    asked, within = Counter[str](), list[str]()
    for name in REQUESTS:
        inner = getattr(Files, name)

        def counted(files: Files, path: str, *more: Any, name: str = name, inner: Any = inner, **options: Any) -> Any:
            if not within:
                asked[name] += 1
            within.append(name)
            try:
                return inner(files, path, *more, **options)
            finally:
                within.pop()

        monkeypatch.setattr(Files, name, counted)
    return asked


def night(house: Lakehouse) -> PlanHeader:
    """All stages of a night up to its plan."""
    for lake in house.config.lakes:
        policy_table(house.tonight(), lake.name)
        current_rules(house.tonight(), lake.name)
    return house.plan()


def earlier_nights(state: State, like: date, before: date) -> None:
    """Enters nights before a date into the indexes: the runs of the night `like`. They have no receipts, so whoever opens one fails."""
    for path in sorted(Path(state.files.root).glob("*/*/_index.json")):
        group, asset = path.parts[-3:-1]
        index = Index(state.files, f"{group}/{asset}/{path.name}")
        entries = index.read()
        assert entries is not None
        runs = [entry for entry in entries.values() if entry.run_date == like]
        added = (again for run in runs for again in _copies(state, group, asset, run, before))
        index.replace({**entries, **{entry.run_id: entry for entry in added}})


def _copies(state: State, group: str, asset: str, run: IndexEntry, before: date) -> Iterator[IndexEntry]:
    for number in range(1, NIGHTS + 1):
        has_rows = number % EVERY.get(asset, NIGHTS + 1) == 0
        if asset in {DELETION_LOG.name, EXPIRY_LOG.name} and not has_rows:
            continue
        day = before - timedelta(days=number)
        changed: dict[str, Any] = {"run_date": day, "run_id": f"{day:%Y%m%d}{run.run_id[8:]}"}
        if asset == LAKE_REFS.name:
            changed["summary"] = {**run.summary, "frozen_at": f"{day}T03:00:00+00:00"}
        if asset == DELETION_PLAN.name:
            plan_id = hashlib.sha256(str(day).encode()).hexdigest()
            changed["summary"] = {"plan": {**run.summary["plan"], "plan_id": plan_id, "run_date": str(day)}}
        again = run.model_copy(update=changed if has_rows else {**changed, "rows": 0, "parts": ()})
        for part in again.parts:
            there, here = (Path(state.files.root) / PastRun(group, asset, entry).path / part.name for entry in (run, again))
            here.parent.mkdir(parents=True, exist_ok=True)
            os.link(there, here)
        yield again


def log_again(house: Lakehouse, owner: str, log: Table) -> None:
    """Publishes the rows of the newest log that has some as those of another execution."""
    state = house.tonight().state
    last = state.open([run for run in state.history(owner, log.name) if run.rows][-1])
    run = state.start(owner, log.name, house.clock.today(), house.clock)
    publish(state, run, write_rows(read_rows(state, log, last), log, run, state.files), house.clock, summary=last.receipt.summary)


def test_a_night_after_a_thousand_asks_the_state_for_as_many_files_as_the_second(
    spark: SparkSession, tmp_path: Path, requests: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(house: Lakehouse) -> int:
        requests.clear()
        night(house)
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
    house.carry_out(night(house))
    first = house.clock.today()
    house.now += timedelta(days=1)
    second = counted(house)
    earlier_nights(house.tonight().state, first, first - timedelta(days=400))
    house.now += timedelta(days=1)
    orders.append(house.now - timedelta(hours=1))
    night(house)  # decodes what is new
    for owner, log in ((house.storage, DELETION_LOG), (lake_name, EXPIRY_LOG)):
        log_again(house, owner, log)
    house.now += timedelta(days=1)
    late = counted(house)
    requests.clear()
    listed = len(list(list_plans(house.config)))
    with capsys.disabled():
        sys.stdout.write(f"\nrequests to the state: {second} in the second night, {late} after {NIGHTS:,}\n")
    assert late <= second
    assert listed > NIGHTS
    assert sum(requests.values()) <= 5
