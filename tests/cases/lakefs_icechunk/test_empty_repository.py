"""An empty lakeFS repository next to another lake ended every run with code 3.

Source: `POST /repositories` on lakeFS 1.84, nothing else. The gate `live_set` counted the refs of the other lake, whose files are in
another storage. A plan that takes nothing endangers nothing, and an empty repository is no sign of a wrong location.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from tests.dates import next_noon
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.support import config_of
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = pytest.mark.spark

START = next_noon(days=30)


class TwoStorages(Lakehouse):
    """`new` is the namespace of an empty repository, `warehouse` contains an Iceberg lake."""

    @property
    def config(self) -> Config:
        settings = {"mode": "apply", "rehearsals": "allowed", "quarantine_days": 0}
        other = StorageConfig.model_validate({"name": "new", "location": f"file://{self.root}/new/", **settings})
        return super().config.model_copy(update={"storages": (*super().config.storages, other)})


def test_empty_repository_next_to_another_lake_is_planned_and_applied(spark: SparkSession, tmp_path: Path) -> None:
    sales = LakeBuilder(tmp_path)
    sales.table("db.t", START - timedelta(days=30)).append(START - timedelta(days=20))
    empty = RepositoryBuilder(tmp_path, START - timedelta(days=60), "new")
    with FakeServer(empty.repository).running() as url:
        house = TwoStorages(spark, tmp_path, now=START, storage="warehouse")
        house.lakes = [sales.config(), config_of(url, "new", location=f"file://{empty.namespace}/")]
        house.plan()
        house.storage = "new"
        assert house.sweep().failed_gates == []

        leftover = empty.upload()
        header = house.plan()
        assert header.failed_gates == []
        assert house.keys("deletion_plan") == {leftover}
        assert outcomes(house.approve_and_apply(header)) == {"done"}
        assert not (empty.namespace / leftover).exists()
