"""Cached entries are read without the containers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.demo.iceberg_builder import LakeBuilder
from gc_assets.engine import tables
from gc_assets.engine.sessions import choose_session
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark.cached_entries import read_cached_entries
from gc_assets.state import compaction
from gc_assets.state.journal import State
from gc_assets.state.schemas import MANIFEST_ENTRIES
from tests.stages.lakehouse import NOW, Lakehouse


@pytest.mark.spark
def test_cached_containers_are_not_read_again_after_compaction(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is chosen by the number of files; with small commits there are a hundred times more containers."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=9))
    catalog = {name: value for name, value in builder.properties.items() if name != "warehouse"}
    config = {"name": "shop", "kind": "iceberg", "catalog_name": "default", "catalog": catalog}
    house = Lakehouse(spark, tmp_path, [IcebergLakeConfig.model_validate(config)])
    with monkeypatch.context() as patch:
        patch.setattr(State, "compact", lambda *_: None)
        for _ in range(5):
            table.append(house.now)
            house.now += timedelta(days=1)
            house.mark()
    read: list[pa.Table] = []
    frame_from_arrow = tables.frame_from_arrow
    monkeypatch.setattr(tables, "frame_from_arrow", lambda session, rows: read.append(rows) or frame_from_arrow(session, rows))

    def read_keys() -> set[str]:
        return {row["key"] for row in read_cached_entries(choose_session(spark, 1, 1), house.run_context(), "shop").collect()}

    keys = read_keys()
    files, runs = house.run_context().state.files, house.run_context().state.history("shop", MANIFEST_ENTRIES.name)
    assert compaction.compact(files, runs, compaction.read_list(files, "shop", MANIFEST_ENTRIES.name)) is not None
    assert read_keys() == keys
    assert len(keys) == 5
    assert [set(rows.column("is_container").to_pylist()) for rows in read] == [{False}, {False}]
