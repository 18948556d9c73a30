"""A state that is restored from an older backup lacks plans whose apply began after it.

Case A2/F7: every restore of the storage stopped, and no command ended the plan, whose log remained
in the state.
"""

from __future__ import annotations

import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from gc_assets.core.findings import FAIL
from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.delete.restore_request import resolve_request, restore_files
from gc_assets.stages.read.doctor_records import check_interrupted
from gc_assets.stages.records.adoption import adopt_files
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.stages.records.plans import execution_directory, unfinished_plans
from tests.dates import next_noon
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import ROWS, catalog_of
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago
from tests.stores.s3_bench import open_s3_bench

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


def test_deletion_log_of_unknown_plan_does_not_prevent_restores(house: Backup) -> None:
    known, unknown = (len(house.trash(header)) for header in (house.known, house.unknown))
    assert house.restore_plan(house.known) == known
    assert house.restore_plan(house.unknown) == unknown, "its log records what it moved"
    assert house.trash(house.known) | house.trash(house.unknown) == set()


def test_adoption_records_files_of_unknown_plan_and_closes_its_log(house: Backup) -> None:
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


def test_adoption_closes_log_without_moved_files(house: Backup) -> None:
    assert house.restore_plan(house.unknown)
    result = adopt_files(house.run_context(), STORAGE, "ada")
    assert (result.adopted.amount.files, result.ended) == (0, [house.unknown.plan_id])
    assert house.failed_gates(house.plan()) == set()


def test_adoption_reads_log_if_quarantine_mode_has_no_trash(spark: SparkSession, tmp_path: Path) -> None:
    house = restore_backup(Backup(spark, tmp_path), quarantine="deferred")
    adopted = adopt_files(house.run_context(), STORAGE, "ada").adopted
    assert adopted.plan_ids == [house.unknown.plan_id]
    assert house.count_copies(house.unknown) == len(adopted.files) == house.unknown.totals["quarantine"].files


@pytest.mark.parametrize("applied, present", [("trash", "deferred"), ("deferred", "trash")])
def test_log_contains_quarantine_mode_of_unknown_plan(spark: SparkSession, tmp_path: Path, applied: str, present: str) -> None:
    house = restore_backup(Backup(spark, tmp_path), quarantine=applied)
    house.settings["quarantine"] = present
    planned = house.unknown.totals["quarantine"].files
    assert house.restore_plan(house.unknown) == planned
    assert house.trash(house.unknown) == set()


def leave_files(table: Table, count: int) -> None:
    """Write files that no snapshot references, as a crashed writer does."""
    for number in range(count):
        with table.io.new_output(f"{table.location()}/data/00000-{number}-{uuid.uuid4()}.parquet").create() as stream:
            stream.write(b"left by a crash")


def test_adoption_records_hidden_versions_after_quarantine_mode_changed(spark: SparkSession, tmp_path: Path) -> None:
    with open_s3_bench("ceph", versioned=True, prefix="lakes/") as bench:
        settings = {"quarantine": "versioned", "quarantine_days": 9, "gates": {"max_delete_share": 1.0}}
        house = BucketLakehouse(spark, tmp_path, settings=settings, now=next_noon(days=30), bench=bench)
        properties = catalog_of(house)
        catalog = SqlCatalog("default", **properties)
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", ROWS)
        table.append(pa.table({"id": pa.array([1, 2], pa.int64())}))
        house.lakes = [IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": properties})]
        leave_files(table, 2)
        house.approve_and_apply(house.plan())
        shutil.copytree(house.root / "state", house.root / "backup")
        leave_files(table, 3)
        house.now += timedelta(days=1)
        unknown = house.plan()
        before = house.contents()
        house.approve_and_apply(unknown)
        (house.root / "state" / execution_directory(unknown) / "finished.json").unlink()
        shutil.copytree(house.root / "backup", house.root / "state", dirs_exist_ok=True)
        house.settings["quarantine"] = "trash"
        house.now += timedelta(days=1)
        adopted = adopt_files(house.run_context(), STORAGE, "ada").adopted
        assert (adopted.amount.files, adopted.plan_ids) == (3, [unknown.plan_id])
        house.restore(unknown.plan_id)
        assert house.contents() == before
