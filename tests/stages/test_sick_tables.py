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

from gc_assets.core.plan import PlanHeader
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
    """Four nights: all well; two tables and a repository sick; sick still; all well again."""

    house: Lakehouse
    borrowed: str
    leftovers: dict[str, set[str]]
    headers: list[PlanHeader]
    planned: list[dict[str, str]]
    on_disk: list[set[str]]
    outcomes: list[dict[tuple[str, str], int]]


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
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    leftovers = {table.name: {house.key(path) for path in table.leftovers(days_ago(20), 2)} for table in (well, lost, torn)}
    [borrowed] = [
        house.key(path) for path in (house.warehouse / "db/well/data").rglob("*.parquet") if house.key(path) not in leftovers["db.well"]
    ]
    with lake.at(days_ago(12)):
        lost.table.add_files([f"file://{house.warehouse}/{borrowed}"], check_duplicate_files=False)
    house.lakes = [lake.config("sales"), house.weather()]
    found = Nights(house, borrowed, leftovers, [], [], [], [])

    def night() -> None:
        header = house.plan()
        found.headers.append(header)
        found.planned.append(house.planned())
        gates = house.failed_gates(header)
        applied = house.carry_out(header) if header.has_work and not gates else None
        found.outcomes.append({} if applied is None else {books: total.rows for books, total in applied.books.items()})
        found.on_disk.append(set(house.files()))
        house.now += timedelta(days=1)

    house.plan()
    house.now += timedelta(days=1)
    well.overwrite(days_ago(10))
    unreadable = Path(lost.metadata_location.removeprefix("file://"))
    torn.append(days_ago(1))
    manifest = max((house.warehouse / "db/torn/metadata").glob("snap-*.avro"), key=lambda path: path.stat().st_mtime)
    with fifo_at(house.root, unreadable, manifest, house.warehouse / "weather/refs/branch.main/ref.json"):
        night()
        night()
    night()
    return found


def test_the_tables_that_can_be_read_are_collected(nights: Nights) -> None:
    assert not nights.house.failed_gates(nights.headers[0])
    assert nights.leftovers["db.well"] <= nights.planned[0].keys()
    assert not nights.leftovers["db.well"] & nights.on_disk[0]


def test_what_is_sick_is_named_with_since_when_and_why(nights: Nights) -> None:
    first, second = nights.headers[:2]
    assert {(item.lake, item.table_name) for item in first.sick} == {("sales", "db.lost"), ("sales", "db.torn"), ("weather", None)}
    assert all("fifo" in item.why for item in first.sick)
    assert [item.since for item in second.sick] == [item.since for item in first.sick]
    assert {item.good_on for item in (*first.sick, *second.sick)} == {first.run_date - timedelta(days=1)}
    assert "db.lost" in next(gate.message for gate in first.gates if gate.name == "sick_tables")


def test_nothing_below_the_claims_of_what_is_sick_is_touched(nights: Nights) -> None:
    for planned in nights.planned[:2]:
        assert not [key for key in planned if key.startswith(("db/lost/", "db/torn/", "weather/"))]


def test_what_a_sick_table_took_up_from_another_one_stays_live(nights: Nights) -> None:
    assert all(nights.borrowed not in planned for planned in nights.planned)
    assert all(nights.borrowed in files for files in nights.on_disk)


def test_nothing_is_purged_while_anything_is_sick_and_all_of_it_once_all_is_well(nights: Nights) -> None:
    assert [set(planned.values()) - {"quarantine", "restore"} for planned in nights.planned] == [set(), set(), {"purge"}]
    assert nights.leftovers["db.well"] <= {key for key, action in nights.planned[2].items() if action == "purge"}


def test_the_histories_of_what_is_sick_are_not_edited(nights: Nights) -> None:
    assert nights.headers[0].expiry_actions.keys() <= {"sales"}
    edited = {row["table_name"] for row in nights.house.rows("expiry_log", "sales")} if nights.headers[0].expiry_actions else set()
    assert edited <= {"db.well"}


def test_what_is_well_again_is_collected_again(nights: Nights) -> None:
    assert not nights.headers[2].sick
    assert nights.leftovers["db.lost"] | nights.leftovers["db.torn"] <= nights.planned[2].keys()
