"""Metadata of a known table that another catalog wrote refuses the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.lakes.iceberg.metadata import parse_identity
from gc_assets.lakes.lineage import Lineage, ListedSnapshot
from gc_assets.stages.records.dead_tables import accept_dead_table
from gc_assets.stages.sweep.metadata_lineage import Chain, Suspect, follow_chain
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = in_turn

ALL = {"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}}


def file(number: int) -> str:
    return f"file:///t/metadata/{number}.metadata.json"


def entry(number: int, *log: int) -> Lineage:
    """A metadata file whose time is its number."""
    return Lineage(("file:///t",), tuple((file(item), item) for item in log), number)


def chain_of(files: Mapping[int, Lineage], *current: int) -> Chain:
    by_address = {file(number): item for number, item in files.items()}
    return follow_chain([file(number) for number in current], by_address.get, KeyResolver([]))


def numbers(chain: Chain) -> set[int]:
    return {int(address.rpartition("/")[2].partition(".")[0]) for _, address in chain.files}


def test_metadata_chain_continues_in_log_of_oldest_file() -> None:
    chain = chain_of({9: entry(9, 7, 8), 7: entry(7, 5, 6), 5: entry(5)}, 9)
    assert numbers(chain) == {5, 6, 7, 8, 9}
    assert chain.has_all_since(5)


def test_metadata_chain_is_complete_after_oldest_logged_file() -> None:
    chain = chain_of({9: entry(9, 7, 8)}, 9)
    assert numbers(chain) == {7, 8, 9}
    assert not chain.has_all_since(7)
    assert chain.has_all_since(8)


def test_metadata_chain_is_unknown_before_file_without_log() -> None:
    snapshots = (ListedSnapshot("1", None, 1), ListedSnapshot("2", "1", 2))
    chain = chain_of({9: entry(9, 8), 8: Lineage(("file:///t",), (), 8, snapshots)}, 9)
    assert not chain.has_all_since(8)
    assert chain.has_all_since(9)


def test_metadata_chain_without_readable_file_is_unknown() -> None:
    assert not chain_of({}, 9).has_all_since(100)


def test_metadata_chain_is_unknown_before_file_with_damaged_log() -> None:
    damaged = parse_identity("7", json.dumps({"table-uuid": "a", "metadata-log": [{"metadata-file": "6"}]}).encode()).lineage
    assert not chain_of({9: damaged}, 9).has_all_since(100)
    chain = chain_of({9: entry(9, 7, 8), 7: damaged}, 9)
    assert not chain.has_all_since(7)
    assert chain.has_all_since(8)


def test_metadata_chains_of_several_catalogs_are_joined() -> None:
    chain = chain_of({9: entry(9, 2, 3), 8: entry(8, 3, 4), 2: entry(2, 1), 3: entry(3, 1, 2), 1: entry(1)}, 9, 8)
    assert numbers(chain) == {1, 2, 3, 4, 8, 9}


def test_few_metadata_files_are_read_for_stream_of_many_commits() -> None:
    """Of 20,000 files that commits put, the last 500 exist. The log of each lists 100."""
    existing, reads = range(19_500, 20_000), list[str]()
    files = {file(number): entry(number, *range(number - 100, number)) for number in existing}

    def read(address: str) -> Lineage | None:
        reads.append(address)
        return files.get(address)

    chain = follow_chain([file(number) for number in reversed(range(20_000))], read, KeyResolver([]))
    assert len(reads) <= 30
    assert numbers(chain) == set(range(20_000))
    assert chain.has_all_since(19_500)


def test_metadata_chain_with_unreadable_file_has_error() -> None:
    def read(address: str) -> Lineage:
        raise PermissionError(f"{address}: access denied")

    assert follow_chain([file(9)], read, KeyResolver([])).error == f"{file(9)}: access denied"


@pytest.mark.parametrize("storages, error", [((), None), ((("w", "file:///t/"),), f"{file(7)}: access denied")])
def test_metadata_chain_ends_at_unreadable_file_outside_all_storages(storages: Sequence[tuple[str, str]], error: str | None) -> None:
    """The table was once in a bucket that the collector may not read."""

    def read(address: str) -> Lineage:
        if address == file(7):
            raise PermissionError(f"{address}: access denied")
        return entry(9, 7, 8)

    chain = follow_chain([file(9)], read, KeyResolver(storages))
    assert chain.error == error
    assert not chain.has_all_since(7)
    assert chain.has_all_since(8)


def suspect(
    previous: int | None, head: str = "b", parent: str | None = "a", *, parent_ms: int | None = None, previous_ms: int | None = None
) -> Suspect:
    """Metadata in the location of the table. Its times are by default that of the file before it."""
    at_ms = previous if previous_ms is None else previous_ms
    return Suspect(
        key="t/metadata/x.metadata.json",
        file=("", "file:///t/metadata/x.metadata.json"),
        location=("", "file:///t/"),
        previous=None if previous is None else ("", file(previous)),
        previous_ms=at_ms,
        in_own_location=False,
        head=head,
        parent=parent,
        parent_ms=at_ms if parent_ms is None else parent_ms,
    )


def commits(*at_ms: int) -> tuple[ListedSnapshot, ...]:
    """Snapshots of one branch, whose ids are their times."""
    return tuple(ListedSnapshot(str(at), str(before) if before else None, at) for before, at in zip((0, *at_ms), at_ms, strict=False))


def test_older_file_is_foreign_if_table_lacks_its_snapshots() -> None:
    """The log of the production table lists only the last files, but its metadata lists all
    snapshots since 2.
    """
    chain = chain_of({9: replace(entry(9, 7, 8), snapshots=commits(2, 4, 6, 7, 8, 9), head="9")}, 9)
    assert suspect(5).is_outside(chain, ())
    assert not suspect(5, head="b", parent="4").is_outside(chain, ())
    assert not suspect(5, head="4", parent="2").is_outside(chain, ())
    assert not suspect(1).is_outside(chain, ())


def test_older_failed_commit_with_several_snapshots_is_not_foreign() -> None:
    """An overwrite of pyiceberg adds two snapshots, both later than the file that it follows."""
    chain = chain_of({9: replace(entry(9, 7, 8), snapshots=commits(2, 4, 6, 7, 8, 9), head="9")}, 9)
    assert not suspect(4, parent_ms=5).is_outside(chain, ())


def test_file_of_unreadable_history_is_foreign_unless_it_follows_known_file() -> None:
    def read(address: str) -> Lineage:
        raise PermissionError(f"{address}: access denied")

    chain = follow_chain([file(9)], read, KeyResolver([]))
    assert suspect(5, parent=None).is_outside(chain, ()), "its log lists a file that may be one of the table"
    assert not suspect(9, parent=None).is_outside(chain, ())


@pytest.mark.spark
def test_unreadable_metadata_history_refuses_plan(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(spark, tmp_path)
    tables.commit(tables.register(), 40, 35)
    tables.commit(tables.table, 30)

    def read(reader: object, address: str) -> Lineage:
        raise PermissionError(f"{address}: access denied")

    monkeypatch.setattr("gc_assets.stages.sweep.metadata_lineage._Reader.__call__", read)
    message = tables.message()
    assert "access denied. Run again" in message
    assert f"gc-assets accept {tables.table.uuid} file://{tables.house.warehouse}/db/t/" in message


class Tables:
    """A table of a configured catalog, with a second catalog in the same warehouse."""

    def __init__(self, spark: SparkSession, path: Path, **properties: str) -> None:
        self.house = Lakehouse(spark, path, settings=ALL)
        self.lake = LakeBuilder(self.house.root)
        self.table = self.lake.table("db.t", days_ago(60), properties=properties)
        self.table.append(days_ago(50))
        self.table.append(days_ago(45))
        self.lake.table("db.other", days_ago(60)).append(days_ago(45))
        self.house.lakes = [self.lake.config("sales")]

    def register(self) -> TableBuilder:
        """Register the table in the second catalog."""
        other = LakeBuilder(self.house.root, catalog_name="second", catalog_file="second.db")
        other.catalog.create_namespace("db")
        return other.register("db.t", self.table.metadata_location)

    def commit(self, table: TableBuilder, *days: float) -> None:
        assert isinstance(table.lake, LakeBuilder)
        table.lake.keep_times()
        for day in days:
            table.append(days_ago(day))

    def message(self) -> str:
        """Run all stages and return the message of the failed gate, or "" if all passed."""
        header = self.house.plan()
        assert self.house.failed_gates(header) <= {"foreign_metadata"}
        return next((gate.message for gate in header.failed_gates), "")


@pytest.mark.spark
def test_table_written_earlier_through_second_catalog_refuses_plan(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    second = tables.register()
    tables.commit(second, 40, 35)
    tables.commit(tables.table, 30)
    message = tables.message()
    assert Path(second.metadata_location).name in message
    assert Path(tables.table.metadata_location).name in message
    assert f"gc-assets accept {second.uuid} file://{tables.house.warehouse}/db/t/" in message


@pytest.mark.spark
def test_second_catalog_with_only_young_metadata_refuses_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A stream with `delete-after-commit` has no other metadata, but data that is older."""
    settings = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    tables = Tables(spark, tmp_path, **settings)
    second = tables.register()
    tables.commit(second, 20)
    tables.commit(tables.table, 18)
    tables.commit(second, 15, 10, 5, 2, 1)
    assert f"table {second.uuid}, which another catalog writes too" in tables.message()


@pytest.mark.spark
@pytest.mark.parametrize("last", [(0.02, 0.01), (0.035, 0.03, 0.02, 0.01)], ids=["log", "snapshots"])
def test_second_catalog_with_metadata_after_freeze_refuses_plan(spark: SparkSession, tmp_path: Path, last: tuple[float, ...]) -> None:
    """A stream with many commits an hour keeps no older metadata, but its log or its snapshots are older."""
    settings = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    tables = Tables(spark, tmp_path, **settings)
    second = tables.register()
    tables.commit(second, 20)
    tables.commit(tables.table, 18)
    tables.commit(second, 15, 10, 5, 2, 1, *last)
    tables.commit(tables.table, 0.005)
    assert f"table {second.uuid}, which another catalog writes too" in tables.message()


@pytest.mark.spark
@pytest.mark.parametrize("deletes", ["true", "false"])
def test_commits_after_freeze_do_not_refuse_plan(spark: SparkSession, tmp_path: Path, deletes: str) -> None:
    """For the run, they look like those of a second catalog that the last known file precedes."""
    settings = {"write.metadata.delete-after-commit.enabled": deletes, "write.metadata.previous-versions-max": "4"}
    tables = Tables(spark, tmp_path, **settings)
    tables.commit(tables.table, 30, 20, 0.038, 0.037)
    tables.commit(tables.register(), 0.03, 0.02, 0.01)
    assert not tables.message()


@pytest.mark.spark
def test_accepted_table_of_second_catalog_is_collected_until_written_to(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    house, second = tables.house, tables.register()
    tables.commit(second, 40, 35)
    tables.commit(tables.table, 30)
    accept_dead_table(house.config, house.clock, second.uuid, f"file://{house.warehouse}/db/t/", "ada")
    assert not tables.message()
    assert {house.key(path) for path in second.data_files() - tables.table.data_files()} <= set(house.planned_actions())
    house.now += timedelta(days=5)
    tables.commit(second, -1, -1)
    assert second.uuid in tables.message()


@pytest.mark.spark
def test_copy_of_table_inside_its_location_refuses_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's rewrite_table_path makes a copy with the same uuid and other addresses."""
    tables = Tables(spark, tmp_path)
    place = tables.house.warehouse / "db/t/backup"
    other = LakeBuilder(tables.house.root, catalog_name="backup", catalog_file="backup.db")
    copy = other.table("db.t", days_ago(44), location=f"file://{place}")
    copy.append(days_ago(43))
    for path in (place / "metadata").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "table-uuid": tables.table.uuid}))
        os.utime(path, (days_ago(43).timestamp(), days_ago(43).timestamp()))
    tables.commit(tables.table, 30)
    assert f"gc-assets accept {tables.table.uuid} file://{place}/" in tables.message()


@pytest.mark.spark
@pytest.mark.parametrize("names", ["all", "location"])
def test_metadata_staged_for_outside_copy_does_not_refuse_plan(spark: SparkSession, tmp_path: Path, names: str) -> None:
    """Spark's rewrite_table_path stages metadata of the same table that references only the
    location of the copy.
    """
    tables = Tables(spark, tmp_path)
    tables.commit(tables.register(), 40, 35)
    staging = tables.house.warehouse / "db/t/metadata/copy-table-staging-1"
    staging.mkdir()
    place, copy = f"file://{tables.house.warehouse}/", "s3://copy/"
    for path in staging.parent.glob("*.json"):
        text = path.read_text()
        document = json.loads(text.replace(place, copy))
        if names == "location":
            document["snapshots"] = json.loads(text)["snapshots"]
        if document["metadata-log"]:
            target = staging / path.name
            target.write_text(json.dumps(document))
            os.utime(target, (days_ago(33).timestamp(), days_ago(33).timestamp()))
        if document["last-updated-ms"] > days_ago(41).timestamp() * 1000:
            path.unlink()  # metadata of the second catalog
    tables.commit(tables.table, 30)
    assert bool(tables.message()) == (names == "location")


@pytest.mark.spark
@pytest.mark.parametrize("deletes", ["true", "false"])
def test_long_history_of_one_catalog_does_not_refuse_plan(spark: SparkSession, tmp_path: Path, deletes: str) -> None:
    settings = {"write.metadata.delete-after-commit.enabled": deletes, "write.metadata.previous-versions-max": "2"}
    tables = Tables(spark, tmp_path, **settings)
    tables.commit(tables.table, 40, 39, 38, 37, 36, 35)
    tables.table.leftovers(days_ago(35), 2)
    assert not tables.message()
    if deletes == "false":
        assert any(key.endswith(".metadata.json") for key in tables.house.planned_actions())


@pytest.mark.spark
def test_old_metadata_passes_after_older_metadata_was_deleted(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path, **{"write.metadata.previous-versions-max": "2"})
    tables.commit(tables.table, 40, 39, 38, 37)
    assert not tables.message()
    tables.house.approve_and_apply(tables.house.plan())
    tables.commit(tables.table, 30, 29, 28)
    tables.house.now += timedelta(days=1)
    assert not tables.message()


@pytest.mark.spark
def test_failed_commit_does_not_refuse_plan(spark: SparkSession, tmp_path: Path) -> None:
    """One commit on a file of the configured catalog may be that of a writer that crashed."""
    tables = Tables(spark, tmp_path)
    tables.commit(tables.register(), 40)
    tables.commit(tables.table, 30)
    assert not tables.message()


@pytest.mark.spark
def test_older_reregistered_metadata_passes_if_run_saw_newer_file(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    older = tables.table.metadata_location
    tables.commit(tables.table, 40, 39, 38)
    assert not tables.message()
    catalog: SqlCatalog = tables.lake.catalog
    catalog.drop_table("db.t")
    catalog.register_table("db.t", older)
    tables.commit(tables.table, 20)
    tables.house.now += timedelta(days=1)
    assert not tables.message()


@pytest.mark.spark
def test_metadata_files_of_former_catalog_refuse_plan(spark: SparkSession, tmp_path: Path) -> None:
    """The lake reads the new catalog, while programs still read the former one."""
    tables = Tables(spark, tmp_path)
    other, former = LakeBuilder(tables.house.root, catalog_name="second", catalog_file="second.db"), tables.table
    other.catalog.create_namespace("db")
    second = other.register("db.t", former.metadata_location)
    other.register("db.other", tables.lake.catalog.load_table("db.other").metadata_location)
    tables.commit(former, 40, 39, 38)
    assert not tables.message()
    tables.house.lakes = [other.config("sales")]
    tables.commit(second, 20)
    tables.house.now += timedelta(days=1)
    assert second.uuid in tables.message()
