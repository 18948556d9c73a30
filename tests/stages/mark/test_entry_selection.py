"""Selected entries equal those that a reader of the whole cache finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark import live_rows
from gc_assets.stages.mark.entry_selection import select_entries
from gc_assets.state import parts
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import SELECTED_ENTRIES
from tests.depth import example_count
from tests.stages.mark.incremental_histories import play
from tests.state.publisher import DAY

RUN = TableRun("lake", "live_files", DAY, "run")
By = Literal["container", "key"]
NO_SPARK = cast(SparkSession, None)  # this process reads so few bytes itself


def entry(number: int, **columns: Any) -> dict[str, Any]:
    plain = {"container": f"c{number % 3}", "address": f"file:///w/k{number}", "key": f"k{number}", "storage": "w", "kind": Kind.DATA}
    return {**plain, "is_container": False, "must_exist": True, **columns}


# One file is in no storage, one is deleted, and one entry is a container.
ENTRIES = [
    *map(entry, range(20)),
    entry(20, key=None, storage=None, address="elsewhere://k"),
    entry(3, entry_status="deleted", container="c9"),
    entry(4, is_container=True),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(parts, "GROUP_ROWS", 4)
    return Files(str(tmp_path))


def write(files: Files, rows: list[dict[str, Any]], schema: pa.Schema, name: str) -> list[str]:
    writer = PartWriter(files, name, schema)
    for batch in pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=4):
        writer.write(batch)
    return [f"{name}/{part.name}" for part in writer.close()]


def select(files: Files, by: By, values: list[str], cache: list[str] | None = None) -> list[dict[str, Any]]:
    cache = cache or write(files, ENTRIES, MANIFEST_ENTRIES.schema, "cache")
    wanted = write(files, [{by: value} for value in values], pa.schema([(by, pa.string())]), "wanted")
    found = select_entries(NO_SPARK, files, RUN, cache, by, wanted, "_selected")
    return read_parts(files, [f"{RUN.path}/{part.name}" for part in found], SELECTED_ENTRIES).to_pylist()


@pytest.mark.parametrize(
    "by, values",
    [
        ("key", ["k3", "k19", "elsewhere://k", "unknown"]),
        ("key", []),
        ("container", ["c1", "c9", "unknown"]),
        ("container", ["c0", "c1", "c2"]),
    ],
)
def test_files_with_one_of_the_values_are_selected(files: Files, by: By, values: list[str]) -> None:
    entries = pa.Table.from_pylist(ENTRIES, SELECTED_ENTRIES).to_pylist()
    keyed = [({"key": row["key"] or row["address"], "container": row["container"]}[by], row) for row in entries if not row["is_container"]]
    assert select(files, by, values) == [row for value, row in keyed if value in values]


def test_missing_or_damaged_part_is_reported(files: Files) -> None:
    with pytest.raises(StateError, match=r"cache/gone\.parquet is missing"):
        select(files, "key", ["k3"], ["cache/gone.parquet"])
    (part,) = write(files, ENTRIES, MANIFEST_ENTRIES.schema, "cache")
    files.replace(part, b"no Parquet")
    with pytest.raises(StateError, match=f"{part} is damaged"):
        select(files, "key", ["k3"], [part])


@pytest.mark.spark
def test_spark_joins_long_lists_of_values(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`play` compares with a full run."""
    monkeypatch.setattr(live_rows, "MAX_VALUES", 0)
    events = play(spark, tmp_path, "iceberg", histories=example_count(2, 6), runs=4).events
    assert events["reused"]
