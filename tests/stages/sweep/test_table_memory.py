"""A sweep remembers the tables of its lakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.sweep import table_memory
from tests.stages.sweep.test_dropped_tables import Shop

pytestmark = pytest.mark.spark


def test_catalog_is_looked_up_once_for_all_tables_of_lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lookup opens a table of the state, which takes several requests to an object store."""
    shop, looked_up, catalog_identity = Shop(spark, tmp_path, "abc"), list[str](), table_memory.catalog_identity

    def look_up(context: RunContext, lake_name: str) -> str:
        looked_up.append(lake_name)
        return catalog_identity(context, lake_name)

    monkeypatch.setattr(table_memory, "catalog_identity", look_up)
    shop.run(0.5)
    assert looked_up == ["sales"]
