"""Of the cached entries only the files come into this process, however many containers there are beside them."""

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
from gc_assets.state import compaction as folds
from gc_assets.state.journal import State
from gc_assets.state.schemas import MANIFEST_ENTRIES
from tests.stages.lakehouse import NOW, Lakehouse


@pytest.mark.spark
def test_containers_among_the_entries_are_not_held_also_where_a_fold_mixes_both(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of few rows is chosen by the number of files. Lists name a hundred times more containers where commits are small."""
    builder = LakeBuilder(tmp_path)
    table = builder.table("db.t", NOW - timedelta(days=9))
    catalog = {name: value for name, value in builder.properties.items() if name != "warehouse"}
    config = {"name": "shop", "kind": "iceberg", "catalog_name": "default", "catalog": catalog}
    house = Lakehouse(spark, tmp_path, [IcebergLakeConfig.model_validate(config)])
    with monkeypatch.context() as apart:
        apart.setattr(State, "_compact", lambda *_: None)
        for _ in range(5):
            table.append(house.now)
            house.now += timedelta(days=1)
            house.mark()
    held: list[pa.Table] = []
    frame_from_arrow = tables.frame_from_arrow
    monkeypatch.setattr(tables, "frame_from_arrow", lambda session, rows: held.append(rows) or frame_from_arrow(session, rows))

    def files() -> set[str]:
        return {row["key"] for row in read_cached_entries(choose_session(spark, 1, 1), house.tonight(), "shop").collect()}

    before = files()
    files_of, runs = house.tonight().state.files, house.tonight().state.history("shop", MANIFEST_ENTRIES.name)
    assert folds.compact(files_of, runs, folds.read_list(files_of, "shop", MANIFEST_ENTRIES.name)) is not None
    assert files() == before
    assert len(before) == 5
    assert [set(rows.column("is_container").to_pylist()) for rows in held] == [{False}, {False}]
