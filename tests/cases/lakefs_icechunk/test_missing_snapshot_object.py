"""The object of one old snapshot is missing, for example because of a bucket rule or a person.

With the default policy all history is kept. The walk from `main` ended at the gap, so the snapshots before it counted as dangling:
they were quarantined and purged with all gates passed, although the report had a note that nothing of that history expires. After
the object was restored from a backup, as the note advised, readers of these snapshots failed.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import zarr
from pyspark.sql import SparkSession

from gc_assets.core.plan import PlanHeader
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from tests.depth import in_turn
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = [pytest.mark.spark, in_turn]

# Index of the lost snapshot.
LOST = 2


class Repository:
    """A repository of eight commits that loses the object of the third one."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.house = Lakehouse(spark, root, settings={"quarantine_days": 14, "gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
        self.house.warehouse.mkdir()
        self.builder = RepositoryBuilder.create(self.house.warehouse / "weather", days_ago(60))
        writes = (numbers("v", range(3)) if number == 0 else set_value("v", number % 3, number) for number in range(8))
        self.ids = [self.builder.commit("main", days_ago(50 - number), write) for number, write in enumerate(writes)]
        self.garbage = {self.house.key(path) for path in self.builder.abandon_writer("main", days_ago(30), numbers("z", range(2)))}
        self.lost = self.builder.snapshot_file(self.ids[LOST])
        self.backup = self.lost.read_bytes()

    def run(self, days: float = 1, **settings: object) -> PlanHeader:
        self.house.lakes = [self.house.weather(**settings)]
        self.house.now += timedelta(days=days)
        return self.house.plan()

    def restore(self) -> None:
        self.lost.write_bytes(self.backup)
        os.utime(self.lost, (days_ago(48).timestamp(),) * 2)

    def read_all(self) -> None:
        repo = self.builder.reopen()
        for snapshot in self.ids:
            zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, mode="r")["v"][:]


@pytest.fixture
def repository(spark: SparkSession, tmp_path: Path) -> Repository:
    return Repository(spark, tmp_path)


@pytest.mark.parametrize("has_earlier_run", [True, False])
def test_nothing_is_planned_while_a_snapshot_is_missing(repository: Repository, has_earlier_run: bool) -> None:
    if has_earlier_run:
        repository.run()
    repository.lost.unlink()
    for days in (1, 15):
        header = repository.run(days)
        assert repository.house.planned_actions() == {}
        (unreadable,) = header.unreadable
        assert f"has the parent {repository.ids[LOST]}, which is not in snapshots/" in unreadable.why
        assert "Run again" in unreadable.why
        assert "If the error persists, restore " in unreadable.why
        assert f"add {repository.ids[LOST]} to lost_snapshots" in unreadable.why

    repository.restore()
    header = repository.run()
    assert not header.failed_gates
    assert set(repository.house.planned_actions()) == repository.garbage
    repository.house.approve_and_apply(header)
    repository.read_all()


def test_snapshots_before_an_accepted_lost_snapshot_are_dangling(repository: Repository) -> None:
    repository.lost.unlink()
    header = repository.run(lost_snapshots=[repository.ids[LOST]])
    assert not header.unreadable
    assert {id for id in repository.ids if f"weather/snapshots/{id}" in repository.house.planned_actions()} == set(repository.ids[:LOST])
    assert repository.garbage <= repository.house.planned_actions().keys()
    assert any("lost_snapshots accepts" in note for note in repository.house.summary("reachable_snapshots", "weather")["notes"])

    repository.restore()
    repository.run(lost_snapshots=[repository.ids[LOST]])
    assert set(repository.house.planned_actions()) == repository.garbage
    assert any("exists again" in note for note in repository.house.summary("reachable_snapshots", "weather")["notes"])


def test_lost_snapshots_setting_accepts_only_object_ids() -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        IcechunkLakeConfig.model_validate({"name": "x", "kind": "icechunk", "location": "/x", "lost_snapshots": ["main"]})
