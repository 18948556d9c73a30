"""New or emptied lakes through all stages: their empty live sets are valid."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import icechunk
import pytest
from pyspark.sql import SparkSession

from gc_assets.assets import checks
from gc_assets.state.schemas import LIVE_FILES
from tests.dates import next_noon
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.fake_server import FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse, outcomes

pytestmark = pytest.mark.spark

START = next_noon(days=30)


def write_old_file(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    at = (START - timedelta(days=days)).timestamp()
    os.utime(path, (at, at))
    return path


def test_empty_lakes_of_every_kind_are_planned_and_applied(spark: SparkSession, nessie_server: Server, tmp_path: Path) -> None:
    nessie_server.reset()
    house = Lakehouse(spark, tmp_path, now=START)
    sales, shop = LakeBuilder(tmp_path), NessieBuilder(nessie_server.uri, house.warehouse)
    sales.catalog.create_namespace("db")
    shop.create_empty("dev")
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(house.warehouse / "weather")))
    emptied_repository = RepositoryBuilder(house.warehouse, START - timedelta(days=60))
    emptied_repository.rules(10)
    emptied_repository.commit("main", a=b"1")
    emptied_repository.now = START - timedelta(days=40)
    emptied_repository.delete("main", "a")
    emptied_repository.commit("main")
    gone = {f"ml-data/{key}" for key in emptied_repository.files()}
    with FakeServer(emptied_repository.repository).running() as url:
        house.lakes = [
            sales.config(),
            shop.config(),
            house.weather(),
            config_of(url, "ml-data", location=f"file://{emptied_repository.namespace}/"),
        ]
        leftover = write_old_file(house.warehouse / "weather" / "chunks" / ("0" * 20), 20)
        header = house.plan()
        assert header.failed_gates == []
        assert house.keys("deletion_plan") == {*gone, house.key(leftover)}
        assert header.live_by_lake.keys() == {"weather"}
        context = house.run_context()
        assert all(checks.LIVE_WHILE_REFS.evaluate(context, context.table(LIVE_FILES, lake.name)).passed for lake in house.lakes)
        assert outcomes(house.approve_and_apply(header)) == {"done"}
