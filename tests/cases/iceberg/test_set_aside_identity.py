"""A record that a table is set aside is only valid for this table, not for another one that has its name later.

Before, the record was valid for a name. A new table `db.x`, which had adopted a quarantined file and was unreadable for some days, lost the
file to a purge, although no user had set it aside.

Source: sample lakes with a table that was dropped and created again.
"""

from __future__ import annotations

import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.records.set_aside import set_table_aside
from tests.cases.iceberg.test_set_aside import set_format_version
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class Story:
    """Runs of a lake with an unreadable table `db.x` that a user set aside."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.house = Lakehouse(spark, root, settings={"quarantine_days": 7, "gates": {"max_delete_share": 1.0}})
        self.lake = LakeBuilder(root)
        self.other = self.lake.table("db.a", days_ago(60))
        self.other.append(days_ago(50))
        self.table = self.lake.table("db.x", days_ago(60))
        self.table.append(days_ago(50))
        self.house.lakes = [self.lake.config("sales")]

    def tear(self, table: TableBuilder) -> tuple[Path, bytes]:
        path = table.path(table.metadata_location)
        content = path.read_bytes()
        path.write_bytes(b"{")
        return path, content

    def set_aside(self) -> None:
        set_table_aside(self.house.config, self.house.clock, "db.x", "ada", "old rubbish")

    def drop(self) -> None:
        with sqlite3.connect(self.house.root / "catalog.db") as catalog:  # pyiceberg needs the metadata for it
            catalog.execute("delete from iceberg_tables where table_name = 'x'")
        shutil.rmtree(self.house.warehouse / "db/x")

    def is_set_aside(self) -> bool:
        self.house.now += timedelta(days=1)
        [item] = self.house.plan().unreadable
        return item.set_aside is not None


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path) -> Story:
    return Story(spark, tmp_path)


@pytest.mark.parametrize("location", ["db/x", "db/x2"])
@pytest.mark.parametrize("was_read", [False, True])
def test_set_aside_record_does_not_apply_to_new_table_of_equal_name(story: Story, was_read: bool, location: str) -> None:
    house = story.house
    if was_read:
        house.now -= timedelta(days=1)
        house.plan()
        house.now += timedelta(days=1)
    adopted = next(path for path in story.other.leftovers(days_ago(40), 2) if path.suffix == ".parquet")
    story.tear(story.table)
    house.plan()
    story.set_aside()
    assert story.is_set_aside()
    story.drop()
    new = story.lake.table("db.x", NOW, location=f"file://{house.warehouse}/{location}")
    new.table.add_files([f"file://{adopted}"])
    story.lake.date_files(NOW)
    path, content = story.tear(new)

    assert not story.is_set_aside()
    house.approve_and_apply(house.plan())
    assert not adopted.exists()  # the table was never read, so that its needs are unknown
    house.now += timedelta(days=8)
    assert not house.plan().totals
    path.write_bytes(content)
    house.now += timedelta(days=1)
    house.approve_and_apply(house.plan())
    assert new.table.scan().to_arrow().num_rows == 1


def test_set_aside_record_survives_commits_of_a_table_with_known_uuid(story: Story) -> None:
    path = story.table.path(story.table.metadata_location)
    set_format_version(path, 4)
    story.house.plan()
    story.set_aside()
    assert story.is_set_aside()
    later = path.with_name("00009-7a2c8a3e-54a5-4f4c-9f35-2f3a3b1c7a10.metadata.json")
    shutil.copy(path, later)
    with sqlite3.connect(story.house.root / "catalog.db") as catalog:
        catalog.execute("update iceberg_tables set metadata_location = ? WHERE table_name = 'x'", [f"file://{later}"])
    assert story.is_set_aside()
