"""Files that become live through a link which the listing of the plan does not contain.

Case A2/F5: a job's leftover was added to a table through a link into its directory. The apply
quarantined the live file, and the next plan purged it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.core.phases import RESTORE
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import Lakehouse, counts, days_ago

pytestmark = [pytest.mark.spark, in_turn]


class LinkedTable(Lakehouse):
    """A leftover of one table, and another table that adds it through a link."""

    leftover: Path
    borrower: TableBuilder

    def borrow(self, link: Path) -> None:
        with self.borrower.lake.at(days_ago(1)):
            self.borrower.table.add_files([f"file://{link}"], check_duplicate_files=False)


@pytest.fixture
def house(spark: SparkSession, tmp_path: Path) -> LinkedTable:
    house = LinkedTable(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    table, house.borrower = lake.table("db.t", days_ago(40)), lake.table("db.borrower", days_ago(40))
    table.append(days_ago(30))
    house.borrower.append(days_ago(30))
    house.leftover = next(path for path in table.leftovers(days_ago(20), 1) if path.suffix == ".parquet")
    shutil.copy(next(path for path in house.leftover.parent.iterdir() if path != house.leftover), house.leftover)
    aged = days_ago(20).timestamp()
    os.utime(house.leftover, (aged, aged))
    house.lakes = [lake.config("sales")]
    return house


def test_apply_keeps_a_file_that_became_live_through_a_new_link(house: LinkedTable) -> None:
    header = house.plan()
    planned = house.keys("deletion_plan")
    assert house.key(house.leftover) in planned
    (house.warehouse / "recovered").symlink_to(house.leftover.parent)
    house.borrow(house.warehouse / "recovered" / house.leftover.name)
    assert counts(house.approve_and_apply(header).by_outcome) == {("quarantine", "done"): len(planned) - 1, ("quarantine", "changed"): 1}
    assert house.leftover.exists()
    (kept,) = (row for row in house.rows("deletion_log") if row["outcome"] == "changed")
    assert (kept["key"], "lake sales needs it" in kept["error"]) == (house.key(house.leftover), True)


@pytest.mark.parametrize("link", ["warehouse/recovered", "outside"])
def test_quarantined_target_of_live_link_is_restored(house: LinkedTable, link: str) -> None:
    """The state is as after a commit between the verification mark of an apply and the move."""
    header = house.plan()
    content = house.leftover.read_bytes()
    house.approve_and_apply(header)
    house.leftover.write_bytes(content)
    if link == "outside":
        address = house.root / house.leftover.name
        address.symlink_to(house.leftover)
    else:
        (house.root / link).symlink_to(house.leftover.parent)
        address = house.root / link / house.leftover.name
    house.borrow(address)
    house.leftover.unlink()
    house.now = days_ago(-1)
    later = house.plan()
    assert house.planned_actions()[house.key(house.leftover)] == RESTORE
    house.apply(later, (RESTORE,))
    assert house.leftover.read_bytes() == content
