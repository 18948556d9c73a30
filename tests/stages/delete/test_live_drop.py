"""A run is compared with the last accepted run, never with a refused one."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.records.accepted_runs import forget_lake
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, days_ago, outcomes
from tests.stages.mark.lake_histories import large_lake

pytestmark = [pytest.mark.spark, in_turn]


def build_table(lake: LakeBuilder, name: str, commits: int) -> TableBuilder:
    table = lake.table(name, days_ago(40))
    for day in range(commits):
        table.append(days_ago(30 - day))
    return table


def test_drop_in_live_files_is_refused_until_user_accepts_it(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    build_table(lake, "db.t", 1).leftovers(days_ago(20), 2)
    build_table(lake, "db.big", 9)
    house.lakes = [lake.config("sales")]
    house.now = days_ago(3)
    complete = house.plan()
    assert not house.failed_gates(complete)
    lake.catalog.drop_table("db.big")
    for day in (2, 1, 0):
        house.now = days_ago(day)
        refused = house.plan()
        assert house.failed_gates(refused) == {"live_drop"}
        message = refused.failed_gates[0].message
        assert f"after {complete.live_files:,} in the last accepted run" in message
        assert re.search(r"Largest drops: sales: db\.big \(\d+ to 0 files\)\. If they were not intended", message)
    with pytest.raises(GateRefused, match="--override live_drop"):
        house.approve(refused)
    house.approve(refused, "live_drop")
    house.now += timedelta(days=1)
    assert not house.failed_gates(house.plan())


def test_live_file_drop_after_plan_stops_apply_until_accepted(spark: SparkSession, tmp_path: Path) -> None:
    """A run of the same date reuses the refs of the first run, so its plan is the refused one."""
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    leftovers = build_table(lake, "db.t", 1).leftovers(days_ago(20), 2)
    build_table(lake, "db.big", 9)
    house.lakes = [lake.config("sales")]
    header = house.plan()
    house.approve(header)
    lake.catalog.drop_table("db.big")
    with pytest.raises(GateRefused) as refusal:
        house.apply(header)
    assert house.plan().plan_id == header.plan_id
    message = str(refusal.value)
    assert f"To apply it anyway: `gc-assets approve {header.plan_id[:12]} --by WHO --override live_drop`, then apply it again." in message
    assert message.endswith("only a run of a later date makes a new plan.")
    assert all(path.exists() for path in leftovers)
    house.approve(header, "live_drop")
    assert "done" in outcomes(house.apply(header))
    assert not any(path.exists() for path in leftovers)


def test_refused_apply_for_earlier_date_suggests_new_run(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    build_table(lake, "db.t", 1).leftovers(days_ago(20), 2)
    build_table(lake, "db.big", 9)
    house.lakes, house.now = [lake.config("sales")], days_ago(1)
    header = house.plan()
    house.approve(header)
    lake.catalog.drop_table("db.big")
    house.now += timedelta(hours=25)
    with pytest.raises(GateRefused) as refusal:
        house.apply(header)
    assert str(refusal.value).endswith("apply the plan again. To make a new plan: `gc-assets run`.")


def test_live_file_drops_in_several_runs_of_one_date_add_up(spark: SparkSession, tmp_path: Path) -> None:
    """While a table is unreadable, each run reads the refs again. The limit is 20 % of the files."""
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    for number in range(12):
        build_table(lake, f"db.t{number}", 1)
    bad = build_table(lake, "db.bad", 1)
    house.lakes, house.now = [lake.config("sales")], days_ago(1)
    complete = house.plan()
    house.now = days_ago(0)
    bad.path(bad.metadata_location).write_bytes(b"{")

    def drop(*numbers: int) -> PlanHeader:
        for number in numbers:
            lake.catalog.drop_table(f"db.t{number}")
        return house.plan()

    assert not house.failed_gates(drop(0, 1, 2, 3))
    for numbers in ((4, 5), (), (6,)):
        refused = drop(*numbers)
        assert house.failed_gates(refused) == {"live_drop"}
        assert f"after {complete.live_files:,} in the last accepted run" in message_of(refused)
        assert re.search(r"Earlier runs of the same date lost \d+ of these files already\.", message_of(refused))
    house.approve(refused, "live_drop")
    assert not house.failed_gates(drop(7))
    assert house.failed_gates(drop(8, 9, 10)) == {"live_drop"}, "the drops after the approval add up too"


def test_emptied_or_removed_lake_prevents_plans_until_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """The lake is small: its removal alone would pass `live_drop` of the storage."""
    house, large, small = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path), LakeBuilder(tmp_path, "small", "small.db")
    build_table(large, "db.t", 12).leftovers(days_ago(20), 2)
    build_table(small, "db.u", 1)
    house.lakes = [large.config("sales"), small.config("little")]
    house.now = days_ago(4)
    header = house.plan()
    assert not house.failed_gates(header)
    assert header.live_by_lake["little"] < header.live_files * house.config.storages[0].gates.max_live_drop

    house.lakes = [large.config("sales")]
    assert house.failed_gates(house.plan()) == {"lakes_present"}, "on the first run date, without a new freeze"
    house.lakes = [large.config("sales"), small.config("little")]

    small.catalog.drop_table("db.u")
    house.now = days_ago(3)
    emptied = house.plan()
    assert house.failed_gates(emptied) == {"lakes_present"}
    assert "little (no live files now" in emptied.failed_gates[0].message
    with pytest.raises(GateRefused, match=r"gc-assets forget LAKE --by WHO"):
        house.approve(emptied, "lakes_present")

    house.lakes = [large.config("sales")]
    house.now = days_ago(2)
    left = house.plan()
    assert house.failed_gates(left) == {"lakes_present"}
    assert "little (not in lakes.yaml" in left.failed_gates[0].message

    with pytest.raises(UsageError, match=r"unknown lake 'litle'.*sales"):
        forget_lake(house.config, Clock(house.now), "litle", "ada")
    with pytest.raises(UsageError, match="--by WHO"):
        forget_lake(house.config, Clock(house.now), "little", " ")
    forget_lake(house.config, Clock(house.now), "little", "ada")
    house.now = days_ago(1)
    assert not house.failed_gates(house.plan())
    house.lakes = [large.config("sales"), small.config("little")]
    build_table(small, "db.v", 1)
    house.now = days_ago(0)
    assert not house.failed_gates(house.plan())
    house.lakes = [large.config("sales")]
    house.now += timedelta(days=1)
    assert house.failed_gates(house.plan()) == {"lakes_present"}, "it was forgotten once, and came back since"


def test_live_file_drop_of_small_lake_is_detected(spark: SparkSession, tmp_path: Path) -> None:
    house, large, small = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path), LakeBuilder(tmp_path, "small", "small.db")
    build_table(large, "db.t", 14)
    build_table(small, "db.u", 1)
    build_table(small, "db.v", 1)
    house.lakes = [large.config("sales"), small.config("little")]
    house.now = days_ago(1)
    house.plan()
    small.catalog.drop_table("db.u")
    house.now = days_ago(0)
    header = house.plan()
    assert house.failed_gates(header) == {"live_drop"}
    assert "lake little" in header.failed_gates[0].message


def keep_days(days: int) -> dict[str, object]:
    return {"retention": {"max_snapshot_age": f"{days}d", "min_snapshots_to_keep": 1}}


def rewrite_daily(table: TableBuilder, *days: float) -> list[str]:
    """Replace the content of the table on each day, so that each snapshot has its own files."""
    return [table.overwrite(days_ago(day)) for day in days]


def message_of(header: PlanHeader) -> str:
    return next(gate.message for gate in header.gates if gate.name == "live_drop")


@dataclass
class Expiry:
    """The first expiry of a lake, for two tests that run in order."""

    house: Lakehouse
    before: PlanHeader
    header: PlanHeader


@pytest.fixture(scope="module")
def expiry(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Expiry:
    root = tmp_path_factory.mktemp("expiry")
    house, lake = Lakehouse(spark, root), LakeBuilder(root)
    rewrite_daily(lake.table("db.t", days_ago(40)), *range(30, 20, -1))
    house.lakes, house.now = [lake.config("sales", **keep_days(365))], days_ago(1)
    before = house.plan()
    house.lakes, house.now = [lake.config("sales", **keep_days(5))], days_ago(0)
    return Expiry(house, before, house.plan())


def test_live_drop_check_passes_first_expiry_and_shows_both_numbers(expiry: Expiry) -> None:
    before, header = expiry.before, expiry.header
    lost = before.live_files - header.live_files
    assert lost > 0.2 * before.live_files, "without the expiry, the gate would fail"
    assert header.failed_gates == []
    assert header.after_expiry.files == lost
    assert f"the retention policy expired {lost / before.live_files:.1%} ({lost} files). A drop of 0.0% is not explained" in message_of(
        header
    )
    applied = expiry.house.approve_and_apply(header)
    assert outcomes(applied) == {"done"}


def test_run_after_applied_expiry_is_compared_with_applied_plan(expiry: Expiry) -> None:
    """The apply removes the snapshots from the metadata, so a later run cannot find why they expired."""
    house = expiry.house
    second = house.plan()
    assert second.failed_gates == []
    assert f"after {expiry.header.live_files:,} in the last accepted run: down 0.0%" in message_of(second)
    assert house.plan().plan_id == second.plan_id, "the plan of a run is no baseline of its repetition"


def test_table_dropped_on_day_of_expiry_counts_as_live_file_drop(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    rewrite_daily(lake.table("db.t", days_ago(40)), *range(30, 20, -1))
    build_table(lake, "db.dropped", 4)
    house.lakes, house.now = [lake.config("sales", **keep_days(365))], days_ago(1)
    house.plan()
    house.lakes, house.now = [lake.config("sales", **keep_days(5))], days_ago(0)
    expiry = house.plan()
    house.approve_and_apply(expiry)
    lake.catalog.drop_table("db.dropped")
    refused = house.plan()
    assert house.failed_gates(refused) == {"live_drop"}
    assert f"after {expiry.live_files:,} in the last accepted run" in message_of(refused)


def test_expired_files_do_not_hide_dropped_table(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    rewrite_daily(lake.table("db.t", days_ago(40)), *range(30, 20, -1))
    build_table(lake, "db.dropped", 12)
    house.lakes, house.now = [lake.config("sales", **keep_days(365))], days_ago(1)
    before = house.plan()
    lake.catalog.drop_table("db.dropped")
    house.lakes, house.now = [lake.config("sales", **keep_days(5))], days_ago(0)
    header = house.plan()
    assert house.failed_gates(header) == {"live_drop"}
    expired = sum(row["table_uuid"] is not None for row in house.rows("orphan_files") if row["reason"] == "expired")
    left = before.live_files - header.live_files - expired
    assert f"({expired} files). A drop of {left / before.live_files:.1%} is not explained" in message_of(header)
    with large_lake():
        assert message_of(house.plan()) == message_of(header), "executors count the same files"


def test_files_written_and_expired_since_do_not_hide_a_dropped_table(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    stream = lake.table("db.stream", days_ago(40))
    stream.append(days_ago(30))
    build_table(lake, "db.dropped", 6)
    build_table(lake, "db.t", 4)
    house.lakes, house.now = [lake.config("sales", **keep_days(365))], days_ago(10)
    house.plan()
    lake.catalog.drop_table("db.dropped")
    rewrite_daily(stream, *(9 - number / 4 for number in range(12)))
    house.lakes, house.now = [lake.config("sales", **keep_days(3))], days_ago(0)
    header = house.plan()
    assert header.after_expiry.files > 12
    assert house.failed_gates(header) == {"live_drop"}


def test_expiry_after_tags_were_removed_counts_as_live_file_drop(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    table = lake.table("db.t", days_ago(40))
    for number, snapshot_id in enumerate(rewrite_daily(table, *range(30, 20, -1))):
        table.tag(days_ago(20), f"audit-{number}", snapshot_id)
    house.lakes, house.now = [lake.config("sales", **keep_days(5))], days_ago(1)
    before = house.plan()
    with lake.at(days_ago(1)):
        for number in range(10):
            table.table.manage_snapshots().remove_tag(f"audit-{number}").commit()
    house.now = days_ago(0)
    header = house.plan()
    lost = before.live_files - header.live_files
    assert header.after_expiry.files >= lost > 0.2 * before.live_files
    assert house.failed_gates(header) == {"live_drop"}
    assert "expired files of lake sales count as a drop, because refs that reached them are missing: audit-0" in message_of(header)


def test_expiry_counts_as_live_file_drop_if_last_accepted_run_was_removed(spark: SparkSession, tmp_path: Path) -> None:
    house, lake = Lakehouse(spark, tmp_path), LakeBuilder(tmp_path)
    rewrite_daily(lake.table("db.t", days_ago(40)), *range(30, 20, -1))
    house.lakes, house.now = [lake.config("sales", **keep_days(365))], days_ago(1)
    house.plan()
    shutil.rmtree(tmp_path / "state" / "sales" / "live_files")
    house.lakes, house.now = [lake.config("sales", **keep_days(5))], days_ago(0)
    header = house.plan()
    assert house.failed_gates(header) == {"live_drop"}
    assert "the state no longer has live_files of the last accepted run" in message_of(header)
