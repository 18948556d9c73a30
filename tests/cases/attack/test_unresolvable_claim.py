"""A table property with an address that cannot be resolved is not claimed, and never ends the run of all lakes.

Systems resolve `..` differently. By the alias, the address is one of the storage.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def test_location_under_alias_with_parent_component_is_not_claimed(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"aliases": ["https://nas.example.org/lake/"], "gates": {"max_delete_share": 1.0}}
    house, lake = Lakehouse(spark, tmp_path, settings=settings), LakeBuilder(tmp_path)
    address = "https://nas.example.org/lake/a/../b"
    table = lake.table("db.good", days_ago(40))
    table.append(days_ago(30))
    garbage = table.leftovers(days_ago(20), 2)
    lake.table("db.odd", days_ago(40), properties={"write.data.path": address})
    house.lakes = [lake.config("sales")]
    house.plan()
    assert {house.key(path) for path in garbage} == set(house.planned_actions())
    (note,) = [note for note in house.summary("lake_refs", "sales")["notes"] if address in note]
    assert "table db.odd" in note
    assert "contains `..`" in note
