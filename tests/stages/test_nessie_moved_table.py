"""A table of a Nessie server that moved to another catalog, while other tables of the server are written."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dates import next_noon
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("commits", [1, 2])
def test_table_that_another_catalog_writes_refuses_the_plan(spark: SparkSession, nessie: Server, tmp_path: Path, commits: int) -> None:
    house = Lakehouse(spark, tmp_path, now=next_noon(days=36), settings={"gates": {"max_delete_share": 1}})
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    main.new("db.moved")
    main.append("db.moved")
    main.new("db.other")
    content = builder.content(["db", "moved"])
    assert content is not None
    new = LakeBuilder(house.root, catalog_name="new", catalog_file="new.db")
    new.catalog.create_namespace("db")
    moved = new.register("db.moved", content["metadataLocation"])
    for _ in range(commits):
        time.sleep(0.01)
        moved.append(datetime.now(UTC))
    main.append("db.other")
    house.lakes = [builder.config(retention={"default": "5d"})]
    assert house.failed_gates(house.plan()) == {"foreign_metadata"}
