"""A table that its catalog does not list, but still has under its name, is unreadable and not dropped.

Before, files that only this table needed were planned and purged in the claims of other tables.

Source: sample lakes with a table that was built by `add_files` from files of another one, and a list that hides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.protocol import UnreadableTable
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


@dataclass
class Story:
    """Plans of a lake: of the first run, two while the table is hidden, and one after it was dropped.

    Attributes:
        name: Name of the hidden table.
        adopted: Data files of another table that only the hidden one needs.
        overwritten: Data files that no table needs.
        live: Live files of each run.
        planned: The actions of each plan by key.
        unreadable: The reasons of unreadable tables in each run by name.
    """

    name: str
    adopted: set[str]
    overwritten: set[str]
    live: list[set[str]] = field(default_factory=list)
    planned: list[dict[str, str]] = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture(scope="module", params=[("db", "hidden"), ("db", "x.other")], ids=["own name", "name of a listed table"])
def story(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    identifier: tuple[str, str] = request.param
    name = ".".join(identifier)
    house = Lakehouse(spark, tmp_path_factory.mktemp("hidden"), settings={"quarantine_days": 7})
    lake = LakeBuilder(house.root)
    hidden, owner, other = (lake.table(name, days_ago(40)) for name in ("db.old", "db.owner", "db.other"))
    lake.table("db.x.other", days_ago(40)).append(days_ago(30))
    owner.append(days_ago(30))
    other.append(days_ago(30))
    adopted = set(map(house.key, owner.data_files()))
    with lake.at(days_ago(29)):
        hidden.table.add_files([task.file.file_path for task in owner.table.scan().plan_files()])
    lake.catalog.rename_table("db.old", identifier)
    address = lake.catalog.load_table(identifier).metadata_location
    story = Story(name, adopted, set(map(house.key, other.data_files())))
    for table in (owner, other):
        table.overwrite(days_ago(20))
        table.append(days_ago(12))
    house.lakes = [lake.config("sales")]

    def plan(day: int) -> None:
        house.now = NOW + timedelta(days=day)
        house.plan()
        story.live.append(house.live())
        story.planned.append(house.planned_actions())
        unreadable = house.summary("live_files", "sales")["unreadable"]
        story.unreadable.append({item["table_name"]: item["why"] for item in unreadable})

    plan(0)
    listed = CatalogClient.list_pointers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            CatalogClient,
            "list_pointers",
            lambda client: (item for item in listed(client) if getattr(item, "metadata_location", "") != address),
        )
        patch.setattr(CatalogClient, "find_identifiers", lambda *_: [("db", "x", "other")])
        plan(1)
        plan(9)
    lake.catalog.drop_table(identifier)
    plan(10)
    return story


def test_files_referenced_by_a_hidden_table_stay_live(story: Story) -> None:
    assert story.adopted
    assert all(story.adopted <= live for live in story.live[:3])
    assert all(not story.adopted & plan.keys() for plan in story.planned[:3])


def test_hidden_table_is_reported_as_unreadable_with_reason(story: Story) -> None:
    reason = f"its catalog still has {story.name}, but does not list it. {{}}"
    reason = reason.format("Grant the user of gc-assets the right to list it, or set it aside, or run again")
    assert story.unreadable == [{}, {story.name: reason}, {story.name: reason}, {}]


def test_table_confirmed_missing_by_catalog_counts_as_dropped(story: Story) -> None:
    assert not story.adopted & story.live[3]


def test_files_not_referenced_by_any_table_are_planned(story: Story) -> None:
    assert story.overwritten
    assert all(story.overwritten <= plan.keys() for plan in story.planned)


@pytest.mark.parametrize("has_address", [False, True])
def test_unreadable_table_with_name_of_dropped_table_protects_files(spark: SparkSession, tmp_path: Path, has_address: bool) -> None:
    """A REST catalog that cannot load a table reports no address. Writers spell addresses in several ways."""
    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    shared = {"write.data.path": f"file://{house.warehouse}/shared"}
    moved, good = (lake.table(f"db.{name}", days_ago(40), properties=shared) for name in ("moved", "good"))
    lake.table("db.taken", days_ago(40)).append(days_ago(30))
    for table in (moved, good):
        table.append(days_ago(30))
    needed = set(map(house.key, moved.data_files()))
    address = moved.metadata_location.replace("file://", "file:") if has_address else None
    house.lakes = [lake.config("sales")]
    house.mark()
    lake.catalog.drop_table("db.taken")
    lake.catalog.rename_table("db.moved", "db.taken")
    listed = CatalogClient.list_pointers

    def fail(client: CatalogClient) -> Iterator[Any]:
        for item in listed(client):
            yield UnreadableTable("db.taken", "RESTError 500", address) if getattr(item, "name", "") == "db.taken" else item

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CatalogClient, "list_pointers", fail)
        house.now = NOW + timedelta(days=5)
        house.mark()
    assert needed
    assert needed <= house.live()
    unreadable = house.summary("live_files", "sales")["unreadable"]
    assert {item["table_name"]: item["may_be"] for item in unreadable} == {"db.moved": "db.taken", "db.taken": None}


def test_hidden_table_files_stay_live_if_a_copy_with_equal_uuid_is_listed(spark: SparkSession, tmp_path: Path) -> None:
    """`register_table` gives a table a second name. Files written after that were planned as garbage of the copy."""
    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    table, other = (lake.table(f"db.{name}", days_ago(40)) for name in ("orders", "other"))
    table.append(days_ago(30))
    copy = lake.register("db.copy", table.metadata_location)
    for days in (29, 28):
        table.append(days_ago(days))
        other.overwrite(days_ago(days))
    copy.append(days_ago(27))
    needed = {house.key(table.metadata_location), *map(house.key, table.data_files())}
    house.lakes = [lake.config("sales")]
    house.plan()
    listed = CatalogClient.list_pointers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            CatalogClient, "list_pointers", lambda client: (item for item in listed(client) if getattr(item, "name", "") != "db.orders")
        )
        for day in (1, 9):
            house.now = NOW + timedelta(days=day)
            house.plan()
            assert not needed & house.planned_actions().keys()
            assert needed <= house.live()
            assert [item["table_name"] for item in house.summary("live_files", "sales")["unreadable"]] == ["db.orders"]
