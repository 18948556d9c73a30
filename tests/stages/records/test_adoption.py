"""A state that is restored from an older backup lacks plans whose apply began after it.

Case A2/F7: every restore of the storage stopped, and no command ended the plan, whose log remained
in the state.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.findings import FAIL
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.restore_request import resolve_request, restore_files
from gc_assets.stages.read.doctor_records import check_interrupted
from gc_assets.stages.records.adoption import adopt_files
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import execution_directory, unfinished_plans
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class Backup(Lakehouse):
    """A state from the time after the plan `known`. The interrupted apply of `unknown` is later."""

    known: PlanHeader
    unknown: PlanHeader

    def count_copies(self, header: PlanHeader) -> int:
        """Return the number of files of a plan in the ledger."""
        return read_quarantine(self.run_context().state, STORAGE).column("source_plan_id").to_pylist().count(header.plan_id)

    def restore_plan(self, header: PlanHeader) -> int:
        """Restore a plan by the first characters of its id, and return the number of files."""
        request = resolve_request(self.run_context(), plan_id=header.plan_id[:12], history=False)
        return restore_files(lambda: self.spark, self.run_context(), request).files.rows


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> Backup:
    return restore_backup(Backup(spark, tmp_path))


def restore_backup(house: Backup, **settings: Any) -> Backup:
    """Apply two plans, and restore the state from between them."""
    house.settings = {"gates": {"max_delete_share": 1.0}, "quarantine_days": 9, **settings}
    builder = LakeBuilder(house.root)
    table = builder.table("db.t", days_ago(60))
    table.append(days_ago(40))
    table.leftovers(days_ago(20))
    house.lakes = [builder.config("sales")]
    house.known = house.plan()
    house.approve_and_apply(house.known)
    state = house.root / "state"
    shutil.copytree(state, house.root / "backup")
    table.leftovers(days_ago(19))
    house.unknown = house.plan()
    house.approve_and_apply(house.unknown)
    (state / execution_directory(house.unknown) / "finished.json").unlink()
    shutil.copytree(house.root / "backup", state, dirs_exist_ok=True)
    assert unfinished_plans(house.run_context().state, STORAGE) == [house.unknown.plan_id]
    return house


def test_log_of_an_unknown_plan_does_not_stop_restores(house: Backup) -> None:
    known, unknown = (len(house.trash(header)) for header in (house.known, house.unknown))
    assert house.restore_plan(house.known) == known
    assert house.restore_plan(house.unknown) == unknown, "its log records what it moved"
    assert house.trash(house.known) | house.trash(house.unknown) == set()


def test_adoption_records_the_files_of_an_unknown_plan_and_ends_its_log(house: Backup) -> None:
    (gate,) = house.plan().failed_gates
    assert gate.name == "unfinished_apply"
    assert f"`gc-assets adopt {STORAGE} --by WHO`" in gate.message
    context = house.run_context()
    (finding,) = check_interrupted(context, context.storage(STORAGE))
    assert finding.verdict == FAIL
    assert f"gc-assets adopt {STORAGE} --by WHO" in finding.todo
    adopted = adopt_files(context, STORAGE, "ada").adopted
    assert {item.key for item in adopted.files} == house.trash(house.unknown)
    assert house.count_copies(house.unknown) == len(adopted.files)
    assert house.failed_gates(house.plan()) == set()
    assert house.restore_plan(house.unknown) == len(adopted.files)


def test_adoption_of_a_log_without_moves_ends_it(house: Backup) -> None:
    assert house.restore_plan(house.unknown)
    result = adopt_files(house.run_context(), STORAGE, "ada")
    assert (result.adopted.amount.files, result.ended) == (0, [house.unknown.plan_id])
    assert house.failed_gates(house.plan()) == set()


def test_adoption_reads_the_log_if_quarantine_has_no_trash(spark: SparkSession, tmp_path: Path) -> None:
    house = restore_backup(Backup(spark, tmp_path), quarantine="deferred")
    adopted = adopt_files(house.run_context(), STORAGE, "ada").adopted
    assert adopted.plan_ids == [house.unknown.plan_id]
    assert house.count_copies(house.unknown) == len(adopted.files) == house.unknown.totals["quarantine"].files
