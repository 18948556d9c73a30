"""Hosts with a clock that is days behind do not shorten the time in quarantine.

Case A2/F4: the clock of the host that applied a plan was 30 days behind. The next run planned to
purge the files on the same day.
"""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core import clock as core_clock
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused
from gc_assets.stages.delete import execution
from gc_assets.stages.records.ledger import read_quarantine
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago


class Behind(datetime):
    """The time of a machine whose clock is ten days behind."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) - timedelta(days=10)


def test_pickled_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    left = datetime.now(UTC)
    pickled: Clock = pickle.loads(pickle.dumps(Clock().not_before_now()))  # noqa: S301  (our own)
    assert pickled.now() >= left
    monkeypatch.setattr(core_clock, "datetime", Behind)
    assert Clock().now() < left - timedelta(days=9)
    assert pickled.now() >= left


@pytest.mark.spark
def test_executors_use_a_clock_that_cannot_go_back(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    table.leftovers(days_ago(20), 1)
    clocks, act = list[Clock](), execution.RowExecutor

    def record_clock(store: Any, log: Any, lease: Any, clock: Clock, *others: Any) -> Any:
        clocks.append(clock)
        return act(store, log, lease, clock, *others)

    monkeypatch.setattr(execution, "RowExecutor", record_clock)
    house.approve_and_apply(house.plan())
    assert [clock.not_before for clock in clocks] == [house.clock.now()]


class RealClock(Lakehouse):
    @property
    def clock(self) -> Clock:
        return Clock()


@pytest.mark.spark
def test_quarantine_starts_now_if_host_clock_is_behind_newest_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, lake = RealClock(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}}), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(60))
    table.append(days_ago(50))
    house.lakes = [lake.config("sales")]
    table.leftovers(days_ago(40), 1)
    right = house.plan()
    house.approve(right)
    monkeypatch.setattr(core_clock, "datetime", Behind)
    for attempt in (house.approve, house.apply):
        with pytest.raises(GateRefused, match="Check the clock of this host"):
            attempt(right)
    house.approve_and_apply(house.plan())
    quarantined = read_quarantine(house.run_context().state, STORAGE).column("quarantined_at").to_pylist()
    assert quarantined
    assert min(quarantined) >= right.created_at
