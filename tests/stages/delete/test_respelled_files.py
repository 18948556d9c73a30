"""Files that lakes may need under another spelling of their names.

Iceberg Java writes a path with `%3A` to an Azure blob with `:`. A leftover of such a write can be
committed after a plan, or after an apply. Its key in the lake is then not its key in the storage.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class Leftovers:
    """A lake with two old data files that no commit references."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.house = Lakehouse(spark, root, settings={"gates": {"max_delete_share": 1.0}, **settings})
        lake = LakeBuilder(root)
        self.table = lake.table("db.t", days_ago(40))
        self.table.append(days_ago(30))
        leftovers = [path for path in self.table.leftovers(days_ago(20), 4) if path.suffix == ".parquet"]
        self.committed, self.garbage = leftovers[:2]
        for path in leftovers[2:]:
            path.unlink()
        self.content = self.committed.read_bytes()
        self.house.lakes = [lake.config("sales")]
        self.key = self.house.key(self.committed)

    @property
    def respelled(self) -> Path:
        return self.committed.with_name(self.committed.name.replace("-", "%2D", 1))

    def commit_respelled(self) -> None:
        self.respelled.write_bytes(self.content)
        with self.table.lake.at(self.house.now):
            self.table.table.add_files([f"file://{self.respelled}"], check_duplicate_files=False)

    def plan(self, days: int = 0) -> PlanHeader:
        self.house.now = NOW + timedelta(days=days)
        return self.house.plan()


def test_file_committed_under_another_spelling_before_the_apply_stays(spark: SparkSession, tmp_path: Path) -> None:
    lake = Leftovers(spark, tmp_path)
    header = lake.plan()
    assert lake.key in lake.house.planned_actions()
    lake.commit_respelled()
    lake.house.approve_and_apply(header)
    outcome = {row["key"]: (row["outcome"], row["error"]) for row in lake.house.rows("deletion_log")}
    needed = f"may be needed under another spelling: lake sales needs {lake.house.key(lake.respelled)}"
    assert outcome[lake.key] == ("changed", needed)
    assert outcome[lake.house.key(lake.garbage)][0] == "done"
    assert lake.committed.exists()


@pytest.mark.parametrize("mode", ["trash", "deferred"])
def test_quarantined_file_committed_under_another_spelling_is_restored(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """In the mode deferred, the sweep keeps the file, and its record in the ledger must not purge it."""
    lake = Leftovers(spark, tmp_path, quarantine=mode)
    lake.house.approve_and_apply(lake.plan())
    lake.commit_respelled()
    lake.respelled.unlink()
    lake.plan(days=10)
    planned = {row["key"]: (row["action"], row["reason"]) for row in lake.house.rows("deletion_plan")}
    assert planned[lake.key] == ("restore", "may be needed under another spelling")
    assert planned[lake.house.key(lake.garbage)] == ("purge", "still dead")


@pytest.mark.parametrize("settings", [{}, {"listing": {"every": "30d"}}], ids=["listed", "earlier listing"])
def test_quarantined_file_waits_while_the_other_spelling_exists_itself(spark: SparkSession, tmp_path: Path, settings: Any) -> None:
    """A disk that ignores case would take both names for one file, so each run would try the restore again."""
    lake = Leftovers(spark, tmp_path, **settings)
    first = lake.plan()
    lake.house.approve_and_apply(first)
    lake.commit_respelled()
    waiting = lake.plan(days=10)
    assert lake.key not in lake.house.planned_actions()
    lake.house.approve_and_apply(waiting)
    assert lake.key in lake.house.trash(first)
    assert not lake.committed.exists()
    lake.respelled.unlink()
    lake.plan(days=11)
    assert lake.house.planned_actions()[lake.key] == "restore"


def test_purge_is_checked_again_for_other_spellings(spark: SparkSession, tmp_path: Path) -> None:
    lake = Leftovers(spark, tmp_path)
    first = lake.plan()
    lake.house.approve_and_apply(first)
    purge = lake.plan(days=10)
    lake.commit_respelled()
    lake.house.approve_and_apply(purge)
    assert {row["key"]: row["outcome"] for row in lake.house.rows("deletion_log")}[lake.key] == "changed"
    assert lake.house.trash(first) == {lake.key}


def test_file_referenced_by_expired_history_in_another_encoding_stays(spark: SparkSession, tmp_path: Path) -> None:
    """The edit that removes the history may be denied."""
    lake = Leftovers(spark, tmp_path)
    lake.house.now = days_ago(15)
    lake.commit_respelled()
    lake.house.now = days_ago(14)
    lake.table.overwrite(days_ago(14))
    header = lake.plan()
    assert header.expiry_actions
    assert lake.house.key(lake.respelled) in lake.house.keys("deletion_plan", after_expiry=True)
    assert lake.key not in lake.house.planned_actions()
    assert lake.house.key(lake.garbage) in lake.house.planned_actions()

    lake.house.approve_and_apply(header)
    lake.plan(days=1)
    assert lake.key in lake.house.planned_actions()
