"""Hosts with a clock that is days ahead do not shorten the grace period or the time in quarantine.

Case G3: the clock of the host was ten days ahead of the bucket's. A file that a writer was uploading was planned and moved.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.s3 import S3Config
from gc_assets.core import clock as core_clock
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StoreError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.apply import ApplyResult
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stores.local.store import LocalStore
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.lakehouse import STORAGE, Lakehouse, counts, days_ago
from tests.stores.s3_bench import open_s3_bench

pytestmark = pytest.mark.spark
SETTINGS: dict[str, Any] = {"quarantine_days": 7, "gates": {"max_delete_share": 1.0}}


class HostClock(datetime):
    """The time of the host. The store's clock is right."""

    days_ahead = 0

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(days=cls.days_ahead)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> type[HostClock]:
    monkeypatch.setattr(core_clock, "datetime", HostClock)
    monkeypatch.setattr(HostClock, "days_ahead", 0)
    return HostClock


class RealClock(Lakehouse):
    @property
    def clock(self) -> Clock:
        return Clock()


class RealClockInBucket(BucketLakehouse):
    @property
    def clock(self) -> Clock:
        return Clock()


def open_house(spark: SparkSession, root: Path) -> tuple[Lakehouse, set[str], set[str]]:
    """Return a storage with old leftovers and files that a writer is uploading, and the keys of both."""
    house, lake = RealClock(spark, root, settings=SETTINGS), LakeBuilder(root)
    table = lake.table("db.t", days_ago(60))
    table.append(days_ago(50))
    house.lakes = [lake.config("sales")]
    old, new = ({house.key(path) for path in table.leftovers(at, 1)} for at in (days_ago(40), datetime.now(UTC)))
    return house, old, new


def fail_to_read(_: object) -> datetime:
    raise StoreError("the server sends no Date header")


def make_plan(house: Lakehouse) -> tuple[PlanHeader, dict[str, str]]:
    header = house.plan()
    return header, house.planned_actions()


def errors(house: Lakehouse) -> dict[str, str]:
    return {row["key"]: row["error"] or "" for row in house.rows("deletion_log")}


def test_grace_period_is_measured_with_storage_clock(spark: SparkSession, tmp_path: Path, host: type[HostClock]) -> None:
    house, old, _ = open_house(spark, tmp_path)
    host.days_ahead = 10
    header, actions = make_plan(house)
    assert actions == dict.fromkeys(old, "quarantine")
    (warning,) = header.warnings
    assert f"10d ahead of the clock of storage {STORAGE}" in warning
    assert all(f"{time:%Y-%m-%d}" in warning for time in (datetime.now(UTC), host.now(UTC)))
    assert "wait 10d longer until they are purged" in warning
    assert "Set the host's clock" in warning
    assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): len(old)}


def test_time_in_quarantine_is_measured_with_storage_clock(spark: SparkSession, tmp_path: Path, host: type[HostClock]) -> None:
    house, old, _ = open_house(spark, tmp_path)
    house.approve_and_apply(house.plan())
    host.days_ahead = 8
    assert make_plan(house)[1] == {}
    assert set(read_quarantine(house.run_context().state, STORAGE).column("key").to_pylist()) == old


def test_plan_has_no_warning_if_clocks_agree(spark: SparkSession, tmp_path: Path) -> None:
    house, old, _ = open_house(spark, tmp_path)
    header, actions = make_plan(house)
    assert (header.warnings, actions) == ((), dict.fromkeys(old, "quarantine"))


def test_apply_checks_grace_period_if_plan_could_not_read_storage_clock(
    spark: SparkSession, tmp_path: Path, host: type[HostClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    house, old, new = open_house(spark, tmp_path)
    host.days_ahead = 10
    with monkeypatch.context() as unreadable:
        unreadable.setattr(LocalStore, "now", fail_to_read)
        header, actions = make_plan(house)
        assert actions == dict.fromkeys(old | new, "quarantine")
        before = house.files()
        house.approve(header)
        with pytest.raises(StoreError, match="no Date header"):
            house.apply(header)
        assert house.files() == before
    applied: ApplyResult = house.apply(header)
    assert counts(applied.by_outcome) == {("quarantine", "done"): len(old), ("quarantine", "denied"): len(new)}
    found = errors(house)
    assert all("it is too young" in found[key] for key in new)


def test_apply_checks_quarantine_time_if_plan_could_not_read_storage_clock(
    spark: SparkSession, tmp_path: Path, host: type[HostClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    house, old, new = open_house(spark, tmp_path)
    house.approve_and_apply(house.plan())
    host.days_ahead = 8
    with monkeypatch.context() as unreadable:
        unreadable.setattr(LocalStore, "now", fail_to_read)
        header, actions = make_plan(house)
        assert actions == dict.fromkeys(old, "purge") | dict.fromkeys(new, "quarantine")
    applied = house.approve_and_apply(header)
    assert counts(applied.by_outcome) == {("purge", "denied"): len(old), ("quarantine", "denied"): len(new)}
    found = errors(house)
    assert all("less than 7 days" in found[key] for key in old)


@in_turn
def test_new_object_is_not_planned_if_host_clock_is_ahead(spark: SparkSession, tmp_path: Path, host: type[HostClock]) -> None:
    with open_s3_bench("ceph", prefix="lakes/") as bench:
        settings = {**SETTINGS, "rehearsals": "refused", "quarantine": "trash"}
        house = RealClockInBucket(spark, tmp_path, bench=bench, s3=bench.connections.default(S3Config), settings=settings)
        house.lakes = [Iceberg(house).config.with_retention("3650d")]
        key = "iceberg/db/orders/data/00000-0-1c2c5c0e-7b1f-4d3c-9f6f-1d2e3f4a5b6c.parquet"
        bench.put(key, b"a writer uploads this file now and commits it in a minute")
        host.days_ahead = 10
        header = house.plan()
        assert key not in house.keys("deletion_plan")
        assert any("10d ahead" in warning for warning in header.warnings)
