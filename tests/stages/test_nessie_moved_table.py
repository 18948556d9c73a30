"""A table of a Nessie server that another catalog writes, while tables of the server are written."""

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


@pytest.mark.parametrize("commits, written_on_server", [(1, "db.other"), (2, "db.moved")])
def test_table_written_by_another_catalog_refuses_plan(
    spark: SparkSession, nessie: Server, tmp_path: Path, commits: int, written_on_server: str
) -> None:
    """One commit is newer than the table on the server, whatever other tables are written there. If the server's table is newer, the
    second commit is found, because it follows a file that the server never had."""
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
    main.append(written_on_server)
    house.lakes = [builder.config(retention={"default": "5d"})]
    assert house.failed_gates(house.plan()) == {"foreign_metadata"}
