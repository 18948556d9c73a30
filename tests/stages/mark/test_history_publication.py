"""A run writes the history to the table of `history.publish`, and continues if this fails."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg.published_history import PROPERTY
from gc_assets.stages.mark.snapshot_history import snapshot_history
from gc_assets.state.summaries import HistoryPublicationSummary, SnapshotHistorySummary
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

NAME = "gc.snapshot_history"


@dataclass
class Story:
    """A table whose expiry was planned, applied and followed by another run.

    Attributes:
        listed: Snapshots before the expiry.
        kept: Snapshots after it.
        plan_id: The plan.
        planned: The published rows before the apply.
        applied: Those after it.
        has_property_before: True if the table had the property before the apply.
        property: Its value after the apply. A user removed the property then.
    """

    house: Lakehouse
    builder: LakeBuilder
    orders: TableBuilder
    listed: set[str]
    kept: set[str]
    plan_id: str
    planned: dict[str, tuple[bool, str | None]]
    applied: dict[str, tuple[bool, str | None]]
    has_property_before: bool
    property: str
    next_gates: list[str]


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("publication"))
    builder, orders = build_lake(house, {"table": NAME})
    listed = snapshot_ids(orders.table)
    header = house.plan()
    planned, has_property = read_published(builder), PROPERTY in orders.table.properties
    house.approve_and_apply(header)
    applied, kept, value = read_published(builder), snapshot_ids(orders.table), orders.table.properties[PROPERTY]
    with orders.table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)
    house.now += timedelta(days=1)
    orders.overwrite(days_ago(10))
    next_gates = [gate.name for gate in house.plan().failed_gates]
    return Story(house, builder, orders, listed, kept, header.plan_id, planned, applied, has_property, value, next_gates)


def build_lake(house: Lakehouse, publish: dict[str, Any]) -> tuple[LakeBuilder, TableBuilder]:
    """Build a table with old snapshots and newer ones."""
    builder = LakeBuilder(house.root)
    orders = builder.table("shop.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    house.lakes = [builder.config("sales", history={"publish": publish})]
    return builder, orders


def snapshot_ids(table: Table) -> set[str]:
    return {str(snapshot.snapshot_id) for snapshot in table.metadata.snapshots}


def publication(house: Lakehouse) -> HistoryPublicationSummary:
    found = house.find_table("snapshot_history", "sales").summary(SnapshotHistorySummary).published
    assert found is not None
    return found


def read_published(builder: LakeBuilder) -> dict[str, tuple[bool, str | None]]:
    rows = builder.catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return {str(row["snapshot_id"]): (row["expired"], row["plan_id"]) for row in rows}


def test_all_snapshots_in_table_metadata_are_published(story: Story) -> None:
    assert story.planned == dict.fromkeys(story.listed, (False, None))


def test_applied_expiry_is_published_with_plan_id(story: Story) -> None:
    assert 0 < len(story.kept) < len(story.listed)
    assert story.applied == {item: (False, None) if item in story.kept else (True, story.plan_id) for item in story.listed}


def test_table_property_references_published_history(story: Story) -> None:
    assert not story.has_property_before
    assert story.property == f"{story.builder.catalog_name}.{NAME}"


def test_history_property_that_user_removed_is_not_set_again(story: Story) -> None:
    assert publication(story.house).named == (story.orders.uuid,)
    assert PROPERTY not in story.orders.table.properties


def test_published_table_is_collected_like_any_other(story: Story) -> None:
    assert story.next_gates == []
    names = {row["table_name"] for row in story.house.rows("reachable_snapshots", "sales")}
    assert names == {"shop.orders", NAME}


def test_snapshots_of_published_table_itself_are_not_published(story: Story) -> None:
    own = snapshot_ids(story.builder.catalog.load_table(NAME))
    assert own
    assert own.isdisjoint(read_published(story.builder))


def mark_and_publish(house: Lakehouse) -> HistoryPublicationSummary:
    house.mark()
    snapshot_history(house.spark, house.run_context(), "sales")
    return publication(house)


def test_published_records_are_kept_if_state_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path)
    builder, _ = build_lake(house, {"table": NAME})
    house.approve_and_apply(house.plan())
    before = {key: value for key, value in read_published(builder).items() if value[0]}
    shutil.rmtree(tmp_path / "state")
    assert mark_and_publish(house).removed == 0
    assert before.items() <= read_published(builder).items()
    assert before


def test_repeated_run_for_earlier_date_is_not_published(spark: SparkSession, tmp_path: Path) -> None:
    """The refs recorded for the date list snapshots that were removed since."""
    house = Lakehouse(spark, tmp_path)
    builder, orders = build_lake(house, {"table": NAME})
    mark_and_publish(house)
    first, before = house.now, snapshot_ids(orders.table)
    house.now += timedelta(days=1)
    with orders.table.maintenance.expire_snapshots() as expiry:
        expiry.by_id(orders.table.metadata.snapshots[0].snapshot_id)
    mark_and_publish(house)
    expected = read_published(builder)
    assert {item for item, (expired, _) in expected.items() if expired} == before - snapshot_ids(orders.table)
    house.now = first
    snapshot_history(house.spark, house.run_context(), "sales")
    assert read_published(builder) == expected


def test_history_can_be_published_to_another_catalog(spark: SparkSession, tmp_path: Path) -> None:
    house, other = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path / "other")
    _, orders = build_lake(house, {"table": NAME, "catalog": other.properties, "catalog_name": other.catalog_name})
    assert mark_and_publish(house).table == NAME
    assert read_published(other).keys() == snapshot_ids(orders.table)


def test_publication_failure_does_not_stop_run(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = Lakehouse(spark, tmp_path)
    build_lake(house, {"table": NAME, "catalog": {"type": "sql", "uri": f"sqlite:///{house.root}/missing.db"}})
    [note] = mark_and_publish(house).notes
    assert note.startswith("the history is not published: lake sales: its catalog ")
    assert "the history is not published" in caplog.text


def test_rehearsal_publishes_only_if_rehearsals_are_allowed(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"rehearsals": "refused"})
    builder, _ = build_lake(house, {"table": NAME})
    assert mark_and_publish(house).notes == ("the history is not published, because this run is a rehearsal",)
    assert not builder.catalog.table_exists(NAME)
