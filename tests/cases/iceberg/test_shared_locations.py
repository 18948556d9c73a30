"""Tables that share `write.data.path` each claim it.

Before, only the last one in the list of the catalog did. The files of the others were planned without the waiting time after a drop, and
while they could not be read.

Source: sample lakes with tables that share `write.data.path`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = pytest.mark.spark


@dataclass
class Story:
    """Plans of a lake: of the first run, after a drop of `a`, and while `b` cannot be read. `c` is good.

    Attributes:
        files: Data files by what they are.
        planned: The actions of each plan by key.
    """

    files: dict[str, set[str]]
    planned: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("shared"), settings={"quarantine_days": 7})
    lake = LakeBuilder(house.root)
    shared = {"write.data.path": f"file://{house.warehouse}/shared"}
    a, b, c = (lake.table(f"db.{name}", days_ago(40), properties=shared) for name in "abc")
    for table in (a, b, c):
        table.append(days_ago(30))
    files = {"dropped": set(map(house.key, a.data_files())), "overwritten": set(map(house.key, c.data_files()))}
    house.lakes = [lake.config("sales", retention={"dropped": "keep"})]
    story = Story(files)

    def plan() -> None:
        house.plan()
        story.planned.append({key: action for key, action in house.planned_actions().items() if key.startswith("shared/")})

    plan()
    lake.catalog.drop_table("db.a")
    c.overwrite(days_ago(20))
    c.append(days_ago(12))
    house.now = NOW + timedelta(days=1)
    plan()
    known = set(map(house.key, b.data_files()))
    b.append(NOW + timedelta(days=1, hours=1))
    files["new"] = set(map(house.key, b.data_files())) - known
    metadata = b.path(b.metadata_location)
    metadata.write_bytes(metadata.read_bytes()[:100])
    house.now = NOW + timedelta(days=5)
    plan()
    return story


def test_files_of_dropped_table_in_a_shared_path_are_kept(story: Story) -> None:
    assert story.files["dropped"]
    assert all(not story.files["dropped"] & plan.keys() for plan in story.planned)


def test_new_files_of_an_unreadable_table_in_a_shared_path_are_kept(story: Story) -> None:
    assert story.files["new"]
    assert not story.files["new"] & story.planned[2].keys()


def test_expired_files_of_a_listed_table_in_a_shared_path_are_planned(story: Story) -> None:
    assert story.planned[1] == dict.fromkeys(story.files["overwritten"], "quarantine")
