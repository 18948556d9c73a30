"""What is picked from the cache is what a reader of all of it would find."""

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
from tests.depth import times
from tests.stages.mark.carrying import play
from tests.state.publisher import DAY

RUN = TableRun("lake", "live_files", DAY, "run")
By = Literal["container", "key"]
NO_SPARK = cast(SparkSession, None)  # so few bytes are read by this process


def entry(number: int, **columns: Any) -> dict[str, Any]:
    plain = {"container": f"c{number % 3}", "address": f"file:///w/k{number}", "key": f"k{number}", "storage": "w", "kind": Kind.DATA}
    return {**plain, "is_container": False, "must_exist": True, **columns}


# One file lies in no storage, one is deleted, and one entry is a container.
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


def written(files: Files, rows: list[dict[str, Any]], schema: pa.Schema, name: str) -> list[str]:
    writer = PartWriter(files, name, schema)
    for batch in pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=4):
        writer.write(batch)
    return [f"{name}/{part.name}" for part in writer.close()]


def picked(files: Files, by: By, values: list[str], cache: list[str] | None = None) -> list[dict[str, Any]]:
    cache = cache or written(files, ENTRIES, MANIFEST_ENTRIES.schema, "cache")
    wanted = written(files, [{by: value} for value in values], pa.schema([(by, pa.string())]), "wanted")
    found = select_entries(NO_SPARK, files, RUN, cache, by, wanted, "_picked")
    return read_parts(files, [f"{RUN.path}/{part.name}" for part in found], SELECTED_ENTRIES).to_pylist()


@pytest.mark.parametrize(
    "by, values",
    [
        ("key", ["k3", "k19", "elsewhere://k", "nobody"]),
        ("key", []),
        ("container", ["c1", "c9", "nobody"]),
        ("container", ["c0", "c1", "c2"]),
    ],
)
def test_all_files_with_one_of_the_values_are_picked_and_no_others(files: Files, by: By, values: list[str]) -> None:
    whole = pa.Table.from_pylist(ENTRIES, SELECTED_ENTRIES).to_pylist()
    keyed = [({"key": row["key"] or row["address"], "container": row["container"]}[by], row) for row in whole if not row["is_container"]]
    assert picked(files, by, values) == [row for value, row in keyed if value in values]


def test_a_part_that_is_missing_or_damaged_is_named(files: Files) -> None:
    with pytest.raises(StateError, match=r"cache/gone\.parquet is missing"):
        picked(files, "key", ["k3"], ["cache/gone.parquet"])
    (part,) = written(files, ENTRIES, MANIFEST_ENTRIES.schema, "cache")
    files.replace(part, b"no Parquet")
    with pytest.raises(StateError, match=f"{part} is damaged"):
        picked(files, "key", ["k3"], [part])


@pytest.mark.spark
def test_where_too_much_would_be_looked_for_spark_finds_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`play` compares with a full computation."""
    monkeypatch.setattr(live_rows, "MAX_VALUES", 0)
    events = play(spark, tmp_path, "iceberg", histories=times(2, 6), nights=4).events
    assert events["carried"]
