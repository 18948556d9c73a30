"""Only files of dropped tables are collected, after a waiting time.

Each story uses real catalogs. The clock is moved, so that the waiting time of seven days passes.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.assets.markdown import dropped_tables_markdown
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, LakeUnreadable, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.report.load import load_report
from gc_assets.report.page import render
from gc_assets.stages.mark import lake_refs
from gc_assets.stages.read.acceptances import describe_dead_table
from gc_assets.stages.read.dropped_tables import accept_command, find_dropped_locations, read_dropped_tables, short_row
from gc_assets.stages.read.explain import explain
from gc_assets.stages.read.run_tables import summarize_tables
from gc_assets.stages.records.accepted_prefixes import accept_prefix
from gc_assets.stages.records.accepted_runs import forget_lake
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.stages.records.set_aside import set_table_aside
from gc_assets.stages.sweep import table_memory
from gc_assets.stages.sweep.claims import effective_claims
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES
from gc_assets.state.side_tables import DROPPED_TABLES, DROPPED_TABLES_SIDE
from gc_assets.state.summaries import OrphanFilesSummary
from tests.depth import full_suite_only, in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.policy_server import LakekeeperServer
from tests.lakes.iceberg.rest_server import serve_catalog
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, days_ago, outcomes
from tests.stages.two_storages import DISKS, TwoStorages

pytestmark = [pytest.mark.spark, in_turn]
GATES = {"max_delete_share": 1.0, "max_live_drop": 1.0}


class Shop:
    """A lake with the tables db.a to db.d, read by a first run."""

    def __init__(self, spark: SparkSession, root: Path, tables: str = "abcd", **settings: Any) -> None:
        self.house = Lakehouse(spark, root, settings={"gates": GATES})
        self.lake = LakeBuilder(root)
        self.tables = {name: self.lake.table(f"db.{name}", days_ago(40)) for name in tables}
        for table in self.tables.values():
            table.append(days_ago(30))
        self.metadata = {name: table.metadata_location for name, table in self.tables.items()}
        self.house.lakes = [self.lake.config(**settings)]
        self.house.plan()

    def drop(self, name: str) -> str:
        """Drop a table, and return its newest metadata file."""
        self.lake.catalog.drop_table(f"db.{name}")
        return self.metadata[name]

    def register(self, name: str, metadata: str) -> None:
        self.lake.catalog.register_table(f"db.{name}", metadata)

    def run(self, day: float) -> PlanHeader:
        self.house.now = NOW + timedelta(days=day)
        return self.house.plan()

    def read_dropped(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the dropped tables in the last run, by name."""
        swept = self.house.find_table("orphan_files")
        rows = read_parts(self.house.run_context().state.files, swept.paths(DROPPED_TABLES_SIDE), DROPPED_TABLES).to_pylist()
        return {row["table_name"]: row for row in rows if row["gone_since"] is not None}

    def waits_for(self, name: str) -> str | None:
        return self.read_dropped()[f"db.{name}"]["waits_for"]

    def list_planned(self) -> set[str]:
        """Return the first two components of the planned keys."""
        return {"/".join(key.split("/")[:2]) for key in self.house.keys("deletion_plan")}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path, "ab")


def path_of(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def touch(path: Path, at: datetime, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (at.timestamp(),) * 2)


@dataclass
class Stories:
    """Tables that leave their catalog in different ways, and the run after their waiting time."""

    shop: Shop
    header: PlanHeader
    files: dict[str, set[str]]
    recreated: TableBuilder

    def list_planned(self, name: str) -> set[str]:
        """Return the planned keys of a table."""
        return {key for key in self.shop.house.keys("deletion_plan") if key.startswith(f"db/{name}/")}


@pytest.fixture(scope="module")
def stories(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stories:
    shop = Shop(spark, tmp_path_factory.mktemp("stories"), "abcdefghijklmn")
    house, catalog, root = shop.house, shop.lake.catalog, shop.house.root
    other = LakeBuilder(root / "other")
    house.lakes = [*house.lakes, other.config("other")]
    files = {name: {key for key in house.files() if key.startswith(f"db/{name}/")} for name in shop.tables}
    shop.run(0.1)

    touch(path_of(shop.metadata["g"]), days_ago(30), "{")  # the table is unreadable when it is dropped
    shop.run(1)
    for name in "acdefghik":
        shop.drop(name)
    catalog.rename_table("db.b", "db.renamed")
    shop.register("again", shop.metadata["c"])
    other.catalog.create_namespace_if_not_exists("db")
    other.catalog.register_table("db.d", shop.metadata["d"])
    recreated = shop.lake.table("db.e", NOW + timedelta(days=1.5))
    recreated.append(NOW + timedelta(days=1.5))
    for path in (house.warehouse / "db/f/data").iterdir():
        path.unlink()  # by DROP TABLE ... PURGE that was killed
    adopted = [f"file://{path}" for path in sorted((house.warehouse / "db/h/data").iterdir())]
    with shop.lake.at(NOW + timedelta(days=1.5)):
        shop.tables["l"].table.add_files(adopted)
    shop.run(2)
    touch(house.warehouse / "db/i/data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.parquet", NOW + timedelta(days=3))
    other_place = json.loads(path_of(shop.metadata["j"]).read_text())
    other_place["table-uuid"] = "7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00"
    touch(house.warehouse / "db/k/inner/metadata/00000-x.metadata.json", days_ago(20), json.dumps(other_place))
    return Stories(shop, shop.run(9.5), files, recreated)


def test_plan_with_dropped_tables_passes_all_gates(stories: Stories) -> None:
    assert stories.shop.house.failed_gates(stories.header) == set()
    assert stories.header.by_reason["dropped"].files == len(stories.shop.house.keys("orphan_files", reason="dropped"))


def test_files_of_a_dropped_table_are_planned(stories: Stories) -> None:
    assert stories.list_planned("a") == stories.files["a"]


@pytest.mark.parametrize("name", list("bcd"), ids=["renamed", "registered_again", "moved_to_another_catalog"])
def test_files_of_table_that_is_still_listed_are_kept(stories: Stories, name: str) -> None:
    assert stories.list_planned(name) == set()
    assert f"db.{name}" not in stories.shop.read_dropped()


def test_only_former_files_of_table_recreated_in_place_are_planned(stories: Stories) -> None:
    assert stories.list_planned("e") == stories.files["e"]
    assert stories.shop.read_dropped()["db.e"]["replaced"]


def test_remaining_files_of_partly_purged_table_are_planned(stories: Stories) -> None:
    assert stories.list_planned("f") == {key for key in stories.files["f"] if "/metadata/" in key}


def test_files_of_table_dropped_while_unreadable_are_planned(stories: Stories) -> None:
    assert stories.list_planned("g") == stories.files["g"]


def test_dropped_table_files_added_to_another_table_are_kept(stories: Stories) -> None:
    assert stories.list_planned("h") == {key for key in stories.files["h"] if "/metadata/" in key}


def test_dropped_table_is_kept_if_file_was_written_after_drop(stories: Stories) -> None:
    assert stories.list_planned("i") == set()
    assert "00000-0-4f1c2b0e" in (stories.shop.waits_for("i") or "")


def test_dropped_table_is_kept_if_its_location_has_foreign_metadata(stories: Stories) -> None:
    assert stories.list_planned("k") == set()
    assert "7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00" in (stories.shop.waits_for("k") or "")


def test_files_referenced_by_foreign_metadata_in_dropped_table_are_kept(shop: Shop) -> None:
    house, home = shop.house, f"file://{shop.house.warehouse}/db"
    garbage = set(map(house.key, shop.tables["b"].leftovers(days_ago(20), 2)))
    shop.drop("a")
    shop.run(1)
    other = LakeBuilder(house.root, "other", "other.db")
    other.keep_times()
    stranger = other.table("x.y", days_ago(40), location=f"{home}/a/inner", properties={"write.data.path": f"{home}/b/theirs"})
    stranger.append(days_ago(30))
    header = shop.run(9)
    assert house.failed_gates(header) == set()
    assert stranger.uuid in (shop.waits_for("a") or "")
    assert set(house.planned_actions()) == garbage
    (note,) = [note for note in house.find_table("orphan_files").summary(OrphanFilesSummary).notes if "db/b/theirs/" in note]
    assert stranger.uuid in note
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    assert stranger.table.scan().to_arrow().num_rows == 2


def test_all_listed_tables_are_readable_after_the_apply(stories: Stories) -> None:
    house, catalog = stories.shop.house, stories.shop.lake.catalog
    names = list(catalog.list_tables("db"))
    before = {name: catalog.load_table(name).scan().to_arrow().num_rows for name in names}
    assert outcomes(house.approve_and_apply(stories.header)) == {"done"}
    assert {name: catalog.load_table(name).scan().to_arrow().num_rows for name in names} == before
    assert {key for key in house.files() if key.startswith("db/a/")} == set()


def test_files_of_a_dropped_table_are_collected_after_seven_days(shop: Shop) -> None:
    files = {key for key in shop.house.files() if key.startswith("db/a/")}
    shop.drop("a")
    for day, condition in ((1, ", if this run is accepted"), (7.5, "")):
        header = shop.run(day)
        assert (header.rows, shop.waits_for("a")) == (0, f"its waiting time ends at 2026-11-28 03:00 UTC{condition}")
    header = shop.run(8.1)
    assert shop.house.planned_actions() == dict.fromkeys(files, "quarantine")
    assert header.by_reason["dropped"].files == len(files)
    assert shop.house.failed_gates(header) == set()
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    purge = shop.run(8.2)
    assert shop.house.planned_actions() == dict.fromkeys(files, "purge")
    assert outcomes(shop.house.approve_and_apply(purge)) == {"done"}
    assert shop.run(8.3).rows == 0
    assert {key[:5] for key in shop.house.files()} == {"db/b/"}


def test_table_dropped_after_expiry_needs_user_only_if_written_to_since(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "abcde")
    for name in "ab":
        shop.tables[name].append(days_ago(20))
    header = shop.run(1)
    shop.house.now += timedelta(hours=1)
    assert outcomes(shop.house.approve_and_apply(header)) == {"done"}
    written = {name: path_of(shop.tables[name].metadata_location) for name in "ab"}
    shop.lake.date_files(shop.house.now - timedelta(seconds=1))
    for name in "ab":
        shop.drop(name)
    touch(written["b"].with_name("00009-x.metadata.json"), NOW + timedelta(days=1.5), written["b"].read_text())
    shop.run(2)
    assert shop.waits_for("a") == "its waiting time ends at 2026-11-29 03:00 UTC, if this run is accepted"
    shop.run(9.1)
    assert shop.list_planned() == {"db/a"}
    assert shop.house.key(written["a"]) in shop.house.keys("deletion_plan")
    row = shop.read_dropped()["db.b"]
    assert "00009-x.metadata.json was written after a run last read the table" in row["waits_for"]
    assert accept_command(row["table_uuid"], row["waits_for"]) == f"gc-assets accept {row['table_uuid']} --by YOUR_NAME"


def test_plan_is_refused_if_catalog_lost_most_tables_at_once(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "abcd")
    for name in "abc":
        shop.drop(name)
    shop.run(1)
    header = shop.run(9)
    assert shop.house.failed_gates(header) == {"dropped_tables"}
    (gate,) = header.failed_gates
    assert "lake sales has lacked 3 of 4 tables since 2026-11-21" in gate.message
    shop.house.approve(header, "dropped_tables")
    assert outcomes(shop.house.apply(header)) == {"done"}


@full_suite_only
def test_gate_limits_the_number_of_dropped_tables(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "ab")
    shop.house.settings["gates"] = {**GATES, "max_dropped_tables": 0}
    shop.drop("a")
    shop.run(1)
    header = shop.run(9)
    assert shop.house.failed_gates(header) == {"dropped_tables"}
    assert shop.list_planned() == {"db/a"}


def test_replacing_catalog_by_empty_one_plans_no_file(shop: Shop) -> None:
    for name in "ab":
        shop.drop(name)
    for day in (1, 9):
        header = shop.run(day)
        assert (shop.list_planned(), shop.house.failed_gates(header)) == (set(), {"lakes_present"})
    forget_lake(shop.house.config, shop.house.clock, "sales", "ada")
    shop.run(10)
    assert shop.house.failed_gates(shop.run(18)) == {"dropped_tables"}


def test_files_next_to_unreadable_metadata_are_kept_after_waiting_time(shop: Shop) -> None:
    """A new table has the location of the dropped one, so the files are not foreign."""
    shop.drop("a")
    shop.run(1)
    shop.lake.table("db.c", NOW + timedelta(days=1.5), location=f"file://{shop.house.warehouse}/db/a").append(NOW + timedelta(days=1.5))
    compressed = shop.house.warehouse / "db/a/metadata/00009-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.metadata.json"
    compressed.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(256)))
    os.utime(compressed, (days_ago(20).timestamp(),) * 2)
    shop.run(2)
    shop.run(10)
    assert shop.list_planned() == set()
    compressed.unlink()
    shop.run(10.5)
    assert shop.list_planned() == {"db/a"}


@full_suite_only
def test_no_table_is_dropped_if_another_catalog_gets_lake_name(shop: Shop, tmp_path: Path) -> None:
    other_place = LakeBuilder(tmp_path / "other")
    other_place.catalog.create_namespace("db")
    other_place.catalog.register_table("db.a", shop.metadata["a"])
    shop.house.lakes = [other_place.config()]
    shop.run(1)
    assert shop.run(9).rows == 0
    assert shop.waits_for("b") == "lake sales reads another catalog than the run that knew the table"


@full_suite_only
def test_waiting_time_restarts_if_dropped_table_is_listed_again(shop: Shop) -> None:
    metadata = shop.drop("a")
    shop.run(1)
    shop.register("a", metadata)
    shop.run(5)
    shop.drop("a")
    shop.run(6)
    assert shop.run(12).rows == 0
    shop.run(14)
    assert shop.list_planned() == {"db/a"}


def test_reused_table_uuid_does_not_mark_table_dropped(shop: Shop) -> None:
    document = json.loads(path_of(shop.drop("a")).read_text())
    document["location"] = f"file://{shop.house.warehouse}/db/copy"
    copy = shop.house.warehouse / "db/copy/metadata/00000-copy.metadata.json"
    touch(copy, days_ago(20), json.dumps(document))
    shop.register("copy", f"file://{copy}")
    shop.run(1)
    assert shop.run(9).rows == 0
    assert shop.read_dropped() == {}


def test_table_listed_again_after_plan_is_kept(shop: Shop) -> None:
    metadata = shop.drop("a")
    shop.run(1)
    header = shop.run(9)
    shop.house.approve(header)
    shop.register("a", metadata)
    before = shop.house.files()
    assert outcomes(shop.house.apply(header)) == {"changed"}
    assert shop.house.files() == before


def test_table_restored_after_plan_but_not_listed_is_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is registered again, but the user of gc-assets may not list it."""
    metadata, before = shop.drop("a"), shop.house.files()
    for day in (1, 9):
        header = shop.run(day)
    assert header.by_reason["dropped"].files
    shop.register("a", metadata)
    listed = CatalogClient.list_pointers
    monkeypatch.setattr(
        CatalogClient, "list_pointers", lambda client: (item for item in listed(client) if getattr(item, "name", "") != "db.a")
    )
    assert outcomes(shop.house.approve_and_apply(header)) == {"changed"}
    assert shop.house.files() == before


def test_older_plan_keeps_table_if_later_run_read_it(shop: Shop) -> None:
    metadata = shop.drop("a")
    shop.run(1)
    header = shop.run(9)
    shop.house.approve(header)
    shop.register("a", metadata)
    shop.run(10)
    shop.drop("a")
    shop.run(11)
    before = shop.house.files()
    assert outcomes(shop.house.apply(header)) == {"changed"}
    assert shop.house.files() == before


def test_older_plan_keeps_table_if_later_run_found_newer_file(shop: Shop) -> None:
    shop.drop("a")
    shop.run(1)
    header = shop.run(9)
    shop.house.approve(header)
    touch(shop.house.warehouse / "db/a/data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.parquet", NOW + timedelta(days=9.5))
    shop.run(10)
    before = shop.house.files()
    assert outcomes(shop.house.apply(header)) == {"changed"}
    assert shop.house.files() == before


def test_dropped_table_is_kept_if_another_storage_has_newer_file(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = TwoStorages(spark, tmp_path, gates=GATES), LakeBuilder(tmp_path)
    data = {"write.data.path": f"file://{tmp_path}/disk2/a"}
    tables = [
        lake.table("db.a", days_ago(40), location=f"file://{tmp_path}/disk1/a", properties=data),
        lake.table("db.b", days_ago(40), location=f"file://{tmp_path}/disk1/b"),
        lake.table("db.c", days_ago(40), location=f"file://{tmp_path}/disk2/c"),
    ]
    for table in tables:
        table.append(days_ago(30))
    for path in (path for disk in DISKS for path in (tmp_path / disk).rglob("*") if path.is_file()):
        os.utime(path, (days_ago(30).timestamp(),) * 2)
    house.lakes = [lake.config()]
    house.plans()
    metadata = path_of(tables[0].metadata_location)
    lake.catalog.drop_table("db.a")
    house.now = NOW + timedelta(days=1)
    house.plans()
    touch(metadata.with_name("00002-x.metadata.json"), NOW + timedelta(days=2), metadata.read_text())
    for day in (3, 9):
        house.now = NOW + timedelta(days=day)
        house.plans()
    assert house.planned_keys("disk1") | house.planned_keys("disk2") == set()


def names_of(paths: Iterable[Path]) -> set[str]:
    return {path.name for path in paths}


def test_tables_in_one_location_wait_from_their_own_drop_times(shop: Shop) -> None:
    """A new table takes the default location of a renamed one. The renamed table is dropped first."""
    shop.lake.catalog.rename_table("db.a", "db.renamed")
    old = path_of(shop.metadata["a"])
    new = shop.lake.table("db.a", NOW + timedelta(hours=1))
    new.append(NOW + timedelta(hours=2))
    metadata, own = path_of(new.metadata_location), names_of(new.data_files())
    assert metadata.parent == old.parent
    shop.run(1)
    shop.lake.catalog.drop_table("db.renamed")
    shop.run(2)
    shop.lake.catalog.drop_table("db.a")
    shop.run(10)
    planned = names_of(map(Path, shop.house.keys("deletion_plan")))
    assert old.name in planned
    assert not planned & {metadata.name, *own}
    assert shop.read_dropped()["db.a"]["files"] > 0
    shop.run(18)
    assert names_of(map(Path, shop.house.keys("deletion_plan"))) >= {metadata.name, *own}


def copy_files(files: Iterable[Path], directory: Path) -> list[str]:
    """Copy data files under other names, and return the addresses of the copies."""
    directory.mkdir(parents=True, exist_ok=True)
    copies = [directory / f"part-{file.name}" for file in sorted(files)]
    for file, copy in zip(sorted(files), copies, strict=True):
        shutil.copy2(file, copy)
    return [f"file://{copy}" for copy in copies]


@pytest.mark.parametrize("how, place", [("adopted", "own"), ("adopted", "shared"), ("history expired", "shared")])
def test_older_files_of_dropped_new_table_wait_with_it(spark: SparkSession, tmp_path: Path, how: str, place: str) -> None:
    """Files older than the first listed commit of the table were adopted, or belong to a commit
    that the catalog expired.
    """
    shop = Shop(spark, tmp_path, "ab")
    shared = {"write.data.path": f"file://{shop.house.warehouse}/shared"}
    shop.lake.table("db.c", days_ago(40), properties=shared).append(days_ago(30))
    new = shop.lake.table("db.new", days_ago(20), properties=shared if place == "shared" else {})
    if how == "adopted":
        with shop.lake.at(days_ago(25)):
            older = copy_files(shop.tables["a"].data_files(), shop.house.warehouse / ("shared" if place == "shared" else "db/new/data"))
        with shop.lake.at(NOW + timedelta(hours=6)):
            new.table.add_files(older)
    else:
        new.append(days_ago(20))
        older = [f"file://{path}" for path in new.data_files()]
        new.append(NOW + timedelta(hours=6))
        with shop.lake.at(NOW + timedelta(hours=7)):
            new.table.maintenance.expire_snapshots().by_id(new.table.snapshots()[0].snapshot_id).commit()
    keys = {str(path_of(address).relative_to(shop.house.warehouse)) for address in older}
    shop.run(1)
    location = f"file://{shop.house.warehouse}/{'shared' if place == 'shared' else 'db/new'}/"
    accept_prefix(shop.house.config, shop.house.clock, location, "ada", "no file of others")
    shop.lake.catalog.drop_table("db.new")
    planned = {day: keys & set((shop.run(day), shop.house.keys("deletion_plan"))[1]) for day in (2, 7, 10)}
    assert planned == {2: set(), 7: set(), 10: keys}


def test_files_adopted_from_predecessor_wait_with_dropped_table(shop: Shop) -> None:
    """The table is dropped, and made again over the same files."""
    files = shop.tables["a"].data_files()
    adopted = {str(path.relative_to(shop.house.warehouse)) for path in files}
    shop.drop("a")
    new = shop.lake.table("db.a", NOW + timedelta(hours=12))
    with shop.lake.at(NOW + timedelta(hours=12)):
        new.table.add_files([f"file://{path}" for path in files])
    shop.run(1)
    shop.lake.catalog.drop_table("db.a")
    planned = {day: adopted & set((shop.run(day), shop.house.keys("deletion_plan"))[1]) for day in (9, 16.5, 18)}
    assert planned == {9: set(), 16.5: adopted, 18: adopted}


@pytest.mark.parametrize("written", [True, False])
def test_unknown_files_are_kept_while_another_catalog_writes_dropped_table(spark: SparkSession, tmp_path: Path, written: bool) -> None:
    shop = Shop(spark, tmp_path, "c")
    data = {"write.data.path": f"file://{shop.house.warehouse}/shared"}
    tables = {name: shop.lake.table(f"db.{name}", days_ago(40), properties=data) for name in "ab"}
    for table in tables.values():
        table.append(days_ago(30))
    metadata = path_of(tables["b"].metadata_location)
    shop.run(1)
    shop.lake.catalog.drop_table("db.b")
    shop.run(2)
    # Another catalog may have written the data file, if it has also written metadata.
    unknown = "shared/00000-0-54dac18a-6746-44b9-97fd-64cd41078f8d.parquet"
    touch(shop.house.warehouse / unknown, NOW + timedelta(days=3))
    if written:
        touch(metadata.with_name("snap-1-0-x.avro"), NOW + timedelta(days=3))
    shop.run(8)
    assert shop.waits_for("b") is not None
    assert (unknown in shop.house.keys("deletion_plan")) != written


def test_unknown_file_written_before_first_run_after_drop_waits(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "c")
    data = {"write.data.path": f"file://{shop.house.warehouse}/shared"}
    tables = {name: shop.lake.table(f"db.{name}", days_ago(40), properties=data) for name in "ab"}
    for table in tables.values():
        table.append(days_ago(30))
    shop.run(1)
    shop.lake.catalog.drop_table("db.b")
    unknown = "shared/00000-0-54dac18a-6746-44b9-97fd-64cd41078f8d.parquet"
    touch(shop.house.warehouse / unknown, NOW + timedelta(days=2))
    planned = {day: unknown in (shop.run(day), shop.house.keys("deletion_plan"))[1] for day in (6, 14)}
    assert planned == {6: False, 14: True}


def test_apply_keeps_dropped_table_if_clock_had_jumped_ahead(shop: Shop) -> None:
    shop.drop("a")
    shop.run(1)
    header = shop.run(30)
    assert shop.list_planned() == {"db/a"}
    shop.house.approve(header)
    shop.house.now = NOW + timedelta(days=1, hours=1)  # the clock is right again
    before = shop.house.files()
    with pytest.raises(GateRefused, match="Check the clock of this host"):
        shop.house.apply(header)
    assert shop.house.files() == before
    assert shop.run(2).rows == 0


@full_suite_only
def test_waiting_time_restarts_if_state_is_restored_from_backup(shop: Shop, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    shop.drop("a")
    shop.run(1)
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    assert shop.run(20).rows == 0
    assert shop.waits_for("a") == "its waiting time ends at 2026-12-17 03:00 UTC, if this run is accepted"


def test_table_that_catalog_hides_is_not_dropped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run without the table gets a wrong answer. If the catalog shows the table by its
    name, it is unreadable instead.
    """
    listed = CatalogClient.list_pointers

    def hide(client: CatalogClient) -> Iterator[Any]:
        return (item for item in listed(client) if getattr(item, "name", "") != "db.a")

    monkeypatch.setattr(CatalogClient, "list_pointers", hide)
    with monkeypatch.context() as patch:
        patch.setattr(CatalogClient, "load", lambda client, identifier: None)
        shop.run(1)
    assert shop.run(9).rows == 0
    assert shop.waits_for("a") == "its catalog still has db.a, but does not list it"


def test_only_table_that_catalog_can_restore_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "abc")
    server = LakekeeperServer(shop.lake, {})
    with serve_catalog(shop.lake, server):
        shop.house.lakes = [shop.lake.config(catalog={"type": "rest", "uri": f"{server.uri}/catalog"})]
        uuid = shop.tables["a"].uuid
        shop.run(0.1)
        for name in "ab":
            shop.drop(name)
        shop.run(1)
        server.deleted = [{"id": uuid, "expiration-date": "2027-01-01T00:00:00Z"}]
        shop.run(9)
        assert shop.list_planned() == {"db/b"}
        assert shop.waits_for("a") == "Lakekeeper can restore it until 2027-01-01T00:00:00Z"
        server.deleted = [{}]
        location = f"file://{shop.house.warehouse}/db/a/"
        accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "ada")
        shop.run(10)
        assert shop.list_planned() == {"db/a"}
        assert shop.waits_for("b") == "its catalog does not show whether it can be restored: the list tabulars has an item without an id"


def test_dropped_table_is_kept_if_link_to_its_metadata_is_broken(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("warehouse")
    lake = LakeBuilder(tmp_path)
    house = Lakehouse(spark, tmp_path, settings={"gates": GATES})
    lake.table("db.a", days_ago(40)).append(days_ago(30))
    lake.table("db.gone", days_ago(40), location=f"file://{tmp_path}/link/db/gone").append(days_ago(30))
    house.lakes = [lake.config()]
    house.plan()
    lake.catalog.drop_table("db.gone")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("link")
    for day in (1, 9):
        house.now = NOW + timedelta(days=day)
        header = house.plan()
    assert not header.failed_gates
    assert not house.planned_actions()
    (reason,) = [item.waits_for for item in house.find_table("orphan_files").summary(OrphanFilesSummary).dropped]
    assert "its metadata file:" in (reason or "")
    assert "repair the link" in (reason or "")
    (tmp_path / "link").unlink()
    house.now = NOW + timedelta(days=10)
    house.plan()
    assert {key.split("/")[1] for key in house.planned_actions()} == {"gone"}


def test_dropped_table_is_kept_while_another_table_is_unreadable(shop: Shop) -> None:
    shop.drop("a")
    shop.run(1)
    path_of(shop.metadata["b"]).rename(shop.house.root / "b.json")
    shop.run(9)
    assert shop.list_planned() == set()
    assert shop.waits_for("a") == "table db.b of lake sales cannot be read and may use its files"
    (shop.house.root / "b.json").rename(path_of(shop.metadata["b"]))
    shop.run(10)
    assert shop.list_planned() == {"db/a"}


@full_suite_only
def test_plan_is_stopped_if_table_becomes_unreadable(shop: Shop) -> None:
    shop.drop("a")
    shop.run(1)
    header = shop.run(9)
    shop.house.approve(header)
    path_of(shop.metadata["b"]).rename(shop.house.root / "b.json")
    assert outcomes(shop.house.apply(header)) == {"changed"}


def test_accepted_dropped_table_is_collected_without_waiting(shop: Shop) -> None:
    table = shop.tables["a"]
    uuid = table.uuid
    shop.drop("a")
    shop.run(1)
    touch(shop.house.warehouse / "db/a/data/00000-0-4f1c2b0e-5d8e-4a52-9d0c-6d2f0a8f9b11.parquet", NOW + timedelta(days=1.5))
    shop.house.now = NOW + timedelta(days=2)
    accept_dead_table(shop.house.config, shop.house.clock, uuid, f"file://{shop.house.warehouse}/db/a/", "ada")
    shop.run(5)
    assert shop.list_planned() == {"db/a"}
    assert len(shop.house.keys("deletion_plan")) == 6


@pytest.mark.parametrize("was_seen", [False, True])
def test_acceptance_before_drop_is_ignored(shop: Shop, monkeypatch: pytest.MonkeyPatch, was_seen: bool) -> None:
    """An acceptance applies only if the last sweep, even of a refused run, found the table dropped."""
    uuid = shop.tables["a"].uuid
    if was_seen:
        shop.drop("a")
        with monkeypatch.context() as patch:
            patch.setitem(shop.house.settings, "gates", {**GATES, "max_live_drop": 0.0})
            assert shop.run(1).failed_gates
    shop.house.now = NOW + timedelta(days=1.5)
    accept_dead_table(shop.house.config, shop.house.clock, uuid, f"file://{shop.house.warehouse}/db/a/", "ada")
    if not was_seen:
        shop.drop("a")
    shop.run(2)
    shop.run(5)
    assert shop.list_planned() == ({"db/a"} if was_seen else set())
    if not was_seen:
        assert shop.waits_for("a") == "its waiting time ends at 2026-11-29 03:00 UTC"
        accept_dead_table(shop.house.config, shop.house.clock, uuid, f"file://{shop.house.warehouse}/db/a/", "ada")
        shop.run(6)
        assert shop.list_planned() == {"db/a"}


def test_acceptance_allows_every_spelling_of_table_and_location(shop: Shop) -> None:
    config, clock, uuid, place = shop.house.config, shop.house.clock, shop.tables["a"].uuid, f"{shop.house.warehouse}/db/a"
    for spelling in (place, f"{place}/", f"file://{place}", f"file:{place}/"):
        _, record = accept_dead_table(config, clock, f"urn:uuid:{uuid.upper()}", spelling, "ada")
        assert (record.table_uuid, record.prefix) == (uuid, "db/a/")
    with pytest.raises(UsageError, match="no run found a dropped table"):
        find_dropped_locations(config, "db.a")
    shop.drop("a")
    shop.run(1)
    for name in (uuid, "db.a", "sales: db.a", "sales/db.a"):
        assert find_dropped_locations(config, name) == (uuid, [f"file://{place}/"])
    assert "The next run plans the files of the dropped table db.a, 5 files" in (describe_dead_table(config, STORAGE, record) or "")


def test_dropped_table_with_two_claims_needs_both_accepted(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "b")
    data = f"file://{shop.house.warehouse}/other/a"
    table = shop.lake.table("db.a", days_ago(40), properties={"write.data.path": data})
    table.append(days_ago(30))
    uuid = table.uuid
    shop.run(1)
    shop.lake.catalog.drop_table("db.a")
    shop.run(2)
    _, locations = find_dropped_locations(shop.house.config, uuid)
    assert locations == [f"file://{shop.house.warehouse}/db/a/", f"{data}/"]
    for location, planned in zip(locations, (set(), {"db/a", "other/a"}), strict=True):
        shop.house.now += timedelta(hours=1)
        _, record = accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "ada")
        is_part = "Accept that location too" in (describe_dead_table(shop.house.config, STORAGE, record) or "")
        assert is_part == (not planned)
        shop.run(4 if planned else 3)
        assert shop.list_planned() == planned


@full_suite_only
def test_dropped_setting_keep_keeps_files_of_dropped_tables(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "ab", retention={"dropped": "keep"})
    shop.drop("a")
    shop.run(1)
    assert shop.run(400).rows == 0
    assert shop.waits_for("a") == "`retention.dropped` is keep"


@full_suite_only
def test_files_of_dropped_table_outside_patterns_are_kept(shop: Shop) -> None:
    shop.drop("a")
    shop.run(1)
    shop.house.lakes = [shop.lake.config(tables=["db.b"])]
    assert shop.run(9).rows == 0
    assert shop.waits_for("a") == "no pattern of `tables` matches it"


@pytest.mark.parametrize("moment", ["after the run", "after the freeze", "before the second run of the date"])
def test_files_are_kept_if_link_points_to_catalog_without_table(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    shop = Shop(spark, tmp_path, "ab")
    house, link = shop.house, tmp_path / "current"
    for name in ("blue", "green"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "catalog.db", tmp_path / name / "catalog.db")
    with sqlite3.connect(tmp_path / "green" / "catalog.db") as database:
        database.execute("delete from iceberg_tables where table_name = 'a'")
    link.symlink_to("blue")
    house.lakes = [shop.lake.config(catalog={"type": "sql", "uri": f"sqlite:///{link}/catalog.db"})]
    house.now += timedelta(days=0.1)
    house.mark()
    if moment != "after the freeze":
        house.sweep()
    link.unlink()
    link.symlink_to("green")
    if moment == "after the freeze":
        house.sweep()
    elif moment == "before the second run of the date":
        shop.run(0.1)
        assert {row["table_name"] for row in house.rows("lake_refs", "sales")} == {"db.b"}
    shop.run(1)
    assert shop.run(9).rows == 0
    assert shop.waits_for("a") == "lake sales reads another catalog than the run that knew the table"


def test_accepted_table_of_a_former_catalog_is_collected(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "ab")
    link = tmp_path / "current.db"
    link.symlink_to("catalog.db")
    shop.house.lakes = [shop.lake.config(catalog={"type": "sql", "uri": f"sqlite:///{link}"})]
    shop.run(1)
    shop.drop("a")
    shop.run(2)
    uuid, (location,) = find_dropped_locations(shop.house.config, "db.a")
    accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "of the former catalog")
    shutil.copy(tmp_path / "catalog.db", tmp_path / "next.db")
    link.unlink()
    link.symlink_to("next.db")
    assert shop.run(12).rows == 0
    assert shop.waits_for("a") == "lake sales reads another catalog than the run that knew the table"
    accept_dead_table(shop.house.config, shop.house.clock, uuid, location, "ada")
    shop.run(13)
    assert shop.list_planned() == {"db/a"}


def test_dropped_table_is_kept_if_another_realm_of_server_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Polaris selects one of its catalogs by a header. The other realm lacks the table."""
    shop = Shop(spark, tmp_path, "ab")
    with serve_catalog(shop.lake) as server:

        def read_realm(name: str, token: str) -> None:
            catalog = {"type": "rest", "uri": server.uri, "header.Polaris-Realm": name, "header.Authorization": f"Bearer {token}"}
            shop.house.lakes = [shop.lake.config(catalog=catalog)]

        read_realm("blue", "1")
        shop.run(1)
        read_realm("green", "1")
        shop.drop("a")
        for day in (2, 12):
            assert shop.run(day).rows == 0
            assert shop.waits_for("a") == "lake sales reads another catalog than the run that knew the table"
        read_realm("blue", "2")
        shop.run(13)
        assert str(shop.waits_for("a")).startswith("its waiting time ends at 2026-12-10 03:00 UTC")


def test_former_catalog_files_inside_listed_table_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})
    lake, shared = LakeBuilder(tmp_path), {"write.data.path": f"file://{house.warehouse}/shared"}
    a, b = (lake.table(f"db.{name}", days_ago(60), properties=shared) for name in "ab")
    for table in (a, b):
        table.append(days_ago(50))
    files = set(map(house.key, a.data_files()))
    shutil.copy(tmp_path / "catalog.db", tmp_path / "former.db")
    house.lakes = [lake.config(catalog={"type": "sql", "uri": f"sqlite:///{tmp_path}/former.db"})]
    house.plan()
    house.lakes = [lake.config()]
    lake.catalog.drop_table("db.a")
    for day in (1, 12):
        house.now = NOW + timedelta(days=day)
        house.plan()
        assert not files & house.planned_actions().keys()


def test_link_changed_during_freeze_stops_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(spark, tmp_path, "a")
    link = tmp_path / "current.db"
    shutil.copy(tmp_path / "catalog.db", tmp_path / "green.db")
    link.symlink_to("catalog.db")
    shop.house.lakes = [shop.lake.config(catalog={"type": "sql", "uri": f"sqlite:///{link}"})]

    def freeze_and_re_point(*arguments: Any) -> Any:
        link.unlink()
        link.symlink_to("green.db")
        return freeze(*arguments)

    freeze = lake_refs.freeze_lake
    monkeypatch.setattr(lake_refs, "freeze_lake", freeze_and_re_point)
    with pytest.raises(LakeUnreadable, match="was changed to another catalog while the run read it"):
        shop.run(1)


def test_waiting_time_starts_by_storage_clock_if_host_is_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path, "ab")
    shop.drop("a")
    shop.house.now += timedelta(days=1)
    shop.house.mark()
    memory, now = table_memory.read_memory(shop.house.run_context(), STORAGE), datetime.now(UTC) + timedelta(days=10)
    monkeypatch.setattr(table_memory, "read_memory", lambda *_: memory)
    monkeypatch.setattr(type(shop.house.run_context().store(STORAGE)), "now", lambda _: now)
    context = replace(shop.house.run_context(), clock=Clock())
    refs = [context.table(LAKE_REFS, "sales")]
    claims, _ = effective_claims(context, STORAGE, [*refs, context.table(LIVE_FILES, "sales")])
    remembered, _ = table_memory.update_memory(context, STORAGE, claims, refs)
    assert {item.table_name: item.gone_since for item in remembered} == {"db.a": now, "db.b": None}


def test_screens_show_dropped_table_and_its_state(shop: Shop) -> None:
    shop.drop("a")
    key = min(key for key in shop.house.files() if key.startswith("db/a/data/"))
    shop.run(1)
    state = "waits: its waiting time ends at 2026-11-28 03:00 UTC, if this run is accepted"
    (row,) = read_dropped_tables(shop.house.run_context(), shop.house.storage).to_pylist()
    assert {"table": "sales: db.a", "state": state, "gone_since": "2026-11-21 03:00Z"}.items() <= short_row(row, "sales").items()
    assert state in render(load_report(shop.house.run_context()))
    assert state in dropped_tables_markdown(shop.house.find_table("orphan_files").summary(OrphanFilesSummary))
    (waiting,) = explain(shop.house.run_context(), key)
    assert waiting.verdict == "dropped"
    assert waiting.sentence.startswith("It belongs to table db.a of lake sales, which its catalog no longer lists, and waits: its waiting")
    header = shop.run(9)
    rows = summarize_tables(shop.house.run_context(), ["sales"], [shop.house.storage], with_dropped=True)
    assert {row.table: row.garbage.files for row in rows}["db.a (dropped)"] == header.by_reason["dropped"].files
    (planned,) = explain(shop.house.run_context(), key)
    assert planned.verdict == "planned"
    assert "table db.a of lake sales, which its catalog no longer lists (not found by the run of 2026-11-21 03:00 UTC)" in planned.sentence


@full_suite_only
def test_dropped_table_is_kept_while_unknown_table_is_unreadable(shop: Shop) -> None:
    """The unreadable table may be the dropped table, renamed and damaged."""
    uuid, metadata = shop.tables["a"].uuid, shop.drop("a")
    shop.run(1)
    with sqlite3.connect(shop.house.root / "catalog.db") as database:
        values = (shop.lake.catalog_name, "db", "renamed", f"file://{shop.house.root}/missing/x.metadata.json")
        database.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES (?, ?, ?, ?)", values
        )
    shop.run(2)
    shop.house.now = NOW + timedelta(days=2.1)
    set_table_aside(shop.house.config, shop.house.clock, "db.renamed", "ada")
    assert shop.run(10).rows == 0
    assert shop.waits_for("a") == "table db.renamed of lake sales cannot be read and may use its files"
    accept_dead_table(shop.house.config, shop.house.clock, uuid, f"file://{path_of(metadata).parents[1]}", "ada")
    shop.run(11)
    assert shop.list_planned() == {"db/a"}
