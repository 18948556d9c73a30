"""Unreadable tables lose no file, and the other tables are collected."""

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
from gc_assets.stages.delete.planned_edits import planned_actions
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.read.what_if import what_if
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]
ONE_DAY = {"history.expire.max-snapshot-age-ms": "86400000"}


@contextmanager
def block_reads(backup: Path, *paths: Path) -> Iterator[None]:
    """Replace the files with pipes, which cannot be read."""
    for number, path in enumerate(paths):
        path.rename(backup / str(number))
        os.mkfifo(path)
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            path.unlink()
            (backup / str(number)).rename(path)


@dataclass
class UnreadableRuns:
    """Results of four runs.

    In runs 1 and 2 three tables and a repository are unreadable. In run 3 all are readable until the apply. In run 4 a new table is
    unreadable.
    """

    house: Lakehouse
    added: str
    leftovers: dict[str, set[str]]
    headers: list[PlanHeader]
    actions_by_run: list[dict[str, str]]
    on_disk: list[set[str]]
    edited: list[set[str]]
    outcomes: dict[str, str]


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> UnreadableRuns:
    house = Lakehouse(spark, tmp_path_factory.mktemp("unreadable"))
    lake = LakeBuilder(house.root)
    readable = lake.table("db.well", days_ago(40), properties=ONE_DAY)
    readable.append(days_ago(30))
    lost = lake.table("db.lost", days_ago(40))
    lost.append(days_ago(30))
    torn = lake.table("db.torn", days_ago(40))
    torn.append(days_ago(30))
    truncated = lake.table("db.cut", days_ago(40))
    truncated.append(days_ago(30))
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(40))
    repository.commit("main", days_ago(30), numbers("a", range(3)))
    leftovers = {table.name: {house.key(path) for path in table.leftovers(days_ago(20), 2)} for table in (readable, lost, torn, truncated)}
    [added] = [
        house.key(path) for path in (house.warehouse / "db/well/data").rglob("*.parquet") if house.key(path) not in leftovers["db.well"]
    ]
    with lake.at(days_ago(12)):
        lost.table.add_files([f"file://{house.warehouse}/{added}"], check_duplicate_files=False)
    house.lakes = [lake.config("sales"), house.weather()]
    runs = UnreadableRuns(house, added, leftovers, [], [], [], [], {})

    nested_file = readable.path(readable.table.location()) / "nested" / "data" / "x.parquet"
    for path in (nested_file, nested_file.parents[1] / "metadata" / "00000-junk.metadata.json", nested_file.parents[2] / "late.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{")
        os.utime(path, (days_ago(30).timestamp(),) * 2)

    def run_and_apply(*broken: Path) -> None:
        header = house.plan()
        runs.headers.append(header)
        runs.actions_by_run.append(house.planned_actions())
        actions = planned_actions(house.run_context().state, house.find_table("deletion_plan"))
        runs.edited.append(set(actions.column("table_name").to_pylist()))
        assert not house.failed_gates(header)
        if header.has_work:
            with block_reads(house.root, *broken):
                house.approve_and_apply(header)
            runs.outcomes = {row["key"]: f"{row['phase']} {row['outcome']}" for row in house.rows("deletion_log")}
        runs.on_disk.append(set(house.files()))
        house.now += timedelta(days=1)

    house.plan()
    house.now += timedelta(days=1)
    readable.overwrite(days_ago(10))
    metadata = lost.path(lost.metadata_location)
    torn.append(days_ago(1))
    os.utime(house.warehouse / "db/well/late.parquet", (10_000_000_000,) * 2)  # in the year 2286
    newest = max(house.warehouse.glob("db/torn/metadata/snap-*.avro"), key=lambda path: path.stat().st_mtime)
    [known] = [path for path in house.warehouse.glob("db/cut/metadata/*-m0.avro") if house.key(path) not in leftovers["db.cut"]]
    with block_reads(house.root, metadata, newest, known, house.warehouse / "weather/refs/branch.main/ref.json"):
        run_and_apply()
        run_and_apply()
    run_and_apply(metadata)
    born = lake.table("db.born", days_ago(1))
    with block_reads(house.root, born.path(born.metadata_location)):
        runs.headers.append(house.plan())
    return runs


def test_readable_tables_are_collected(runs: UnreadableRuns) -> None:
    assert not runs.house.failed_gates(runs.headers[0])
    assert runs.leftovers["db.well"] <= runs.actions_by_run[0].keys()
    assert not runs.leftovers["db.well"] & runs.on_disk[0]


def test_unreadable_table_is_reported_with_time_and_error(runs: UnreadableRuns) -> None:
    first, second = runs.headers[:2]
    assert {(item.lake, item.table_name) for item in first.unreadable} == {
        ("sales", "db.lost"),
        ("sales", "db.torn"),
        ("sales", "db.cut"),
        ("weather", None),
    }
    unread = {item.name: item for item in first.unreadable if "fifo" in item.why.lower()}
    assert len(unread) == 3
    assert {item.good_on for item in unread.values()} == {first.run_date - timedelta(days=1)}
    assert {item.name: item.since for item in second.unreadable if item.name in unread} == {
        name: item.since for name, item in unread.items()
    }
    assert "db.lost" in next(gate.message for gate in first.gates if gate.name == "unreadable_tables")


def test_table_unreadable_in_two_runs_creates_one_event(runs: UnreadableRuns) -> None:
    first, second = (
        {item.id for item in list_notifications([StorageSummary("warehouse", LastRun(header, "applied", None, ()))], header.created_at)}
        for header in runs.headers[:2]
    )
    assert first == second
    assert len(first) == 4


def test_claims_of_unreadable_tables_are_not_planned(runs: UnreadableRuns) -> None:
    for actions in runs.actions_by_run[:2]:
        assert not [key for key in actions if key.startswith(("db/lost/", "db/torn/", "db/cut/", "weather/"))]


def test_what_if_frees_no_unreadable_table_and_refuses_unreadable_lake(runs: UnreadableRuns) -> None:
    context = RunContext.of(runs.house.config, runs.house.clock, runs.headers[0].run_date)
    (effect,) = what_if(runs.house.spark, context, [Scenario("newest", ("sales",), retention="1", dropped=frozenset({"main"}))])
    assert {item.table for item in effect.differences} <= {"db.well"}
    with pytest.raises(UsageError, match="lake weather: it could not be read on"):
        what_if(runs.house.spark, context, [Scenario("newest", ("sales", "weather"), retention="1")])


def test_file_shared_with_unreadable_table_is_live(runs: UnreadableRuns) -> None:
    assert all(runs.added not in actions for actions in runs.actions_by_run)
    assert all(runs.added in files for files in runs.on_disk)


def test_purge_waits_until_all_tables_are_readable(runs: UnreadableRuns) -> None:
    assert [set(actions.values()) - {"quarantine", "restore"} for actions in runs.actions_by_run] == [set(), set(), {"purge"}]
    assert runs.leftovers["db.well"] <= {key for key, action in runs.actions_by_run[2].items() if action == "purge"}


def test_gate_counts_files_and_bytes_whose_purge_must_wait(runs: UnreadableRuns) -> None:
    first, second, third, _ = ({gate.name: gate for gate in header.gates}["unreadable_tables"] for header in runs.headers)
    waiting = {key for key, action in runs.actions_by_run[2].items() if action == "purge"}
    assert second.numbers["waiting_files"] == len(waiting)
    assert second.numbers["waiting_bytes"] == runs.headers[2].totals["purge"].bytes > 0
    assert f"{len(waiting)} quarantined files" in second.message
    assert not {"waiting_files"} & (first.numbers.keys() | third.numbers.keys())


def test_history_of_unreadable_table_is_not_edited(runs: UnreadableRuns) -> None:
    assert runs.edited[0] == {"db.well"}
    assert not runs.headers[0].expiry_actions.keys() - {"sales"}


def test_recovered_tables_are_collected(runs: UnreadableRuns) -> None:
    assert not runs.headers[2].unreadable
    assert runs.leftovers["db.lost"] | runs.leftovers["db.torn"] | runs.leftovers["db.cut"] <= runs.actions_by_run[2].keys()


def test_apply_keeps_table_that_became_unreadable(runs: UnreadableRuns) -> None:
    by_outcome = {key: outcome for key, outcome in runs.outcomes.items() if not key.startswith("db/well/")}
    assert {by_outcome[key] for key in runs.leftovers["db.lost"]} == {"quarantine changed"}
    assert {by_outcome[key] for key in runs.leftovers["db.torn"]} == {"quarantine done"}
    assert {runs.outcomes[key] for key in runs.leftovers["db.well"]} == {"purge changed"}


def test_files_next_to_foreign_metadata_are_kept_without_refusing_plan(runs: UnreadableRuns) -> None:
    assert not [key for actions in runs.actions_by_run for key in actions if key.startswith("db/well/nested/")]
    gate = next(gate for gate in runs.headers[0].gates if gate.name == "foreign_metadata")
    assert "db/well/nested/metadata/00000-junk.metadata.json" in gate.message


def test_file_dated_after_2262_is_kept(runs: UnreadableRuns) -> None:
    assert all("db/well/late.parquet" in files for files in runs.on_disk)
    assert not [actions for actions in runs.actions_by_run if "db/well/late.parquet" in actions]


def test_never_read_unreadable_table_does_not_stop_other_tables(runs: UnreadableRuns) -> None:
    [born] = runs.headers[3].unreadable
    assert (born.table_name, born.good_on, born.storages) == ("db.born", None, ("warehouse",))
    assert not runs.house.failed_gates(runs.headers[3])
    assert "purge" not in runs.headers[3].totals
