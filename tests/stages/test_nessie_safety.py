"""Runs that are refused, files that are kept for safety, and changes between plan and purge.

Together with the scenarios, these tests cover the known cases in which nessie-gc loses or leaks files.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.tables import publish
from gc_assets.stages.mark import commit_graph
from gc_assets.stages.records.set_aside import set_table_aside
from gc_assets.state.journal import PublishedTable
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder, delete, iceberg_table, open_table, put
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse

pytestmark = [pytest.mark.spark, in_turn]

START = next_noon(days=2)
HEADS = {"default": "1"}


@pytest.fixture
def house(spark: SparkSession, nessie: Server, tmp_path: Path) -> Lakehouse:
    return Lakehouse(spark, tmp_path, now=START, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})


@pytest.fixture
def builder(house: Lakehouse, nessie: Server) -> NessieBuilder:
    return NessieBuilder(nessie.uri, house.warehouse)


def local(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def metadata_of(builder: NessieBuilder, name: str, at: str = "main") -> Path:
    content = builder.content(name.split("."), at)
    assert content is not None
    return local(content["metadataLocation"])


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_unreadable_metadata_of_a_head_makes_its_table_unreadable(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    kept = {house.key(path) for path in main.new("db.t").leftovers(LONG_AGO)}
    garbage = {house.key(path) for path in main.new("db.other").leftovers(LONG_AGO)}
    house.lakes = [builder.config(retention=HEADS, missing_history="tolerate")]
    path = metadata_of(builder, "db.t")
    content = path.read_text()
    path.unlink()
    assert path.name in read_error(house, "db.t")
    assert_planned(house, garbage, kept)
    path.write_text(content[: len(content) // 2])
    assert re.search(rf"{path.name}.*not a complete JSON document", read_error(house, "db.t"))
    assert_planned(house, garbage, kept)
    path.write_text(content)
    assert not house.plan().unreadable


def read_error(house: Lakehouse, table: str | None = None) -> str:
    """Plan with an unreadable table or lake that no run has read. Return why it is unreadable."""
    [unreadable] = house.plan().unreadable
    assert (unreadable.table_name, unreadable.good_on) == (table, None)
    assert table is not None or not house.planned_actions()
    return unreadable.why


def assert_planned(house: Lakehouse, garbage: set[str], kept: set[str]) -> None:
    planned = set(house.planned_actions())
    assert garbage <= planned
    assert kept
    assert not kept & planned


class SharedRun:
    """One run over several independent tables, each for one of the tests."""

    def __init__(self, spark: SparkSession, nessie: Server, root: Path) -> None:
        nessie.reset()
        self.house = Lakehouse(spark, root, now=START, settings={"gates": {"max_delete_share": 1}})
        self.builder = NessieBuilder(nessie.uri, self.house.warehouse)
        self.main = self.builder.on()
        self.add_unsupported_contents()
        self.add_spellings()
        self.add_listed_snapshots()
        self.add_expired_history()
        self.add_another_table()
        self.main.date_files(LONG_AGO)
        claims = [f"file://{self.house.warehouse}/drop"]
        self.house.lakes = [self.builder.config(retention=HEADS, claims=claims)]
        self.header = self.house.plan()
        self.planned = self.house.keys("deletion_plan")
        self.live = self.house.live()

    def keys(self, *paths: Path) -> set[str]:
        return {self.house.key(path) for path in paths}

    def add_unsupported_contents(self) -> None:
        """Create a Delta table and two functions, two of them inside the location of a table with garbage."""
        table = self.main.new("db.around", location=f"file://{self.house.warehouse}/lake")
        self.around = table.leftovers(LONG_AGO)
        inside = self.house.warehouse / "lake" / "delta"
        log = write(inside / "_delta_log" / "00000000000000000000.json")
        part = write(inside / "part-0.parquet")
        udf = write(self.house.warehouse / "lake" / "udf" / "metadata" / "u.json")
        self.unlisted = (log, part, udf)
        delta = {"type": "DELTA_LAKE_TABLE", "metadataLocationHistory": [f"file://{log}"], "checkpointLocationHistory": []}
        self.builder.put(["d"], delta)
        self.builder.put(["f"], {"type": "UDF", "metadataLocation": f"file://{udf}", "versionId": "1", "signatureId": "1"})
        self.builder.put(["g"], {"type": "UDF", "sqlText": "select 1", "dialect": "spark"})

    def add_spellings(self) -> None:
        """Create locations without a scheme and with one slash, and files under a claim and under none."""
        warehouse = self.house.warehouse
        bare = self.main.new("db.bare", location=str(warehouse / "bare"))
        self.main.new("db.one", location=f"file:{warehouse}/one")
        self.lost = [*bare.leftovers(LONG_AGO), write(warehouse / "one" / "data" / "x.parquet")]
        self.unowned = write(warehouse / "unclaimed" / "x.parquet")
        self.claimed = write(warehouse / "drop" / "x.parquet")

    def add_listed_snapshots(self) -> None:
        """Create a table of a native catalog, whose metadata lists two snapshots and a native tag."""
        self.native = NessieBuilder(self.builder.uri, self.house.warehouse, listed="all").on()
        table = self.native.new("db.listed", location=f"file://{self.house.warehouse}/listed")
        table.tag(LONG_AGO, "audit", str(table.table.metadata.current_snapshot_id))
        table.overwrite(LONG_AGO)
        self.listed = metadata_of(self.builder, "db.listed")

    def add_expired_history(self) -> None:
        """Create a version that only an expired commit shows, and delete one of its files."""
        self.main.new("db.t")
        self.expired, self.last = metadata_of(self.builder, "db.t"), self.builder.head()
        self.main.append("db.t")
        self.leftovers = self.main.existing("db.t").leftovers(LONG_AGO)
        document = json.loads(self.expired.read_text())
        local(document["snapshots"][0]["manifest-list"]).unlink()

    def add_another_table(self) -> None:
        """Put the metadata of one table under the content id of another."""
        self.main.new("db.mine")
        self.main.new("db.other")
        mine, other = self.builder.content(["db", "mine"]), self.builder.content(["db", "other"])
        assert mine is not None
        assert other is not None
        self.replaced, self.taken = local(mine["metadataLocation"]), other["metadataLocation"]
        self.main.drop("db.other")
        self.builder.commit([put(["db", "mine"], {**other, "id": mine["id"]})])


@pytest.fixture(scope="module")
def shared_run(spark: SparkSession, nessie_server: Server, tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    return SharedRun(spark, nessie_server, tmp_path_factory.mktemp("shared"))


def test_run_over_valid_tables_passes_all_gates(shared_run: SharedRun) -> None:
    assert shared_run.header.failed_gates == []


def test_unsupported_contents_are_kept_and_reported(shared_run: SharedRun) -> None:
    assert not shared_run.keys(*shared_run.unlisted) & shared_run.planned
    assert shared_run.keys(*shared_run.around) <= shared_run.planned
    assert sum("cannot be listed" in note for note in shared_run.house.summary("live_files", "shop")["notes"]) == 2


def test_files_of_location_with_several_spellings_are_collected(shared_run: SharedRun) -> None:
    mine = {key for key in shared_run.planned if key.startswith(("bare/", "one/", "drop/"))}
    versions = {key for key in mine if "/metadata/00000-" in key and key.endswith(".metadata.json")}
    assert len(versions) == 2
    assert mine - versions == shared_run.keys(*shared_run.lost, shared_run.claimed)
    assert shared_run.house.key(shared_run.unowned) not in shared_run.planned


def test_iceberg_tags_and_listed_snapshots_stay_readable(shared_run: SharedRun) -> None:
    opened = open_table(str(shared_run.listed))
    assert {shared_run.house.key(file) for file in opened.inspect.all_files()["file_path"].to_pylist()} <= shared_run.live
    assert {key.rpartition(".")[2] for key in shared_run.planned if key.startswith("listed/")} == {"json"}


def test_plan_contains_last_commit_of_expired_files(shared_run: SharedRun) -> None:
    rows = {row["key"]: row for row in shared_run.house.rows("orphan_files")}
    old = rows[shared_run.house.key(shared_run.expired)]
    assert (old["reason"], old["last_commit_id"]) == ("expired", shared_run.last)
    assert {rows[key]["reason"] for key in shared_run.keys(*shared_run.leftovers)} == {"unreferenced"}
    assert set(rows) == shared_run.planned


def test_former_table_metadata_of_reused_content_is_live(shared_run: SharedRun) -> None:
    opened = open_table(shared_run.taken)
    assert {shared_run.house.key(file) for file in opened.inspect.files()["file_path"].to_pylist()} <= shared_run.live
    assert shared_run.house.key(shared_run.replaced) in shared_run.planned


def test_missing_older_metadata_makes_its_table_unreadable_unless_tolerated(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t").leftovers(LONG_AGO)
    older = metadata_of(builder, "db.t")
    main.append("db.t")
    main.append("db.t")
    older.unlink()
    house.lakes = [builder.config()]
    assert older.name in read_error(house, "db.t")
    assert not house.planned_actions()
    house.lakes = [builder.config(missing_history="tolerate")]
    header = house.plan()
    assert header.failed_gates == []
    assert any(older.name in note for note in house.summary("live_files", "shop")["notes"])


def test_gates_refuse_if_all_tables_were_dropped(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    house.lakes = [builder.config(retention=HEADS)]
    assert not house.failed_gates(house.plan())
    house.now += timedelta(days=1)
    main.drop("db.t")
    assert {"lakes_present", "live_drop"} & house.failed_gates(house.plan())


def test_table_in_unconfigured_storage_makes_only_itself_unreadable(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    garbage = {house.key(path) for path in main.new("db.t").leftovers(LONG_AGO)}
    near = {house.key(path) for path in main.new("db.near", location=f"file://{house.warehouse}/far").leftovers(LONG_AGO)}
    builder.put(["far"], iceberg_table("s3://unconfigured/far/metadata/1.metadata.json"))
    house.lakes = [builder.config(retention=HEADS)]
    assert "s3://unconfigured/far/metadata/1.metadata.json" in read_error(house, "far")
    assert_planned(house, garbage, near)  # the bucket may be another name of the storage
    set_table_aside(house.config, house.clock, "far", "ops", "in another account")
    house.now += timedelta(hours=1)
    [unreadable] = house.plan().unreadable
    assert not unreadable.blocks_purges


def test_path_with_parent_component_makes_its_table_unreadable(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    path = metadata_of(builder, "db.t")
    document = json.loads(path.read_text())
    listed = document["snapshots"][0]["manifest-list"]
    document["snapshots"][0]["manifest-list"] = listed.replace("/metadata/", "/metadata/../metadata/")
    path.write_text(json.dumps(document))
    house.lakes = [builder.config(retention=HEADS)]
    [unreadable] = house.plan().unreadable
    assert unreadable.table_name == "db.t"
    assert "contains `..`" in unreadable.why
    assert not house.planned_actions()


def test_files_of_a_commit_after_the_plan_are_kept(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    old = builder.content(["db", "t"])
    assert old is not None
    newer = main.existing("db.t").leftovers(LONG_AGO)[0]
    in_flight = main.existing("db.t").leftovers(START - timedelta(hours=71))
    main.append("db.t")
    house.lakes = [builder.config(retention=HEADS)]
    header = house.plan()
    assert not {house.key(path) for path in in_flight} & house.keys("deletion_plan")
    assert house.key(old["metadataLocation"]) in house.keys("deletion_plan")
    house.approve(header)
    builder.commit([put(["db", "t"], old)])
    applied = house.apply(header)
    assert ("quarantine", "done") in applied.by_outcome
    assert not (house.warehouse / house.key(newer)).exists()
    assert open_table(old["metadataLocation"]).scan().to_arrow().num_rows > 0


def test_deferred_quarantine_does_not_purge_files_that_are_live_again(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    old = builder.content(["db", "t"])
    assert old is not None
    main.append("db.t")
    main.append("db.t")
    house.settings = {**house.settings, "quarantine": "deferred"}
    house.lakes = [builder.config(retention=HEADS)]
    before = house.files()
    house.approve_and_apply(house.plan())
    assert house.files() == before
    builder.branch("revived")
    builder.commit([put(["db", "t"], old)], "revived")
    house.now += timedelta(days=1)
    house.plan()
    actions = house.planned_actions()
    assert actions[house.key(old["metadataLocation"])] == "restore"
    assert "purge" in actions.values()


def commit_unlisted_snapshot(builder: NessieBuilder, name: str) -> dict[str, Any]:
    """Commit a table with a snapshot that its metadata does not list, and return its content before."""
    known = builder.content(name.split("."))
    assert known is not None
    builder.commit([put(name.split("."), {**known, "snapshotId": 4711})])
    return known


def test_content_with_snapshot_missing_from_metadata_is_unreadable(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    main.new("db.other")
    of_bad = {house.key(path) for path in main.existing("db.t").leftovers(LONG_AGO)}
    garbage = {house.key(path) for path in main.existing("db.other").leftovers(LONG_AGO)}
    known = commit_unlisted_snapshot(builder, "db.t")
    house.lakes = [builder.config(retention={"default": "90d"})]
    for day, operation in enumerate((None, put(["db", "t"], known), delete(["db", "t"]))):
        if operation is not None:
            builder.commit([operation])
        house.now = START + timedelta(days=day)
        [unreadable] = house.plan().unreadable
        assert (unreadable.table_name, unreadable.good_on) == ("db.t", None)
        assert "db.t is at snapshot 4711" in unreadable.why
        assert house.leftovers() == garbage
        opened = open_table(known["metadataLocation"])
        assert {house.key(file) for file in opened.inspect.files()["file_path"].to_pylist()} <= house.live()
    house.lakes = [builder.config(retention=HEADS)]
    for _ in range(2):  # a dropped table's files wait for 7 days
        house.now += timedelta(days=8)
        assert not house.plan().unreadable
    assert house.planned_actions().keys() >= garbage | of_bad


def test_all_contents_with_missing_snapshots_are_unreadable(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    for name in ("db.a", "db.b", "db.other"):
        main.new(name)
        main.existing(name).leftovers(LONG_AGO)
    house.lakes = [builder.config(retention={"default": "90d"})]
    before = house.plan()
    garbage = house.leftovers()
    assert {key.partition("_")[0] for key in garbage} == {"db/a", "db/b", "db/other"}
    for name in ("db.a", "db.b"):
        commit_unlisted_snapshot(builder, name)
    house.now += timedelta(days=1)
    header = house.plan()
    assert {(item.table_name, item.good_on) for item in header.unreadable} == {(name, before.run_date) for name in ("db.a", "db.b")}
    assert house.leftovers() == {key for key in garbage if key.startswith("db/other_")}


@pytest.mark.parametrize("kept", ["refs", "none"])
def test_content_with_unkept_snapshot_makes_lake_unreadable(house: Lakehouse, builder: NessieBuilder, kept: str) -> None:
    main = builder.on()
    main.new("db.t")
    [first] = json.loads(metadata_of(builder, "db.t").read_text())["snapshots"]
    main.append("db.t")
    main.new("db.other").leftovers(LONG_AGO)
    path, known = metadata_of(builder, "db.t"), builder.content(["db", "t"])
    assert known is not None
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "snapshots": [first, *document["snapshots"]]}))
    builder.commit([put(["db", "t"], {**known, "snapshotId": first["snapshot-id"]})])
    house.lakes = [builder.config(retention=HEADS, keep_listed_snapshots=kept)]
    assert f"db.t is at snapshot {first['snapshot-id']}" in read_error(house)


@pytest.mark.parametrize("is_external", [True, False], ids=["external location", "claims of the lake"])
def test_missing_snapshot_with_unknown_location_makes_lake_unreadable(house: Lakehouse, builder: NessieBuilder, is_external: bool) -> None:
    main = builder.on()
    main.new("db.t")
    main.new("db.other").leftovers(LONG_AGO)
    if is_external:
        path = metadata_of(builder, "db.t")
        path.write_text(json.dumps({**json.loads(path.read_text()), "location": "hdfs://nn:8020/db/t"}))
    commit_unlisted_snapshot(builder, "db.t")
    claims = [] if is_external else [f"file://{house.warehouse}/db"]
    house.lakes = [builder.config(retention=HEADS, claims=claims)]
    assert "db.t is at snapshot 4711" in read_error(house)


def test_contents_of_deleted_refs_are_kept_for_the_grace_period(
    house: Lakehouse, builder: NessieBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = builder.on()
    main.new("db.t")
    builder.tag("v1")
    tagged = metadata_of(builder, "db.t")
    main.append("db.t")
    builder.branch("dev")
    branched, head = metadata_of(builder, "db.t"), builder.head("dev")
    place = local(builder.on("dev").new("db.secret").table.location())
    main.append("db.t")
    house.lakes = [builder.config(retention={"default": "30d", "refs": [{"match": "main", "cutoff": 1}]})]
    house.mark()
    builder.drop("v1")
    builder.drop("dev")
    mine = {house.key(path) for path in [tagged, branched, *main.files()] if path in {tagged, branched} or path.is_relative_to(place)}
    house.now += timedelta(days=1)
    monkeypatch.setattr("gc_assets.stages.mark.commit_graph.__version__", "the next one")  # forces a complete read of all histories
    house.plan()
    assert not mine & house.keys("deletion_plan")
    assert sum("was deleted before" in note for note in house.summary("reachable_snapshots", "shop")["notes"]) == 2
    builder.branch("again", at=head)
    assert open_table(str(metadata_of(builder, "db.t", "again"))).scan().to_arrow().num_rows > 0
    builder.drop("again")
    house.now += timedelta(days=60)
    header = house.plan()
    assert header.failed_gates == []
    assert mine <= house.keys("deletion_plan")


def test_commits_of_a_deleted_branch_are_remembered_after_a_run_in_the_future(house: Lakehouse, builder: NessieBuilder) -> None:
    """The clock of one run was ahead, and was corrected afterwards."""
    builder.on().new("db.t")
    house.lakes = [builder.config(retention={"default": "90d"})]
    house.plan()
    house.now = START + timedelta(days=25)
    house.plan()
    builder.branch("dev")
    before = house.files().keys()
    builder.on("dev").append("db.t")
    of_branch = house.files().keys() - before
    house.now = START + timedelta(days=1)
    house.plan()
    builder.drop("dev")
    for day in (10, 26, 30):
        house.now = START + timedelta(days=day)
        house.plan()
        assert not of_branch & house.keys("deletion_plan")


def test_commits_seen_by_only_one_of_two_overlapping_runs_are_remembered(
    house: Lakehouse, builder: NessieBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that saw the branch started first and finished last."""
    builder.on().new("db.t")
    house.lakes = [builder.config(retention={"default": "90d"})]
    house.plan()
    builder.branch("dev")
    before = house.files().keys()
    builder.on("dev").append("db.t")
    of_branch = house.files().keys() - before

    def publish_late(*args: Any, **options: Any) -> PublishedTable:
        monkeypatch.undo()
        builder.drop("dev")
        house.now += timedelta(days=1)
        house.plan()
        return publish(*args, **options)

    monkeypatch.setattr(commit_graph, "publish", publish_late)
    house.now += timedelta(days=1)
    house.mark()
    assert commit_graph.publish is publish
    house.now += timedelta(days=8)
    house.plan()
    assert not of_branch & house.keys("deletion_plan")


def test_dropped_table_with_new_writes_stops_the_plan(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    main.new("db.moved")
    # A branch that is deleted before the first run leaves the same files as another catalog.
    builder.branch("temporary")
    builder.on("temporary").existing("db.moved").append(datetime.now(UTC))
    builder.drop("temporary")
    main.drop("db.moved")
    main.append("db.t")
    house.lakes = [builder.config(retention=HEADS)]
    assert house.failed_gates(house.plan()) == {"foreign_metadata"}


def test_purge_waits_for_quarantined_metadata_that_is_live_again(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    old = house.key(metadata_of(builder, "db.t"))
    main.overwrite("db.t")
    main.append("db.t")
    house.lakes = [builder.config(retention=HEADS, missing_history="tolerate")]
    header = house.plan()
    planned = house.keys("deletion_plan")
    assert old in planned
    assert any(key.endswith(".parquet") for key in planned)
    house.approve_and_apply(header)
    # All history is live again, and its metadata must be read again.
    house.lakes = [builder.config(missing_history="tolerate", keep_listed_snapshots="none")]
    for level in (".metadata.json", ".avro"):
        house.now += timedelta(days=1)
        header = house.plan()
        assert set(house.planned_actions().values()) == {"restore"}
        assert all(key.endswith(level) for key in house.planned_actions())
        house.approve_and_apply(header)
    assert (house.warehouse / old).exists()


def test_empty_repository_has_empty_plan(house: Lakehouse, builder: NessieBuilder) -> None:
    write(house.warehouse / "x.parquet")
    house.lakes = [builder.config()]
    house.plan()
    assert house.keys("live_files", "shop") == house.keys("deletion_plan") == set()


def test_half_written_metadata_of_a_known_table_is_planned(house: Lakehouse, builder: NessieBuilder) -> None:
    main = builder.on()
    main.new("db.t")
    leftovers = {house.key(path) for path in main.existing("db.t").leftovers(LONG_AGO)}
    half = metadata_of(builder, "db.t").with_name("00009-half.metadata.json")
    half.write_bytes(b"{}")
    os.utime(half, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    house.lakes = [builder.config(retention=HEADS)]
    header = house.plan()
    assert not house.failed_gates(header)
    assert house.leftovers() >= leftovers | {house.key(half)}
