"""`protect` does not hide the metadata of another catalog, whose data files are not protected."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark


def failed_gates(spark: SparkSession, root: Path, protect: str, name: str = "db.t") -> set[str]:
    """Plan a table with another catalog's table in its directory or in a directory of it."""
    house = Lakehouse(spark, root, settings={"protect": [protect], "gates": {"max_delete_share": 1.0}})
    lake = LakeBuilder(house.root)
    lake.table("db.t", days_ago(60)).append(days_ago(50))
    other = LakeBuilder(house.root, catalog_name="other", catalog_file="other.db")
    place = f"file://{house.warehouse}/db/t" if name == "db.t" else f"file://{house.warehouse}/db/t/inner"
    other.table(name, days_ago(40), location=place).append(days_ago(30))
    house.lakes = [lake.config("sales")]
    return house.failed_gates(house.plan())


def test_protected_metadata_of_unknown_table_refuses_plan(spark: SparkSession, tmp_path: Path) -> None:
    assert failed_gates(spark, tmp_path, "**/metadata/**") == {"foreign_metadata"}


def test_fully_protected_unknown_table_does_not_refuse_plan(spark: SparkSession, tmp_path: Path) -> None:
    assert failed_gates(spark, tmp_path, "db/t/inner/**", "db.inner") == set()


def test_partly_protected_unknown_table_refuses_plan(spark: SparkSession, tmp_path: Path) -> None:
    assert failed_gates(spark, tmp_path, "db/t/inner/*/*.json", "db.inner") == {"foreign_metadata"}
