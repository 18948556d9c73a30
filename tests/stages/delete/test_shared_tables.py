"""If several lakes collect the same table, the table keeps the history that any of them keeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.mark.mark_lake import mark
from gc_assets.stages.read.plan_tables import amounts_by_table
from gc_assets.stages.read.run_tables import RunTable, summarize_tables
from gc_assets.stages.records.plans import find_plan
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.lakehouse import STORAGE, Lakehouse, counts, days_ago, outcomes

pytestmark = pytest.mark.spark

GATES: dict[str, Any] = {"gates": {"max_delete_share": 1.0}}
DAYS = (60, 40, 30, 20, 2)
KEEP: dict[str, Any] = {"refs": [{"match": ".*", "keep": "forever"}]}
SHORT: dict[str, Any] = {"max_snapshot_age": "5d"}
ADVICE = "Use the same `retention` in both lakes, or let only one of them collect it (`tables`)"


def write(lake: LakeBuilder, name: str) -> tuple[TableBuilder, list[str]]:
    """Create a table whose rows are replaced on each of `DAYS`. Returns the ids of its snapshots.

    pyiceberg replaces rows by two snapshots, except in an empty table.
    """
    table = lake.table(name, days_ago(61))
    for day in DAYS:
        table.overwrite(days_ago(day), (day,))
    found = snapshots(table)
    assert len(found) == 2 * len(DAYS) - 1
    return table, found


def snapshots(table: TableBuilder) -> list[str]:
    """Return the ids of a table's snapshots, oldest first."""
    return [str(item.snapshot_id) for item in sorted(table.table.snapshots(), key=lambda item: item.sequence_number or 0)]


def edits(house: Lakehouse, header: PlanHeader) -> set[tuple[str, str, str]]:
    """Return the lake, table and snapshot of each edit in the plan."""
    from gc_assets.stages.delete.planned_edits import planned_actions

    rows = planned_actions(house.run_context().state, find_plan(house.config, header.plan_id).published).to_pylist()
    return {(row["lake"], row["table_name"], row["snapshot_id"]) for row in rows}


def rows_of_run(house: Lakehouse) -> dict[tuple[str, str | None], RunTable]:
    lakes = [lake.name for lake in house.config.lakes]
    return {(item.lake, item.table): item for item in summarize_tables(house.run_context(), lakes, [STORAGE])}


def test_snapshots_kept_by_another_lake_of_catalog_do_not_expire(spark: SparkSession, tmp_path: Path) -> None:
    # The files of events are live in lake ledger too, as long as the history needs them.
    settings = {"gates": {**GATES["gates"], "max_live_drop": 0.5}}
    house, lake = Lakehouse(spark, tmp_path, settings=settings), LakeBuilder(tmp_path)
    ledger, kept = write(lake, "db.ledger")
    events, expiring = write(lake, "db.events")
    ledger.tag(days_ago(20), "audit", kept[1], max_ref_age_ms=86_400_000)
    house.lakes = [
        lake.config("ledger", tables=["db.ledger*"], retention={**KEEP, "max_snapshot_age": "3650d", "tags": "keep"}),
        lake.config("rest", retention=SHORT),
    ]
    header = house.plan()
    assert edits(house, header) == {("rest", "db.events", item) for item in expiring[:-2]}
    (left_out,) = header.left_out
    assert (left_out.name, left_out.edits) == ("table db.ledger of lake rest", len(kept) - 2 + 1)
    assert left_out.reason == f"lake ledger collects this table too, and keeps the history that these edits remove. {ADVICE}"
    rows = rows_of_run(house)
    of_rest = rows["rest", "db.ledger"]
    assert (of_rest.kept, of_rest.expiring) == (len(kept), 0)
    assert of_rest.policy.endswith("; lake ledger keeps more")
    assert (rows["rest", "db.events"].kept, rows["rest", "db.events"].expiring) == (2, len(expiring) - 2)
    of_plan = amounts_by_table(house.run_context(), header, find_plan(house.config, header.plan_id).published)
    assert [(item.lake, item.table, item.edits) for item in of_plan if item.edits] == [("rest", "db.events", len(expiring) - 2)]
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    assert (snapshots(ledger), snapshots(events)) == (kept, expiring[-2:])
    assert [ledger.table.scan(snapshot_id=int(item)).to_arrow().num_rows for item in kept] == [1, *(0, 1) * (len(DAYS) - 1)]
    for day in (1, 2):
        house.now = days_ago(0) + timedelta(days=day)
        later = house.plan()
        assert house.failed_gates(later) == set()
        assert (later.expiry_actions, later.left_out) == ({}, (left_out,))
        assert later.held_for_expiry.files == 0


def test_snapshot_expires_only_if_both_lakes_of_catalog_expire_it(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES), LakeBuilder(tmp_path)
    table, ids = write(lake, "db.t")
    before = house.files()
    house.lakes = [
        lake.config("long", tables=["db.*"], retention={"max_snapshot_age": "25d"}),
        lake.config("short", retention=SHORT),
    ]
    header = house.plan()
    both = ids[:5]
    assert edits(house, header) == {(name, "db.t", item) for name in ("long", "short") for item in both}
    assert [(item.name, item.edits) for item in header.left_out] == [("table db.t of lake short", 2)]
    found = {name: (row.kept, row.expiring) for name, row in rows_of_run(house).items() if name[1] == "db.t"}
    assert found == {("long", "db.t"): (4, 5), ("short", "db.t"): (4, 5)}
    applied = house.approve_and_apply(header)
    assert counts(applied.by_outcome)["expire", "done"] == len(both)
    assert outcomes(applied) <= {"done", "absent"}
    assert snapshots(table) == ids[5:]
    assert len(house.files()) < len(before)
    house.now += timedelta(days=1)
    later = house.plan()
    assert house.failed_gates(later) == set()
    assert (later.expiry_actions, [item.edits for item in later.left_out]) == ({}, [2])


def test_snapshot_is_kept_if_another_lake_keeps_it_since_plan(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES), LakeBuilder(tmp_path)
    table, ids = write(lake, "db.t")
    house.lakes = [lake.config("own"), lake.config("short", retention=SHORT)]
    header = house.plan()
    assert header.left_out == ()
    table.set_properties(days_ago(1), {"history.expire.max-snapshot-age-ms": str(100 * 86_400_000)})
    assert outcomes(house.approve_and_apply(header)) == {"changed"}
    assert snapshots(table) == ids


def test_table_in_two_catalogs_keeps_snapshots_listed_by_either_catalog(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES), LakeBuilder(tmp_path)
    table, ids = write(lake, "db.t")
    copy = LakeBuilder(tmp_path, catalog_file="copy.db")
    copy.catalog.create_namespace("db")
    copy.register("db.t", table.metadata_location)
    for day in (1.9, 1.8):
        table.overwrite(days_ago(day), (70,))
    *newer, head = snapshots(table)[len(ids) :]
    house.lakes, house.now = [copy.config("copy", retention=KEEP), lake.config("short", retention=SHORT)], days_ago(-10)
    header = house.plan()
    assert edits(house, header) == {("short", "db.t", item) for item in newer}
    assert [(item.name, item.edits) for item in header.left_out] == [("table db.t of lake short", len(ids))]
    assert outcomes(house.approve_and_apply(header)) == {"done"}
    assert snapshots(table) == [*ids, head]
    house.now += timedelta(days=1)
    assert house.failed_gates(house.plan()) == set()


def test_snapshots_expire_if_no_other_lake_collects_table(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES), LakeBuilder(tmp_path)
    _, ids = write(lake, "db.events")
    house.lakes = [lake.config("ledger", tables=["db.ledger*"], retention=KEEP), lake.config("rest", retention=SHORT)]
    header = house.plan()
    assert edits(house, header) == {("rest", "db.events", item) for item in ids[:-2]}
    assert header.left_out == ()


def test_table_keeps_its_history_if_other_lake_has_not_read_it(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES), LakeBuilder(tmp_path)
    source = LakeBuilder(tmp_path, catalog_file="source.db")
    late, ids = write(source, "db.late")
    lake.table("db.t", days_ago(40)).append(days_ago(30))
    house.lakes = [lake.config("first", retention=SHORT), lake.config("second", retention=SHORT)]
    mark(spark, house.run_context(), "first")
    lake.register("db.late", late.metadata_location)
    mark(spark, house.run_context(), "second")
    header = house.sweep()
    assert header.expiry_actions == {}
    (left_out,) = header.left_out
    assert left_out.reason == "lake first collects this table too, but has not read it in this run"
    house.now += timedelta(days=1)
    later = house.plan()
    assert (later.expiry_actions, later.left_out) == (dict.fromkeys(("first", "second"), len(ids) - 2), ())


def test_branches_and_schemas_are_removed_only_if_both_lakes_remove_them(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path, settings=GATES, now=days_ago(0)), LakeBuilder(tmp_path)
    for name in ("db.a", "db.b"):
        table = lake.table(name, days_ago(60))
        table.branch(days_ago(40), "tmp", table.append(days_ago(40)))
        with lake.at(days_ago(30)), table.table.update_schema() as update:
            update.delete_column("part")
        with lake.at(days_ago(20)), table.table.update_schema() as update:
            update.rename_column("id", "number")
    rules = {"delete_idle": [{"match": "tmp", "after": "30d"}], "unused_metadata": "remove"}
    house.lakes = [lake.config("all", retention=rules), lake.config("a", tables=["db.a"])]
    house.plan()
    house.now += timedelta(days=40)
    header = house.plan()
    assert header.edits_by_action == {"delete_idle_branch": 1, "remove_schema": 1}
    assert {table for _, table, _ in edits(house, header)} == {"db.b"}
    assert [(item.name, item.edits) for item in header.left_out] == [("table db.a of lake all", 2)]
    house.lakes = [lake.config("all", retention=rules), lake.config("a", tables=["db.a"], retention=rules)]
    house.now += timedelta(days=1)
    header = house.plan()
    assert (header.left_out, header.edits_by_action) == ((), {"delete_idle_branch": 3, "remove_schema": 3})
    assert outcomes(house.approve_and_apply(header)) <= {"done", "absent"}
    house.now += timedelta(days=1)
    assert house.plan().expiry_actions == {}


@pytest.mark.parametrize("prefix", ["file://", ""], ids=["same address", "other spelling"])
def test_repository_history_is_kept_unless_both_lakes_plan_equal_edits(spark: SparkSession, tmp_path: Path, prefix: str) -> None:
    house = Lakehouse(spark, tmp_path, settings=GATES)
    repository = RepositoryBuilder.create(house.warehouse / "weather", days_ago(50))
    for day in (40, 30, 10, 2):
        repository.commit("main", days_ago(day), numbers(f"v{day}", [1, 2]))
    short = house.weather(retention={"default": "5d"})
    other = {"name": "long", "location": f"{prefix}{house.warehouse}/weather/"}
    house.lakes = [short, house.weather(retention={"default": "20d"}).model_copy(update=other)]
    header = house.plan()
    assert header.expiry_actions == {}
    assert {item.name for item in header.left_out} == {"lake weather", "lake long"}
    assert all("Remove one of these lakes, or give both the same `retention`" in item.reason for item in header.left_out)
    assert {row.expiring for row in rows_of_run(house).values()} == {0}
    house.lakes = [short, short.model_copy(update=other)]
    house.now += timedelta(days=1)
    header = house.plan()
    assert header.left_out == ()
    assert len(set(header.expiry_actions.values())) == 1
    assert outcomes(house.approve_and_apply(header)) <= {"done", "absent"}
