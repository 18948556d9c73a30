"""Iceberg's Java library gzips the metadata of views, which stopped every run of a Nessie lake.

Case iceberg/02: `create view` by Spark through NessieCatalog. The view spec does not mention gzip, and the format of tables names such
files `.gz.metadata.json`.

Sources: projectnessie/nessie #9074 and #9138, and format/spec.md ("Naming for GZIP compressed Metadata JSON files").
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cases.iceberg.test_one_unreadable_object import write_view
from tests.depth import in_turn
from tests.lakes.nessie.builder import LONG_AGO, NessieBuilder
from tests.lakes.nessie.server import Server
from tests.stages.lakehouse import Lakehouse

pytestmark = [pytest.mark.spark, in_turn]


def test_gzipped_metadata_of_view_is_live_and_garbage_is_planned(spark: SparkSession, nessie: Server, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0}})
    builder = NessieBuilder(nessie.uri, house.warehouse)
    leftovers = {house.key(path) for path in builder.on().new("db.t").leftovers(LONG_AGO, 2)}
    view = write_view(house.warehouse / "db/v/metadata/00000-v.gz.metadata.json", 1)
    unneeded = write_view(house.warehouse / "db/v/metadata/00000-w.gz.metadata.json", 1)
    content = {"type": "ICEBERG_VIEW", "metadataLocation": f"file://{view}", "versionId": 1, "schemaId": 0, "sqlText": "s", "dialect": "d"}
    builder.put(["db", "v"], content)
    house.lakes = [builder.config()]

    header = house.plan()

    assert (header.failed_gates, header.unreadable) == ([], ())
    assert house.key(view) in house.live()
    assert leftovers | {house.key(unneeded)} <= set(house.planned_actions())
    assert house.key(view) not in house.planned_actions()
