"""Tables that cannot be read: the others go on, and nothing is lost (design 6.5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import UsageError
from gc_assets.core.notifications import LastRun, StorageSummary, list_notifications
from gc_assets.core.plan import PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.plan import planned_actions
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.read.what_if import what_if
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark
ONE_DAY = {"history.expire.max-snapshot-age-ms": "86400000"}


@contextmanager
def fifo_at(aside: Path, *paths: Path) -> Iterator[None]:
    """Nothing can be read at these places meanwhile."""
    for number, path in enumerate(paths):
        path.rename(aside / str(number))
        os.mkfifo(path)
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            path.unlink()
            (aside / str(number)).rename(path)


@dataclass
class Nights:
    """Four nights: all well; three tables and a repository sick; sick still; all well, until the plan is applied."""

    house: Lakehouse
    borrowed: str
    leftovers: dict[str, set[str]]
    headers: list[PlanHeader]
    planned: list[dict[str, str]]
    on_disk: list[set[str]]
    edited: list[set[str]]
    outcomes: dict[str, str]


@pytest.fixture(scope="module")
def nights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    house = Lakehouse(spark, tmp_path_factory.mktemp("sick"))
    lake = LakeBuilder(house.root)
    well = lake.table("db.well", days_ago(40), properties=ONE_DAY)
    well.append(days_ago(30))
    lost = lake.table("db.lost", days_ago(40))
    lost.append(days_ago(30))
    torn = lake.table("db.torn", days_ago(40))
    torn.append(days_ago(30))
    cut = lake.table("db.cut", days_ago(40))
    cut.append(days_ago(30))
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    leftovers = {table.name: {house.key(path) for path in table.leftovers(days_ago(20), 2)} for table in (well, lost, torn, cut)}
    [borrowed] = [
        house.key(path) for path in (house.warehouse / "db/well/data").rglob("*.parquet") if house.key(path) not in leftovers["db.well"]
    ]
    with lake.at(days_ago(12)):
        lost.table.add_files([f"file://{house.warehouse}/{borrowed}"], check_duplicate_files=False)
    house.lakes = [lake.config("sales"), house.weather()]
    found = Nights(house, borrowed, leftovers, [], [], [], [], {})

    beside_junk = well.path(well.table.location()) / "nested" / "data" / "x.parquet"
    for path in (beside_junk, beside_junk.parents[1] / "metadata" / "00000-junk.metadata.json", beside_junk.parents[2] / "late.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{")
        os.utime(path, (days_ago(30).timestamp(),) * 2)

    def context(*broken: Path) -> None:
        header = house.plan()
        found.headers.append(header)
        found.planned.append(house.planned_actions())
        actions = planned_actions(house.run_context().state, house.find_table("deletion_plan"))
        found.edited.append(set(actions.column("table_name").to_pylist()))
        assert not house.failed_gates(header)
        if header.has_work:
            with fifo_at(house.root, *broken):
                house.approve_and_apply(header)
            found.outcomes = {row["key"]: f"{row['phase']} {row['outcome']}" for row in house.rows("deletion_log")}
        found.on_disk.append(set(house.files()))
        house.now += timedelta(days=1)

    house.plan()
    house.now += timedelta(days=1)
    well.overwrite(days_ago(10))
    metadata = lost.path(lost.metadata_location)
    torn.append(days_ago(1))
    os.utime(house.warehouse / "db/well/late.parquet", (10_000_000_000,) * 2)  # in the year 2286
    newest = max(house.warehouse.glob("db/torn/metadata/snap-*.avro"), key=lambda path: path.stat().st_mtime)
    [known] = [path for path in house.warehouse.glob("db/cut/metadata/*-m0.avro") if house.key(path) not in leftovers["db.cut"]]
    with fifo_at(house.root, metadata, newest, known, house.warehouse / "weather/refs/branch.main/ref.json"):
        context()
        context()
    context(metadata)
    born = lake.table("db.born", days_ago(1))
    with fifo_at(house.root, born.path(born.metadata_location)):
        found.headers.append(house.plan())
    return found


def test_the_tables_that_can_be_read_are_collected(nights: Nights) -> None:
    assert not nights.house.failed_gates(nights.headers[0])
    assert nights.leftovers["db.well"] <= nights.planned[0].keys()
    assert not nights.leftovers["db.well"] & nights.on_disk[0]


def test_what_is_sick_is_named_with_since_when_and_why(nights: Nights) -> None:
    first, second = nights.headers[:2]
    assert {(item.lake, item.table_name) for item in first.unreadable} == {
        ("sales", "db.lost"),
        ("sales", "db.torn"),
        ("sales", "db.cut"),
        ("weather", None),
    }
    unread = {item.name: item for item in first.unreadable if "fifo" in item.why}
    assert len(unread) == 3
    assert {item.good_on for item in unread.values()} == {first.run_date - timedelta(days=1)}
    assert {item.name: item.since for item in second.unreadable if item.name in unread} == {
        name: item.since for name, item in unread.items()
    }
    assert "db.lost" in next(gate.message for gate in first.gates if gate.name == "unreadable_tables")


def test_what_is_sick_for_two_nights_is_one_event_each(nights: Nights) -> None:
    first, second = (
        {item.id for item in list_notifications([StorageSummary("warehouse", LastRun(header, "applied", None, ()))], header.created_at)}
        for header in nights.headers[:2]
    )
    assert first == second
    assert len(first) == 4


def test_nothing_below_the_claims_of_what_is_sick_is_touched(nights: Nights) -> None:
    for planned in nights.planned[:2]:
        assert not [key for key in planned if key.startswith(("db/lost/", "db/torn/", "db/cut/", "weather/"))]


def test_what_if_frees_nothing_that_is_sick_and_says_where_a_lake_was_not_read(nights: Nights) -> None:
    context = RunContext.of(nights.house.config, nights.house.clock, nights.headers[0].run_date)
    (effect,) = what_if(nights.house.spark, context, [Scenario("newest", ("sales",), retention="1", dropped=frozenset({"main"}))])
    assert {item.table for item in effect.differences} <= {"db.well"}
    with pytest.raises(UsageError, match="lake weather could not be read on"):
        what_if(nights.house.spark, context, [Scenario("newest", ("sales", "weather"), retention="1")])


def test_what_a_sick_table_took_up_from_another_one_stays_live(nights: Nights) -> None:
    assert all(nights.borrowed not in planned for planned in nights.planned)
    assert all(nights.borrowed in files for files in nights.on_disk)


def test_nothing_is_purged_while_anything_is_sick_and_all_of_it_once_all_is_well(nights: Nights) -> None:
    assert [set(planned.values()) - {"quarantine", "restore"} for planned in nights.planned] == [set(), set(), {"purge"}]
    assert nights.leftovers["db.well"] <= {key for key, action in nights.planned[2].items() if action == "purge"}


def test_what_waits_to_be_purged_is_told_in_files_and_bytes(nights: Nights) -> None:
    first, second, third, _ = ({gate.name: gate for gate in header.gates}["unreadable_tables"] for header in nights.headers)
    waiting = {key for key, action in nights.planned[2].items() if action == "purge"}
    assert second.numbers["waiting_files"] == len(waiting)
    assert second.numbers["waiting_bytes"] == nights.headers[2].totals["purge"].bytes > 0
    assert f"{len(waiting)} quarantined files" in second.message
    assert not {"waiting_files"} & (first.numbers.keys() | third.numbers.keys())


def test_the_histories_of_what_is_sick_are_not_edited(nights: Nights) -> None:
    assert nights.edited[0] == {"db.well"}
    assert not nights.headers[0].expiry_actions.keys() - {"sales"}


def test_what_is_well_again_is_collected_again(nights: Nights) -> None:
    assert not nights.headers[2].unreadable
    assert nights.leftovers["db.lost"] | nights.leftovers["db.torn"] | nights.leftovers["db.cut"] <= nights.planned[2].keys()


def test_a_table_that_falls_sick_before_its_plan_is_applied_holds_what_the_plan_would_do(nights: Nights) -> None:
    by_outcome = {key: outcome for key, outcome in nights.outcomes.items() if not key.startswith("db/well/")}
    assert {by_outcome[key] for key in nights.leftovers["db.lost"]} == {"quarantine changed"}
    assert {by_outcome[key] for key in nights.leftovers["db.torn"]} == {"quarantine done"}
    assert {nights.outcomes[key] for key in nights.leftovers["db.well"]} == {"purge changed"}


def test_junk_that_is_named_like_metadata_holds_the_files_beside_it_and_no_plan(nights: Nights) -> None:
    assert not [key for planned in nights.planned for key in planned if key.startswith("db/well/nested/")]
    gate = next(gate for gate in nights.headers[0].gates if gate.name == "foreign_metadata")
    assert "db/well/nested/metadata/00000-junk.metadata.json" in gate.message


def test_a_file_with_a_time_after_2262_is_kept_and_named(nights: Nights) -> None:
    assert all("db/well/late.parquet" in files for files in nights.on_disk)
    assert not [planned for planned in nights.planned if "db/well/late.parquet" in planned]


def test_a_table_that_no_night_ever_read_stops_the_storage_that_it_lies_in(nights: Nights) -> None:
    [born] = nights.headers[3].unreadable
    assert (born.table_name, born.good_on, born.storages) == ("db.born", None, ("warehouse",))
    assert nights.house.failed_gates(nights.headers[3]) == {"never_read"}
