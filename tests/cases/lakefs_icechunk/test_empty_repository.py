"""An empty lakeFS repository next to another lake ended every run with code 3.

Source: `POST /repositories` on lakeFS 1.84, nothing else. The `live_set` gate counted the refs of the other lake, whose files are in
another storage. A plan that takes nothing endangers nothing, and an empty repository is no sign of a wrong location.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.plan import PlanHeader
from gc_assets.stages.delete.plan import deletion_plan, header_of
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.dates import next_noon
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = pytest.mark.spark

START = next_noon(days=30)


class TwoStorages(Lakehouse):
    """`new` is the namespace of an empty repository, `warehouse` contains an Iceberg lake."""

    @property
    def config(self) -> Config:
        settings = {"mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
        storages = [{"name": name, "location": f"file://{self.root}/{name}/", **settings} for name in ("new", "warehouse")]
        return super().config.model_copy(update={"storages": tuple(StorageConfig.model_validate(item) for item in storages)})

    def sweep(self) -> PlanHeader:
        context = self.run_context()
        for storage in ("new", "warehouse"):
            live_filter(self.spark, context, storage)
            storage_inventory(self.spark, context, storage)
        for storage in ("new", "warehouse"):
            orphan_files(self.spark, context, storage)
        return header_of(deletion_plan(self.spark, context, self.storage))


def test_empty_repository_does_not_refuse_the_plan_of_another_lake(spark: SparkSession, tmp_path: Path) -> None:
    sales = LakeBuilder(tmp_path)
    sales.table("db.t", START - timedelta(days=30)).append(START - timedelta(days=20))
    empty = RepositoryBuilder(tmp_path, START - timedelta(days=60), "new")
    with FakeServer(empty.repository).running() as url:
        house = TwoStorages(spark, tmp_path, now=START, storage="new")
        house.lakes = [sales.config(), config_of(url, "new", location=f"file://{empty.namespace}/")]
        header = house.plan()
        assert header.failed_gates == []
        assert not header.has_work

        leftover = empty.upload()
        house.now += timedelta(days=1)
        header = house.plan()
        assert header.failed_gates == []
        assert house.keys("deletion_plan", "new") == {leftover}
        assert outcomes(house.approve_and_apply(header)) == {"done"}
        assert not (empty.namespace / leftover).exists()
