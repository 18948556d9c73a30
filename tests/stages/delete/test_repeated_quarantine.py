"""An object in deferred or versioned quarantine has one record, and a purge needs its full waiting time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.close import close_plan
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import execution_directory, find_plan
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.lakehouse import Lakehouse, counts, days_ago
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, in_turn]
LEFTOVER = "00000-0-1c2c5c0e-7b1f-4d3c-9f6f-1d2e3f4a5b6c.parquet"


def disk_house(spark: SparkSession, root: Path) -> tuple[Lakehouse, str]:
    """Return a house with deferred quarantine, and the key of a leftover."""
    house, lake = Lakehouse(spark, root), LakeBuilder(root)
    house.settings = {"quarantine": "deferred", "quarantine_days": 2}
    table = lake.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [lake.config("sales")]
    leftover = next(path for path in table.leftovers(days_ago(20)) if path.suffix == ".parquet")
    return house, house.key(leftover)


@contextmanager
def open_bucket_lakehouse(spark: SparkSession, root: Path) -> Iterator[tuple[BucketLakehouse, str]]:
    """Open a house in a versioned bucket, and the key of a leftover."""
    with open_s3_bench("ceph", versioned=True, prefix="lakes/") as bench:
        settings = {"quarantine": "versioned", "quarantine_days": 2, "gates": {"max_delete_share": 1}}
        house = BucketLakehouse(spark, root, settings=settings, now=next_noon(days=4), bench=bench)
        house.lakes = [Iceberg(house).config.with_retention("3650d")]
        key = f"iceberg/db/orders/data/{LEFTOVER}"
        bench.put(key, b"garbage")
        yield house, key


def plan_at(house: Lakehouse, days: float) -> PlanHeader:
    house.now += timedelta(days=days)
    return house.plan()


def apply_two_plans(house: Lakehouse) -> PlanHeader:
    """Apply two plans for the same object. The second one is made before the first one is applied."""
    first = house.plan()
    house.approve(first)
    second = plan_at(house, 1)
    assert set(counts(house.apply(first).by_outcome)) == {("quarantine", "done")}
    assert set(counts(house.approve_and_apply(second).by_outcome)) == {("quarantine", "changed")}
    return first


def planned_actions(house: Lakehouse, key: str) -> list[str]:
    return [row["action"] for row in house.rows("deletion_plan") if row["key"] == key]


def remove_marker(house: BucketLakehouse, key: str) -> None:
    """Make the object visible again like a user, without gc-assets."""
    bench = house.bench
    found = bench.client.list_object_versions(Bucket=bench.bucket, Prefix=bench.prefix + key)
    for marker in found["DeleteMarkers"]:
        bench.client.delete_object(Bucket=bench.bucket, Key=marker["Key"], VersionId=marker["VersionId"])
    assert bench.get(key) == b"garbage"


def test_object_quarantined_by_another_plan_is_not_quarantined_again(spark: SparkSession, tmp_path: Path) -> None:
    house, key = disk_house(spark, tmp_path)
    first = apply_two_plans(house)
    (error,) = {row["error"] for row in house.rows("deletion_log") if row["key"] == key and row["outcome"] == "changed"}
    assert error == f"in quarantine already by plan {first.plan_id[:12]}"
    restore(lambda: spark, house.run_context(), house.storage, key=key)
    plan_at(house, 2.5)
    assert planned_actions(house, key) == ["quarantine"]


def test_version_hidden_by_another_plan_is_not_quarantined_again(spark: SparkSession, tmp_path: Path) -> None:
    with open_bucket_lakehouse(spark, tmp_path) as (house, key):
        first = apply_two_plans(house)
        house.restore(first.plan_id)
        assert house.bench.get(key) == b"garbage"
        plan_at(house, 2.5)
        assert planned_actions(house, key) == ["quarantine"]


def test_quarantine_time_restarts_if_version_became_visible_again(spark: SparkSession, tmp_path: Path) -> None:
    with open_bucket_lakehouse(spark, tmp_path) as (house, key):
        house.approve_and_apply(house.plan())
        remove_marker(house, key)
        actions = list[list[str]]()
        for days in (2.5, 1, 2.5):
            header = plan_at(house, days)
            actions.append(planned_actions(house, key))
            house.approve_and_apply(header)
        assert actions == [["restore"], ["quarantine"], ["purge"]]
        assert house.bench.get(key) is None


def test_hidden_version_is_purged_after_days_in_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    with open_bucket_lakehouse(spark, tmp_path) as (house, key):
        house.approve_and_apply(house.plan())
        header = plan_at(house, 2.5)
        assert planned_actions(house, key) == ["purge"]
        assert counts(house.approve_and_apply(header).by_outcome) == {("purge", "done"): len(house.keys("deletion_plan"))}


def interrupt_batches(house: Lakehouse, header: PlanHeader) -> None:
    """Remove what an apply writes after its first change, as if it was killed before the outcomes were recorded."""
    state = Path(house.config.state)
    execution = state / execution_directory(header)
    for path in (*execution.glob("share-*/*.outcome.jsonl"), execution / "finished.json", state / header.storage / "apply/_records.json"):
        path.unlink()
    shutil.rmtree(state / header.storage / "deletion_log")


@pytest.mark.parametrize("finish", ["resume", "end"])
def test_interrupted_plan_keeps_version_quarantined_by_another_plan_hidden(spark: SparkSession, tmp_path: Path, finish: str) -> None:
    with open_bucket_lakehouse(spark, tmp_path) as (house, key):
        first = house.plan()
        house.approve(first)
        second = plan_at(house, 0.5)
        house.apply(first)
        interrupt_batches(house, first)
        assert set(counts(house.approve_and_apply(second).by_outcome)) == {("quarantine", "done")}
        is_resumed, stored = finish == "resume", find_plan(house.config, first.plan_id)
        ended = house.apply(first) if is_resumed else close_plan(spark, house.run_context(), stored)
        assert set(counts(ended.by_outcome)) == {("quarantine", "changed" if is_resumed else "denied")}
        assert house.bench.get(key) is None
        copies = read_quarantine(house.run_context().state, house.storage)
        assert set(copies.column("source_plan_id").to_pylist()) == {second.plan_id}
        house.restore(second.plan_id)
        assert house.bench.get(key) == b"garbage"


def test_restore_keeps_delete_marker_that_user_placed_later(spark: SparkSession, tmp_path: Path) -> None:
    """The user made the version visible again. After the next plan was made, the user deleted the object."""
    with open_bucket_lakehouse(spark, tmp_path) as (house, key):
        first = house.plan()
        house.approve_and_apply(first)
        remove_marker(house, key)
        header = plan_at(house, 1)
        assert planned_actions(house, key) == ["restore"]
        house.bench.client.delete_object(Bucket=house.bench.bucket, Key=house.bench.prefix + key)
        assert counts(house.approve_and_apply(header).by_outcome) == {("restore", "changed"): 1}
        (error,) = {row["error"] for row in house.rows("deletion_log") if row["key"] == key}
        assert "another delete marker" in error
        assert house.bench.get(key) is None
        house.restore(first.plan_id)
        assert house.bench.get(key) == b"garbage", "the user asked for it"
