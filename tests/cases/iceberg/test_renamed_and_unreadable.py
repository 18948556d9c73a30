"""A table that was renamed and cannot be read keeps the files that it needed under its former name.

Before, an unreadable table was identified by its name alone. Its files in a directory that another table claims were planned.

Source: sample lakes with tables that share `write.data.path`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class Story:
    """Marks of a lake whose tables were renamed, swapped and dropped.

    Attributes:
        data: The data files of each table, by its first name.
        uuids: The uuids of the tables, by their first names.
        live: Live files of each mark.
        unreadable: Uuids of the unreadable tables of each mark, None if it is unknown.
    """

    house: Lakehouse
    data: dict[str, set[str]]
    uuids: dict[str, str]
    live: list[set[str]] = field(default_factory=list)
    unreadable: list[set[str | None]] = field(default_factory=list)

    def mark(self) -> None:
        self.house.mark()
        self.live.append(self.house.live())
        self.unreadable.append({item["table_uuid"] for item in self.house.summary("live_files", "sales")["unreadable"]})
        self.house.now += timedelta(days=1)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("renamed"))
    lake = LakeBuilder(house.root)
    shared = {"write.data.path": f"file://{house.warehouse}/shared"}
    tables = {name: lake.table(f"db.{name}", days_ago(40), properties=shared) for name in ("moved", "x", "y", "dropped", "good")}
    for table in tables.values():
        table.append(days_ago(30))
    data = {name: set(map(house.key, table.data_files())) for name, table in tables.items()}
    metadata = {name: table.path(table.metadata_location) for name, table in tables.items()}
    house.lakes = [lake.config("sales")]
    story = Story(house, data, {name: table.uuid for name, table in tables.items()})
    story.mark()
    for old, new in (("moved", "new"), ("x", "tmp"), ("y", "x"), ("tmp", "y")):
        lake.catalog.rename_table(f"db.{old}", f"db.{new}")
    lake.catalog.drop_table("db.dropped")
    content = {name: metadata[name].read_bytes() for name in ("moved", "y")}
    for name in content:
        metadata[name].write_bytes(content[name][:100])
    story.mark()
    story.mark()
    for name in content:
        metadata[name].write_bytes(content[name])
    story.mark()
    return story


@pytest.mark.parametrize("name", ["moved", "x", "y", "good"])
def test_files_of_renamed_unreadable_table_stay_live(story: Story, name: str) -> None:
    assert story.data[name]
    assert [story.data[name] - live for live in story.live] == [set()] * 4


def test_renamed_tables_stay_unreadable_until_a_successful_read(story: Story) -> None:
    for unreadable in story.unreadable[1:3]:
        assert {story.uuids["moved"], story.uuids["y"], None} <= unreadable
    assert (story.unreadable[0], story.unreadable[3]) == (set(), set())


def test_table_with_another_location_is_not_taken_for_renamed_table(story: Story) -> None:
    assert all(story.uuids["dropped"] not in unreadable for unreadable in story.unreadable)
    assert [bool(story.data["dropped"] & live) for live in story.live] == [True, False, False, False]
