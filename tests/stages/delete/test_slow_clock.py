"""Executors with a clock that is days behind do not shorten the time in quarantine."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core import clock as core_clock
from gc_assets.core.clock import Clock
from gc_assets.stages.delete import execution
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago


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
