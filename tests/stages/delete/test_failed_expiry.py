"""Failed history edits: their files stay, the rest of the plan is done, and the plan can always
end.

The failure is real: another client holds the write lock of the catalog.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.plans import execution_directory, find_plan
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@pytest.fixture
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, TableBuilder, PlanHeader]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("failed_expiry"))
    builder = LakeBuilder(house.root)
    orders = builder.table("db.orders", days_ago(60))
    for age in (50, 30, 2):
        orders.append(days_ago(age))
    orders.overwrite(days_ago(1))
    orders.leftovers(days_ago(10))
    builder.properties["uri"] += "?timeout=0.1"  # seconds that sqlite waits for the lock of another client; 5 by default
    house.lakes = [builder.config("sales")]
    header = house.plan()
    house.approve(header, *house.failed_gates(header))
    assert header.expiry_actions == {"sales": 2}
    assert header.after_expiry.files > 0
    return house, orders, header


@contextmanager
def lock_catalog(house: Lakehouse) -> Iterator[None]:
    """Make the catalog readable and refuse all writes."""
    other = sqlite3.connect(house.root / "catalog.db")
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


def freed_files(house: Lakehouse) -> set[str]:
    return house.keys("deletion_plan", after_expiry=True)


def test_files_of_failed_history_edit_stay_until_edit_succeeds(
    planned: tuple[Lakehouse, TableBuilder, PlanHeader],
) -> None:
    house, orders, header = planned
    waiting, leftovers, listed = freed_files(house), house.leftovers(), [item.snapshot_id for item in orders.table.snapshots()]
    with lock_catalog(house):
        by_outcome = counts(house.apply(header).by_outcome)
    assert by_outcome == {("expire", "failed"): 2, ("quarantine", "done"): len(leftovers), ("quarantine", "failed"): len(waiting)}
    assert waiting <= set(house.files())
    assert not leftovers & set(house.files())
    assert [item.snapshot_id for item in orders.table.snapshots()] == listed
    assert find_plan(house.config, header.plan_id).finished is None

    assert counts(house.apply(header).by_outcome) == {("expire", "done"): 2, ("quarantine", "done"): len(leftovers | waiting)}
    assert not waiting & set(house.files())
    assert orders.table.scan().to_arrow().num_rows > 0


def test_outdated_plan_ends_without_retrying_failed_edits(planned: tuple[Lakehouse, TableBuilder, PlanHeader]) -> None:
    """Unrecorded moves are undone, also that of a file which is in its place and in the trash."""
    house, orders, header = planned
    waiting, listed = freed_files(house), [item.snapshot_id for item in orders.table.snapshots()]
    with lock_catalog(house):
        house.apply(header)
    leftovers = house.leftovers()
    key = min(leftovers)
    for outcome in (house.root / "state" / execution_directory(header)).glob("share-*/*.outcome.jsonl"):
        outcome.unlink()
    (house.warehouse / key).hardlink_to(house.warehouse / ".gc-assets" / "trash" / header.plan_id / key)
    house.now = NOW + timedelta(days=4)
    by_outcome = counts(house.apply(header).by_outcome)
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "partially applied"
    assert by_outcome == {
        ("expire", "changed"): 2,
        ("quarantine", "denied"): len(leftovers | waiting),
    }
    assert waiting | leftovers <= set(house.files())
    assert [item.snapshot_id for item in orders.table.snapshots()] == listed
    assert "unfinished_apply" not in house.failed_gates(house.plan())
    assert key in house.keys("deletion_plan")
