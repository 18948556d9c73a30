"""A table claims only those files in its location that Iceberg writers may have created.

A user who may create a table, or set `write.data.path`, made another team's directory garbage. Data
of other formats under a location was garbage too, and so were the files of a batch that `add_files`
was to add on the next day.

Source: attack cases 02 and 04.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import LakeConfig
from gc_assets.core.plan import GateResult, PlanHeader
from gc_assets.stages.read.acceptances import describe_accepted_prefix
from gc_assets.stages.records.accepted_prefixes import accept_prefix
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

UUID = "7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00"


def write(path: Path, at: datetime, rows: int = 1) -> Path:
    """Write a Parquet file, or text for other names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64()), "part": pa.array(["a"] * rows)}), path)
    else:
        path.write_text("x" * rows)
    os.utime(path, (at.timestamp(),) * 2)
    return path


def write_all(folder: Path, names: Sequence[str], at: datetime) -> set[Path]:
    return {write(folder / name, at) for name in names}


@dataclass
class FirstRun:
    """The first run of a storage in which tables claim directories of other programs."""

    house: Lakehouse
    iceberg: LakeBuilder
    foreign: set[str] = field(default_factory=set)
    leftovers: set[str] = field(default_factory=set)
    header: PlanHeader | None = None

    def add_foreign(self, folder: Path, *names: str) -> None:
        self.foreign |= {self.house.key(path) for path in write_all(folder, names, days_ago(30))}

    def add_leftovers(self, table: TableBuilder, *names: str) -> None:
        """Write leftovers with the names of pyiceberg, and with these names."""
        paths = {*table.leftovers(days_ago(20)), *write_all(self.house.warehouse, names, days_ago(20))}
        self.leftovers |= {self.house.key(path) for path in paths}


@pytest.fixture(scope="module")
def first_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    settings = {"gates": {"max_delete_share": 1.0}, "protect": ["db/plain/data/kept/**", "db/plain/data/one-*.parquet"]}
    house = Lakehouse(spark, tmp_path_factory.mktemp("others"), settings=settings)
    run = FirstRun(house, LakeBuilder(house.root))
    warehouse, iceberg = house.warehouse, run.iceberg

    plain = iceberg.table("db.plain", days_ago(40), partitioned=True)
    plain.append(days_ago(30), part="a")
    run.add_leftovers(plain, "db/plain/data/part=a/left.parquet")
    run.add_foreign(warehouse / "db/plain", "data/part=new/left.parquet", "metadata/schema.json", "metadata/model.parquet")
    # Leftovers in a partition, and in a hash directory, that have no other file.
    name = f"00000-3-{UUID}.parquet"
    run.add_leftovers(plain, f"db/plain/data/part=c/{name}", f"db/plain/data/0101/1100/0011/10101010/{name}")
    write_all(warehouse / "db/plain/data", ["kept/part=a/x.parquet", "one-1.parquet"], days_ago(30))

    # Tables over directories of other teams: a location, a data path, and a Parquet directory.
    run.add_foreign(warehouse / "raw/landing", "2026/invoices-1.csv", f"part-00000-{UUID}-c000.snappy.parquet", "_SUCCESS")
    iceberg.table("mallory.x", days_ago(10), location=f"file://{warehouse}/raw/landing")
    run.add_foreign(warehouse / "finance", "ledger.parquet", "2025/ledger.parquet")
    iceberg.table("mallory.y", days_ago(10), properties={"write.data.path": f"file://{warehouse}/finance"})
    run.add_foreign(warehouse / "events", *(f"day={day}/part-0000{day}-{UUID}-c000.snappy.parquet" for day in range(3)), "part-9.parquet")
    batch = [write(warehouse / "events" / name, days_ago(30)) for name in ("day=7/part-00000.snappy.parquet", "part-8.parquet")]
    events = iceberg.table("db.events", days_ago(10), location=f"file://{warehouse}/events")
    with iceberg.at(days_ago(9)):
        events.table.add_files([f"file://{path}" for path in batch])

    # Tables with a Parquet directory as their `data/` folder, or with partitions of others.
    run.add_foreign(warehouse / "imported/data", "events-b.parquet")
    batch = [write(warehouse / "imported/data/events-a.parquet", days_ago(30))]
    imported = iceberg.table("db.imported", days_ago(10), location=f"file://{warehouse}/imported")
    with iceberg.at(days_ago(9)):
        imported.table.add_files([f"file://{path}" for path in batch])
    run.add_foreign(warehouse / "shared", "part=b/part-00000.parquet", "part=c/part-00000.parquet")
    place = f"file://{warehouse}/shared"
    shared = iceberg.table("db.shared", days_ago(10), partitioned=True, location=place, properties={"write.data.path": place})
    shared.append(days_ago(9), part="a")

    # Datasets of other formats in the location of a table.
    mixed = iceberg.table("db.mixed", days_ago(40))
    mixed.append(days_ago(30))
    run.add_leftovers(mixed)
    home = warehouse / "db/mixed"
    run.add_foreign(
        home, "snapshot/snapshot-1", "snapshot/LATEST", "schema/schema-0", "manifest/manifest-list-aa-0", "bucket-0/data-aa-0.parquet"
    )
    run.add_foreign(home / "_checkpoint", "metadata", "offsets/0", "commits/0")
    run.add_foreign(home, "emb.lance/_versions/1.manifest", "emb.lance/data/a.lance", "cube.zarr/zarr.json", "cube.zarr/c/0/0")
    house.lakes = [iceberg.config()]
    run.header = house.plan()
    return run


def test_first_run_plans_only_leftovers_of_the_table(first_run: FirstRun) -> None:
    assert first_run.house.keys("deletion_plan") == first_run.leftovers


def test_files_that_iceberg_did_not_write_are_listed_as_foreign(first_run: FirstRun) -> None:
    house = first_run.house
    assert house.keys("orphan_files", reason="foreign") == first_run.foreign
    summary = house.summary("orphan_files")
    assert summary["by_reason"]["foreign/sales"]["files"] == len(first_run.foreign)
    assert sum(item["files"] for item in summary["foreign"]) == len(first_run.foreign)
    assert summary["storage_breakdown"]["protected"]["files"] == 2


def test_new_claims_gate_counts_foreign_files(first_run: FirstRun) -> None:
    assert first_run.header is not None
    (gate,) = (gate for gate in first_run.header.gates if gate.name == "new_claims")
    assert gate.passed
    assert gate.numbers["foreign_files"] == len(first_run.foreign)
    assert gate.numbers["claims"] == 0  # the first run does not know the age of its claims
    assert "gc-assets accept-prefix" in gate.message


@dataclass
class LaterRuns:
    house: Lakehouse
    iceberg: LakeBuilder
    old: set[str]
    leftovers: set[str] = field(default_factory=set)
    outcomes: dict[str, int] = field(default_factory=dict)
    plans: dict[str, set[str]] = field(default_factory=dict)
    gates: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, name: str, now: datetime) -> PlanHeader:
        self.house.now = now
        header = self.house.plan()
        self.plans[name] = self.house.keys("deletion_plan")
        self.gates[name] = {gate.name: gate for gate in header.gates}
        return header


@pytest.fixture(scope="module")
def later_runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LaterRuns:
    """After an accepted run, a table is created over files with names like those of its writers."""
    house = Lakehouse(spark, tmp_path_factory.mktemp("claims"), settings={"gates": {"max_delete_share": 1.0}}, now=days_ago(9))
    iceberg = LakeBuilder(house.root)
    iceberg.table("db.first", days_ago(40)).append(days_ago(30))
    names = [f"data/00000-{number}-{UUID}.parquet" for number in range(3)]
    old = {house.key(path) for path in write_all(house.warehouse / "of-others", names, days_ago(20))}
    iceberg.date_files(days_ago(20))
    house.lakes = [iceberg.config()]
    runs = LaterRuns(house, iceberg, old)
    runs.run("before", days_ago(9))
    table = iceberg.table("mallory.z", days_ago(8), location=f"file://{house.warehouse}/of-others")
    table.append(days_ago(8))
    runs.run("new", days_ago(7))
    runs.leftovers = {house.key(path) for path in table.leftovers(days_ago(6), 1)}
    runs.run("later", days_ago(2))
    location = f"file://{house.warehouse}/of-others/"
    accept_prefix(house.config, house.clock, location, "ada", "an old export")
    stale = runs.run("accepted", days_ago(1))
    house.approve(stale)
    accept_prefix(house.config, house.clock, location, "ada", withdraw=True)
    runs.outcomes = {outcome: total.rows for (_, outcome), total in house.apply(stale).by_outcome.items()}
    runs.run("withdrawn", days_ago(0))
    return runs


def test_files_older_than_a_new_claim_are_kept_until_accepted(later_runs: LaterRuns) -> None:
    assert later_runs.plans["new"] == set()
    gate = later_runs.gates["new"]["new_claims"]
    assert gate.passed
    assert (gate.numbers["claims"], gate.numbers["files"]) == (1, 3)
    assert "of-others" in gate.message
    assert later_runs.plans["later"] == later_runs.leftovers
    assert later_runs.plans["accepted"] == later_runs.leftovers | later_runs.old
    assert not later_runs.old & later_runs.plans["withdrawn"]


def test_apply_refuses_files_after_acceptance_is_withdrawn(later_runs: LaterRuns) -> None:
    assert later_runs.outcomes == {"denied": 3, "done": 2}


def test_claim_is_new_after_upgrade_and_after_repeated_run_date(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of earlier releases recorded no ages, and a run may be repeated on its date."""
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}}, now=days_ago(5))
    iceberg = LakeBuilder(house.root)
    iceberg.table("db.first", days_ago(40)).append(days_ago(30))
    lost = write(house.warehouse / f"db/first/data/00000-0-{UUID}.parquet", days_ago(20))
    old = {write(house.warehouse / name / f"data/00000-0-{UUID}.parquet", days_ago(20)) for name in ("one", "two")}
    iceberg.date_files(days_ago(20))
    house.lakes = [iceberg.config()]
    runs = LaterRuns(house, iceberg, {house.key(path) for path in old})
    with monkeypatch.context() as patch:
        patch.setattr("gc_assets.stages.sweep.foreign_files.CLAIMED_SIDE", "_unread")
        runs.run("before", days_ago(5))
    iceberg.table("mallory.one", days_ago(4), location=f"file://{house.warehouse}/one").append(days_ago(4))
    runs.run("upgraded", days_ago(4))
    iceberg.table("mallory.two", days_ago(4), location=f"file://{house.warehouse}/two")
    # A file that is younger than the run before the table `one`, but older than the table.
    write(house.warehouse / "one/data/events-b.parquet", days_ago(4.5))
    runs.run("repeated", days_ago(4) + timedelta(hours=1))
    runs.run("next", days_ago(0))
    assert runs.plans == {name: {house.key(lost)} for name in ("before", "upgraded", "repeated", "next")}


def test_claim_age_survives_a_refused_run_of_the_same_date(spark: SparkSession, tmp_path: Path) -> None:
    """A lake was missing in `lakes.yaml` for one run, which the `lakes_present` gate refused."""
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}}, now=days_ago(5))
    lakes = {name: LakeBuilder(house.root, catalog_name=name, catalog_file=f"{name}.db") for name in ("one", "two")}
    garbage: set[str] = set()
    for name, lake in lakes.items():
        table = lake.table(f"db.{name}", days_ago(40))
        table.append(days_ago(30))
        garbage |= {house.key(path) for path in table.leftovers(days_ago(20), 1)}
        lake.date_files(days_ago(20))
    both: list[LakeConfig] = [lake.config(name) for name, lake in lakes.items()]
    house.lakes = both
    runs = LaterRuns(house, lakes["one"], set())
    runs.run("before", days_ago(5))
    house.lakes = both[:1]
    refused = runs.run("without two", days_ago(5) + timedelta(hours=1))
    house.lakes = both
    runs.run("with two again", days_ago(4))
    assert "lakes_present" in house.failed_gates(refused)
    assert runs.plans["before"] == runs.plans["with two again"] == garbage


def test_foreign_file_quarantined_by_an_earlier_release_is_not_purged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of earlier releases quarantined foreign files, which wait until a user accepts or restores them."""
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}}, now=days_ago(5))
    iceberg = LakeBuilder(house.root)
    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    lost = {house.key(path) for path in table.leftovers(days_ago(20), 1)}
    names = ("landing/invoices.csv", "data/_versions/1.manifest", "data/part-1.lance")
    strays = {house.key(write(house.warehouse / "db/t" / name, days_ago(20))) for name in names}
    house.lakes = [iceberg.config()]
    with monkeypatch.context() as patch:  # as in earlier releases, nothing is foreign
        finder = "gc_assets.stages.sweep.foreign_files.ForeignFinder.find_rules"
        patch.setattr(finder, lambda _, batch: pa.nulls(batch.num_rows, pa.string()))
        patch.setattr("gc_assets.core.gates.new_claims", lambda *_: GateResult(name="other", passed=True, message="", overridable=False))
        header = house.plan()
        assert house.keys("deletion_plan") == lost | strays
        house.approve_and_apply(header)
    house.now = days_ago(2)
    house.plan()
    assert house.keys("deletion_plan", action="purge") == lost


def test_quarantined_file_is_not_purged_after_it_becomes_foreign(spark: SparkSession, tmp_path: Path) -> None:
    """An acceptance may be withdrawn while its files are in quarantine, and a sign of another format may appear."""
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}}, now=days_ago(9))
    iceberg = LakeBuilder(house.root)
    table = iceberg.table("db.t", days_ago(40))
    table.append(days_ago(30))
    house.lakes = [iceberg.config()]
    lost = {house.key(path) for path in table.leftovers(days_ago(20), 1)}
    names = ("landing/invoices.csv", "landing/more.csv", "data/left.parquet")
    invoices, more, left = (house.key(write(house.warehouse / "db/t" / name, days_ago(20))) for name in names)
    landing = f"file://{house.warehouse}/db/t/landing/"
    assert "effect is unknown" in describe_accepted_prefix(house.config, house.storage, "db/t/landing/")
    write(house.warehouse / "db/t/landing/_old/notes.csv", days_ago(20))
    house.plan()
    assert "found 3 foreign files under db/t/landing/. The record may not apply to 1 of them" in describe_accepted_prefix(
        house.config, house.storage, "db/t/landing/"
    )
    assert "found 1 foreign files under db/t/landing/_old/." in describe_accepted_prefix(house.config, house.storage, "db/t/landing/_old/")
    assert "has no effect yet" in describe_accepted_prefix(house.config, house.storage, "db/t/landed/")
    accept_prefix(house.config, house.clock, landing, "ada", "an old export")
    header = house.plan()
    assert house.keys("deletion_plan") == lost | {invoices, more, left}
    house.approve_and_apply(header)
    write(house.warehouse / "db/t/data/zarr.json", days_ago(8))
    house.now = days_ago(2)
    header = house.plan()
    assert house.keys("deletion_plan", action="purge") == lost | {invoices, more}
    house.approve(header)
    accept_prefix(house.config, house.clock, landing, "ada", withdraw=True)
    assert {outcome: total.rows for (_, outcome), total in house.apply(header).by_outcome.items()} == {"denied": 2, "done": len(lost)}
    house.now = days_ago(1)
    house.plan()
    assert house.keys("deletion_plan", action="purge") == set()
