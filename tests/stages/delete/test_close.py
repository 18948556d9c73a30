"""An unfinished plan whose time has ended is closed by the next run, which moves nothing."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, UsageError
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete import expire
from gc_assets.stages.delete.close import close_plan
from gc_assets.stages.delete.execution import header_of_result
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import execution_directory, find_plan
from gc_assets.stores.local.quarantine import TrashQuarantine
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, STORAGE, Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]
LATER = NOW + timedelta(days=3)


@pytest.fixture
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, PlanHeader]:
    house = Lakehouse(spark, tmp_path_factory.mktemp("close"), settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(house.root)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    for age in (20, 19, 18):
        table.leftovers(days_ago(age))
    house.lakes = [builder.config("sales")]
    return house, house.plan()


@pytest.fixture
def interrupted(planned: tuple[Lakehouse, PlanHeader]) -> tuple[Lakehouse, PlanHeader]:
    """Apply a plan, and remove the outcomes and the published log, as if the process had been killed."""
    house, header = planned
    house.approve_and_apply(header)
    directory = house.root / "state" / execution_directory(header)
    (directory / "finished.json").unlink()
    (directory.parent / "_records.json").unlink()
    return house, header


def lose_outcomes(house: Lakehouse, header: PlanHeader, *keys: str) -> None:
    """Remove the outcomes of these keys from the write-ahead log, with all outcomes of their batches."""
    for path in (house.root / "state" / execution_directory(header)).glob("share-*/*.outcome.jsonl"):
        if {json.loads(line)["key"] for line in path.read_text().splitlines()} & set(keys):
            path.unlink()


def quarantined_keys(house: Lakehouse) -> set[str]:
    return set(read_quarantine(house.run_context().state, STORAGE).column("key").to_pylist())


def test_interrupted_plan_stays_open_before_deadline_and_shows_how_to_end_it(interrupted: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = interrupted
    house.now += timedelta(days=1)
    (gate,) = house.plan().failed_gates
    assert gate.name == "unfinished_apply"
    assert f"{header.plan_id[:12]} (a run closes it after {header.apply_before:%Y-%m-%d %H:%M}Z)" in gate.message
    assert "`gc-assets apply PLAN_ID --end`" in gate.message


def test_recorded_moves_of_closed_plan_stay_in_quarantine(interrupted: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = interrupted
    moved = house.trash(header)
    house.now = LATER
    later = house.plan()
    assert house.failed_gates(later) == set()
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "applied"
    assert quarantined_keys(house) == moved == house.trash(header)
    assert set(house.planned_actions().values()) <= {"purge"}


def test_unrecorded_moves_of_closed_plan_are_undone(interrupted: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = interrupted
    moved = house.trash(header)
    taken = min(moved)
    lose_outcomes(house, header, *moved)
    (house.warehouse / taken).write_bytes(b"another object")
    house.now = LATER
    assert house.failed_gates(house.plan()) == set()
    assert house.trash(header) == {taken}  # its name is in use, so it stays in quarantine, on record
    assert moved <= set(house.files())
    outcomes = {
        row["key"]: row["outcome"] for row in house.rows_of(house.run_context().state.require(STORAGE, "deletion_log", header.run_date))
    }
    assert outcomes == {key: "done" if key == taken else "denied" for key in moved}
    house.now += timedelta(days=1)
    house.plan()
    assert moved - {taken} <= house.keys("deletion_plan", action="quarantine")


def test_plan_whose_apply_was_killed_before_it_wrote_a_log_does_not_block_later_plans(planned: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = planned
    (house.root / "state" / execution_directory(header)).mkdir(parents=True)
    for house.now in (NOW, LATER):
        assert house.failed_gates(house.plan()) == set()


def test_plan_that_cannot_be_closed_stays_open_and_reports_why(
    interrupted: tuple[Lakehouse, PlanHeader],
) -> None:
    house, header = interrupted
    lease = house.run_context().store(STORAGE).acquire("other", "eve", Clock(), timedelta(hours=1))
    house.now = LATER
    (gate,) = house.plan().failed_gates
    assert "but it cannot be closed" in gate.message
    assert "eve" in gate.message
    lease.release()
    house.settings = {**house.settings, "mode": "plan"}
    (gate,) = house.plan().failed_gates
    assert f"end it with `gc-assets apply {header.plan_id[:12]} --end --mode apply`" in gate.message
    with pytest.raises(GateRefused, match="plan mode"):
        close_plan(house.spark, house.run_context(), find_plan(house.config, header.plan_id))


def test_user_can_end_interrupted_plan_before_its_deadline(interrupted: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = interrupted
    moved = house.trash(header)
    lose_outcomes(house, header, *moved)
    closed = close_plan(house.spark, house.run_context(), find_plan(house.config, header.plan_id))
    assert counts(closed.by_outcome) == {("quarantine", "denied"): len(moved)}
    assert house.trash(header) == set()
    with pytest.raises(UsageError, match="no apply has begun it, or it has already ended"):
        close_plan(house.spark, house.run_context(), find_plan(house.config, header.plan_id))
    house.plan()
    assert moved <= house.keys("deletion_plan", action="quarantine")


def test_purge_made_by_interrupted_apply_ends_quarantine_when_plan_is_closed(
    planned: tuple[Lakehouse, PlanHeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome `denied` would leave the files in the ledger, although they are lost."""
    house, header = planned
    house.approve_and_apply(header)
    house.now += timedelta(days=1)
    purge, act = house.plan(), TrashQuarantine.act

    def act_and_interrupt(*args: Any) -> None:
        act(*args)
        interrupt()

    with monkeypatch.context() as patch:  # the files are removed, their outcomes are not on record
        patch.setattr(TrashQuarantine, "act", act_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            house.approve_and_apply(purge)
    closed = close_plan(house.spark, house.run_context(), find_plan(house.config, purge.plan_id))
    assert counts(closed.by_outcome) == {("purge", "done"): purge.totals["purge"].files}
    assert quarantined_keys(house) == set()


def test_restored_files_of_ended_plan_do_not_count_as_quarantined(interrupted: tuple[Lakehouse, PlanHeader]) -> None:
    house, header = interrupted
    house.restore(header.plan_id)
    closed = close_plan(house.spark, house.run_context(), find_plan(house.config, header.plan_id))
    assert counts(closed.by_outcome) == {("quarantine", "done"): header.totals["quarantine"].files}
    assert header_of_result(header, closed).totals == {}


@pytest.mark.parametrize(
    "phase, settings, waits",
    [
        ("purge", {"grace": "100h"}, timedelta(0)),
        ("quarantine", {}, timedelta(days=4)),
        ("expire", {"quarantine": "deferred"}, timedelta(0)),
    ],
    ids=["policy changed before purge", "time over before quarantine", "mode changed before expire"],
)
def test_apply_of_outdated_plan_makes_no_change_that_an_interrupted_apply_was_about_to_make(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, settings: dict[str, Any], waits: timedelta
) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = LakeBuilder(house.root)
    table, large = (builder.table(name, days_ago(60)) for name in ("db.t", "db.large"))
    for age in (50, 30, 2):
        table.append(days_ago(age))
    table.overwrite(days_ago(1))
    table.leftovers(days_ago(20))
    for _ in range(12):
        large.append(days_ago(1))
    house.lakes = [builder.config("sales")]
    header = house.plan()
    house.approve(header, *house.failed_gates(header))
    if phase == "purge":
        house.apply(header)
        house.now += timedelta(days=1)
        header = house.plan()
        house.approve(header, *house.failed_gates(header))
    with monkeypatch.context() as patch:  # the intent is on record, the action is not made
        patch.setattr(*((expire, "_edit") if phase == "expire" else (TrashQuarantine, "act")), interrupt)
        with pytest.raises(KeyboardInterrupt):
            house.apply(header)
    listed, stored = snapshot_ids(table), stored_keys(house)
    builder.catalog.drop_table("db.large")
    with pytest.raises(GateRefused, match="live_drop"):
        house.apply(header)

    house.settings |= settings
    house.now += waits
    applied = counts(house.apply(header).by_outcome)
    assert sum(number for (at, _), number in applied.items() if at == phase) > 0
    assert {outcome for (at, outcome) in applied if at == phase} <= {"denied", "changed"}
    assert snapshot_ids(table) == listed
    assert stored_keys(house) == stored
    assert find_plan(house.config, header.plan_id).status_at(house.now) == "partially applied"
    assert "unfinished_apply" not in house.failed_gates(house.plan())


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def snapshot_ids(table: TableBuilder) -> list[int]:
    return [item.snapshot_id for item in table.table.snapshots()]


def stored_keys(house: Lakehouse) -> set[str]:
    """Return the paths of all files in the warehouse and in its trash, without Iceberg's own metadata."""
    return {str(path) for path in house.warehouse.rglob("*") if path.is_file() and path.name != "lease.json"}
