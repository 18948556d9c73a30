"""A table or repository that no run ever read is set aside, and everything else is collected.

Before, one table of an unknown format version, one missing `metadata.json` or one damaged ref ended every run of every lake until it was
repaired. Now only its locations are protected, and purges wait until a user decides.

Source: sample lakes with one table of a newer format version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.set_aside import set_table_aside
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]
UNREADABLE = {"db.newer", "db.gone", "db.torn", "db.apart", None}


@dataclass
class Story:
    """Runs of a lake with one readable table and four unreadable ones, next to an unreadable repository.

    Attributes:
        before: Files of the unreadable tables and repository.
        leftovers: Files of the readable table that no snapshot names.
        planned: Planned actions of each run.
    """

    house: Lakehouse
    before: set[str]
    leftovers: set[str]
    headers: dict[str, PlanHeader]
    planned: dict[str, dict[str, str]]

    def run(self, name: str) -> PlanHeader:
        self.headers[name] = header = self.house.plan()
        self.planned[name] = self.house.planned_actions()
        return header

    def set_aside(self, *tables: str) -> None:
        for table in tables:
            set_table_aside(self.house.config, self.house.clock, table, "ada", "checked")

    @property
    def keys(self) -> Iterator[str]:
        yield from (key for planned in self.planned.values() for key in planned)


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    at = days_ago(25).timestamp()
    os.utime(path, (at, at))


def set_format_version(path: Path, version: int) -> None:
    rewrite(path, json.dumps(json.loads(path.read_bytes()) | {"format-version": version}).encode())


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    house = Lakehouse(spark, tmp_path_factory.mktemp("aside"), settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    tables = {name: lake.table(f"db.{name}", days_ago(40)) for name in ("good", "newer", "gone", "torn")}
    # The metadata references a directory outside the table's location, which another table claims too.
    tables["apart"] = lake.table(
        "db.apart",
        days_ago(40),
        location=f"file://{house.warehouse}/other",
        properties={"write.data.path": f"file://{house.warehouse}/db/good/apart"},
    )
    for table in tables.values():
        table.append(days_ago(30))
    leftovers = {house.key(path) for path in tables["good"].leftovers(days_ago(20), 2)}
    others = [tables[name].leftovers(days_ago(20), 1) for name in ("newer", "gone", "torn", "apart")]
    metadata = {name: table.path(table.metadata_location) for name, table in tables.items()}
    set_format_version(metadata["newer"], 4)
    set_format_version(metadata["apart"], 4)
    metadata["gone"].unlink()
    [manifest] = [path for path in (house.warehouse / "db/torn/metadata").glob("*-m0.avro") if path not in others[2]]
    rewrite(manifest, manifest.read_bytes()[:-20])
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    rewrite(house.warehouse / "weather/refs/branch.main/ref.json", b"{")
    house.lakes = [lake.config("sales"), house.weather()]
    before = {key for key in house.files() if not key.startswith("db/good/") or key.startswith("db/good/apart/")}
    story = Story(house, before, leftovers, {}, {})

    house.approve_and_apply(story.run("first"))
    house.now += timedelta(days=1)
    story.run("waiting")
    story.set_aside("db.newer", "db.gone", "sales/db.torn", "db.apart", "weather")
    story.run("set aside")
    set_format_version(metadata["newer"], 2)
    house.now += timedelta(days=1)
    story.run("read")
    set_format_version(metadata["newer"], 4)
    house.now += timedelta(days=1)
    story.run("unreadable again")
    return story


def test_first_run_reports_unreadable_tables_and_collects_others(story: Story) -> None:
    header = story.headers["first"]
    assert not story.house.failed_gates(header)
    assert {item.table_name for item in header.unreadable} == UNREADABLE
    assert {item.good_on for item in header.unreadable} == {None}
    assert {key for key in story.planned["first"] if key.startswith("db/good/")} >= story.leftovers


def test_files_in_locations_of_unreadable_tables_are_not_planned(story: Story) -> None:
    assert not story.before & set(story.keys)


def test_purges_wait_until_a_user_sets_unreadable_tables_aside(story: Story) -> None:
    purged = {name: {key for key, action in planned.items() if action == "purge"} for name, planned in story.planned.items()}
    assert not purged["waiting"]
    assert story.leftovers <= purged["set aside"]


def test_gate_shows_the_set_aside_command_and_record(story: Story) -> None:
    messages = {name: {gate.name: gate.message for gate in header.gates}["unreadable_tables"] for name, header in story.headers.items()}
    assert "gc-assets set-aside TABLE" in messages["waiting"]
    assert "db.newer" in messages["waiting"]
    assert "set aside by ada" in messages["set aside"]


def test_set_aside_record_ends_when_the_table_is_read_again(story: Story) -> None:
    assert "db.newer" not in {item.table_name for item in story.headers["read"].unreadable}
    again = {item.table_name: item for item in story.headers["unreadable again"].unreadable}
    assert again["db.newer"].set_aside is None
    assert again["db.newer"].good_on == story.headers["read"].run_date
    assert again["db.gone"].set_aside is not None


def test_only_unreadable_tables_can_be_set_aside(story: Story) -> None:
    with pytest.raises(UsageError, match=r"Unreadable tables: .*db\.gone"):
        story.set_aside("db.good")
    with pytest.raises(UsageError, match="--by WHO"):
        set_table_aside(story.house.config, story.house.clock, "db.gone", " ")
