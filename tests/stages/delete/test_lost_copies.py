"""Copies that are missing from the quarantine end its record, so that the gates count the lost files.

The table `db.a` is dropped, quarantined, and registered again.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.restore import restore
from gc_assets.stages.read.doctor_records import check_trash
from gc_assets.stages.read.explain import explain
from gc_assets.stages.records.adoption import adopt_files
from tests.depth import in_turn
from tests.stages.lakehouse import STORAGE, outcomes
from tests.stages.sweep.test_dropped_tables import Shop

pytestmark = [pytest.mark.spark, in_turn]


class QuarantinedTable(Shop):
    """All files of `db.a` are in quarantine.

    Attributes:
        plan: The plan that moved them there.
        backup: Its data files, by key.
        address: Its newest metadata.
        rows: Number of its rows.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root, "ab")
        self.spark, self.rows = spark, self.tables["a"].table.scan().to_arrow().num_rows
        self.backup = {self.house.key(path): path.read_bytes() for path in map(Path, self.tables["a"].data_files())}
        self.address = self.drop("a")
        self.run(1)
        self.plan = self.run(9)
        assert outcomes(self.house.approve_and_apply(self.plan)) == {"done"}
        assert self.data <= self.house.trash(self.plan)

    @property
    def data(self) -> set[str]:
        """The keys of its data files."""
        return set(self.backup)

    def lose_data(self) -> None:
        """Delete the data files from the trash, like a lifecycle rule of the bucket does."""
        trash = self.house.warehouse / ".gc-assets" / "trash" / self.plan.plan_id
        lost = [path for path in trash.rglob("*.parquet") if path.is_file()]
        assert len(lost) == len(self.data)
        for path in lost:
            path.unlink()

    def bring_back(self) -> None:
        """Copy the data files back from a backup."""
        for key, content in self.backup.items():
            (self.house.warehouse / key).write_bytes(content)

    def list_actions(self) -> dict[str, str]:
        """Return the planned actions on files of `db.a`."""
        return {key: action for key, action in self.house.planned_actions().items() if key.startswith("db/a/")}

    def find_message(self, header: PlanHeader, gate: str) -> str:
        return next(item.message for item in header.gates if item.name == gate)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> QuarantinedTable:
    return QuarantinedTable(spark, tmp_path)


def test_live_file_is_missing_after_restore_did_not_find_its_copy(shop: QuarantinedTable) -> None:
    shop.lose_data()
    _, restored = shop.house.restore(shop.plan.plan_id)
    assert restored["absent"] == len(shop.data)
    shop.register("a", shop.address)
    header = shop.run(10)
    assert shop.list_actions() == {}
    assert shop.house.failed_gates(header) == {"live_listed"}
    message = shop.find_message(header, "live_listed")
    assert message.startswith(f"At most {len(shop.data)} of ")
    assert all(key in message for key in shop.data)


def test_live_file_is_missing_after_apply_did_not_find_its_copy(shop: QuarantinedTable) -> None:
    shop.lose_data()
    restore(lambda: shop.spark, shop.house.run_context(), STORAGE, prefix="db/a/metadata/")
    shop.register("a", shop.address)
    header = shop.run(10)
    assert shop.list_actions() == dict.fromkeys(shop.data, "restore")
    assert outcomes(shop.house.approve_and_apply(header)) == {"absent"}
    header = shop.run(11)
    assert shop.list_actions() == {}
    assert shop.house.failed_gates(header) == {"live_listed"}
    for key in shop.data:
        (found,) = explain(shop.house.run_context(), key)
        assert found.verdict == "live"
        assert "But it was lost in quarantine" in found.sentence
    shop.bring_back()
    header = shop.run(12)
    assert shop.house.failed_gates(header) == set()
    assert [explain(shop.house.run_context(), key)[0].sentence.count("lost") for key in shop.data] == [0] * len(shop.data)


def test_unreadable_table_with_quarantined_metadata_suggests_restore(shop: QuarantinedTable) -> None:
    """The catalog was restored from a backup."""
    with sqlite3.connect(shop.house.root / "catalog.db") as database:
        values = (shop.lake.catalog_name, "db", "a", shop.address)
        database.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES (?, ?, ?, ?)", values
        )
    message = shop.find_message(shop.run(10), "unreadable_tables")
    assert f"The file is in quarantine: `gc-assets restore --plan {shop.plan.plan_id[:12]}`" in message
    _, restored = shop.house.restore(shop.plan.plan_id)
    assert restored.keys() == {"done"}
    assert shop.house.failed_gates(shop.run(11)) == set()
    assert shop.lake.catalog.load_table("db.a").scan().to_arrow().num_rows == shop.rows


def test_damaged_quarantine_copy_does_not_replace_missing_live_file(shop: QuarantinedTable) -> None:
    """The copies were truncated. Neither `adopt` nor a later run takes them for the files."""
    truncated = {key: content[:-1] for key, content in shop.backup.items()}
    trash = shop.house.warehouse / ".gc-assets" / "trash" / shop.plan.plan_id
    for key, content in truncated.items():
        (trash / key).write_bytes(content)
    restore(lambda: shop.spark, shop.house.run_context(), STORAGE, prefix="db/a/metadata/")
    shop.register("a", shop.address)
    header = shop.run(10)
    assert shop.list_actions() == dict.fromkeys(shop.data, "restore")
    assert outcomes(shop.house.approve_and_apply(header)) == {"absent"}
    assert all("is damaged" in row["error"] for row in shop.house.rows("deletion_log"))
    assert shop.house.failed_gates(shop.run(11)) == {"live_listed"}
    context = shop.house.run_context()
    findings = list(check_trash(context, context.storage(STORAGE)))
    assert [(item.verdict, item.todo.partition(",")[0]) for item in findings] == [("warn", "If you need them")]
    assert adopt_files(context, STORAGE, "ada").adopted.files == ()
    assert {key: (trash / key).read_bytes() for key in truncated} == truncated
    for key, content in shop.backup.items():
        (trash / key).write_bytes(content)
    assert {item.key for item in adopt_files(context, STORAGE, "ada").adopted.files} == shop.data
    _, restored = shop.house.restore(shop.plan.plan_id)
    assert restored == {"done": len(shop.data)}
    assert shop.house.failed_gates(shop.run(12)) == set()
