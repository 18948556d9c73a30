"""Files that were older than the claim on their location stay protected when their times change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from gc_assets.stages.records.accepted_prefixes import accept_prefix
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.stages.lakehouse import NOW, Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]


def set_time(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


@dataclass
class Scene:
    """A table is created over files of another team, with a catalog that is not configured."""

    house: Lakehouse
    table: TableBuilder
    theirs: list[Path]

    @classmethod
    def of(cls, spark: SparkSession, root: Path, **settings: Any) -> Scene:
        gates = {"max_delete_share": 1.0, "max_live_drop": 1.0}
        house, lake = Lakehouse(spark, root, settings={"gates": gates, **settings}), LakeBuilder(root)
        lake.table("db.first", days_ago(40)).append(days_ago(30))
        place = house.warehouse / "lake2" / "t"
        theirs = [place / "data" / f"00000-{number}-{uuid4()}-00001.parquet" for number in range(3)]
        for path in theirs:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            set_time(path, days_ago(60))
        lake.keep_times()
        house.lakes = [lake.config("sales", retention={"max_snapshot_age": "3650d"})]
        house.plan()
        created = NOW + timedelta(hours=6)
        table = lake.table("db.t", created, location=f"file://{place}")
        table.append(created)
        return cls(house, table, theirs)

    def run(self, day: float) -> set[str]:
        """Run on a day, and return the planned keys."""
        self.house.now = NOW + timedelta(days=day)
        assert not self.house.plan().failed_gates
        return self.house.keys("deletion_plan")

    def copy_storage(self, day: float) -> None:
        """Give the other team's files new modification times, as a copy of a bucket does."""
        for path in self.theirs:
            set_time(path, NOW + timedelta(days=day))

    @property
    def their_keys(self) -> set[str]:
        return set(map(self.house.key, self.theirs))


@pytest.mark.parametrize("settings", [{}, {"listing": {"every": "3d"}}], ids=["every_run_lists", "runs_between_listings"])
def test_older_unknown_file_is_kept_after_storage_was_copied(spark: SparkSession, tmp_path: Path, settings: dict[str, Any]) -> None:
    """The runs in the grace period do not examine the file, because it is too young."""
    scene = Scene.of(spark, tmp_path, **settings)
    scene.run(1)
    leftovers = {scene.house.key(path) for path in scene.table.leftovers(NOW + timedelta(days=1.5))}
    if settings:
        scene.run(4)
    scene.copy_storage(day=4.2)
    scene.run(5)
    assert scene.run(9) == leftovers
    assert scene.house.summary("orphan_files")["foreign_by_rule"]["new_claim"]["files"] == len(scene.theirs)


def test_older_unknown_files_are_collected_after_prefix_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene.of(spark, tmp_path)
    scene.run(1)
    scene.copy_storage(day=1.5)
    assert scene.run(6) == set()
    accept_prefix(scene.house.config, scene.house.run_context().clock, f"file://{scene.house.warehouse}/lake2/t", by="me")
    scene.copy_storage(day=6)
    assert scene.run(10) == set(), "the files are newer than the acceptance"
    accept_prefix(scene.house.config, scene.house.run_context().clock, f"file://{scene.house.warehouse}/lake2/t", by="me")
    assert scene.run(11) == scene.their_keys
    scene.copy_storage(day=12)
    assert scene.run(16) == scene.their_keys
