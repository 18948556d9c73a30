"""Sizes of Icechunk chunks.

Before, chunks had no size in the live set. So the live bytes of a repository were those of its manifests and snapshots: 3.65 kB instead of
17 kB in a small repository, and its share of garbage on the page, its metrics and its costs were wrong.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.mark.lake_refs import read_side_rows
from gc_assets.stages.read.run_tables import summarize_tables
from gc_assets.state.side_tables import UNKNOWN_ADDRESSES, UNKNOWN_ADDRESSES_SIDE
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark


def write_repository(path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder.create(path, days_ago(30))
    for day, change in enumerate((numbers("values", range(20)), set_value("values", 3, 33))):
        builder.commit("main", days_ago(20) + timedelta(days=day), change)
    return builder


def test_repository_size_includes_chunks(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path)
    builder = write_repository(house.warehouse / "weather")
    house.lakes.append(house.weather())
    house.plan()
    (table,) = summarize_tables(house.run_context(), ["weather"], [STORAGE])
    sizes = {path: path.stat().st_size for path in builder.path.rglob("*") if path.is_file()}
    chunks = [size for path, size in sizes.items() if path.parent.name == "chunks"]
    logs = [size for path, size in sizes.items() if path.parent.name == "transactions"]  # Icechunk does not record their size.
    assert house.summary("live_files", "weather")["by_kind"]["chunk"] == {"files": len(chunks), "bytes": sum(chunks)}
    assert table.live is not None
    assert table.live.bytes == sum(sizes.values()) - sum(logs)


def test_repository_size_excludes_chunks_at_unknown_addresses(spark: SparkSession, tmp_path: Path) -> None:
    """A chunk file may be longer than the ranges that manifests read, so sizes must not exclude a planned file."""
    house = Lakehouse(spark, tmp_path)
    house.warehouse.mkdir()
    builder = write_repository(tmp_path / "outside")
    for chunk in (builder.path / "chunks").iterdir():
        chunk.unlink()
    house.lakes.append(IcechunkLakeConfig.model_validate({"name": "weather", "kind": "icechunk", "location": builder.location}))
    house.mark()
    published = house.find_table("live_files", "weather")
    rows = read_side_rows(house.run_context(), published, UNKNOWN_ADDRESSES_SIDE, UNKNOWN_ADDRESSES)
    chunks = [row for row in rows if "/chunks/" in row["address"]]
    assert chunks
    assert {row["size_bytes"] for row in chunks} == {None}
