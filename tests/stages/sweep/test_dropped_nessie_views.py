"""Metadata of a dropped Nessie view in the location of a table refuses no plan, and is collected."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.depth import in_turn
from tests.lakes.nessie.builder import NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse
from tests.stages.sweep.test_dropped_nessie_tables import START

pytestmark = [pytest.mark.spark, in_turn]
UUID = "8f0a291b-f981-472c-9e4d-33ed4e5bab50"


@pytest.mark.parametrize("is_branch_deleted", [False, True], ids=["drop_view", "deleted_branch"])
def test_metadata_of_a_dropped_view_is_collected(spark: SparkSession, nessie: Server, tmp_path: Path, is_branch_deleted: bool) -> None:
    house = Lakehouse(spark, tmp_path, now=START, settings={"gates": {"max_delete_share": 1, "max_live_drop": 1}})
    builder = NessieBuilder(nessie.uri, house.warehouse)
    main = builder.on()
    main.new("db.t")
    table = builder.content(("db", "t"))
    assert table is not None
    view = write_view(Path(table["metadataLocation"].removeprefix("file://")).parent / "00001-v.metadata.json")
    content = {
        "type": "ICEBERG_VIEW",
        "metadataLocation": f"file://{view}",
        "versionId": 1,
        "schemaId": 0,
        "dialect": "spark",
        "sqlText": "select 1",
    }
    if is_branch_deleted:
        builder.branch("dev")
        builder.put(("db", "v"), content, "dev")
    else:
        builder.put(("db", "v"), content)
    house.lakes = [builder.config(retention={"default": "1"})]
    assert house.failed_gates(house.plan()) == set()
    assert house.key(view) in house.live()
    if is_branch_deleted:
        builder.drop("dev")
    else:
        builder.commit([{"type": "DELETE", "key": {"elements": ["db", "v"]}}])
    for day in (1, 5, 13):
        house.now = START + timedelta(days=day)
        assert house.failed_gates(house.plan()) == set()
    assert house.key(view) in house.planned_actions()


def write_view(path: Path) -> Path:
    at = START - timedelta(days=40)
    version = {"version-id": 1, "timestamp-ms": int(at.timestamp() * 1000), "schema-id": 0, "summary": {}, "default-namespace": ["db"]}
    versions = [{**version, "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}]}]
    location = f"file://{path.parent.parent}"
    document = {"view-uuid": UUID, "format-version": 1, "location": location, "current-version-id": 1, "versions": versions}
    path.write_text(json.dumps({**document, "schemas": [], "properties": {}, "version-log": []}))
    os.utime(path, (at.timestamp(), at.timestamp()))
    return path
