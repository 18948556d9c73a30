"""A filtered scan of the state's Parquet files skips row groups and rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gc_assets.engine.state_scan import scan_in_process
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("is_container", pa.bool_())])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def part(files: Files, *rows: tuple[str, bool | None]) -> str:
    writer = PartWriter(files, "run", SCHEMA)
    writer.write(pa.RecordBatch.from_pylist([{"key": key, "is_container": value} for key, value in rows], schema=SCHEMA))
    return f"run/{writer.close()[0].name}"


def read(files: Files, paths: list[str], value: bool) -> list[str]:
    return scan_in_process(files, SCHEMA, paths, ("is_container", value)).column("key").to_pylist()


def test_scan_skips_row_groups_without_value(files: Files) -> None:
    paths = [part(files, ("a", False), ("b", False)), part(files, ("c", True))]
    assert read(files, paths, value=False) == ["a", "b"]
    assert read(files, paths, value=True) == ["c"]
    assert scan_in_process(files, SCHEMA, paths).column("key").to_pylist() == ["a", "b", "c"]


def test_scan_filters_out_rows_with_another_value(files: Files) -> None:
    assert read(files, [part(files, ("a", False), ("b", True))], value=False) == ["a"]


def test_scan_keeps_rows_with_null(files: Files) -> None:
    assert read(files, [part(files, ("a", None), ("b", False))], value=False) == ["a", "b"]
    assert read(files, [part(files, ("a", None))], value=False) == ["a"]


def test_scan_reads_file_without_statistics(files: Files, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"key": "a", "is_container": False}, {"key": "b", "is_container": True}], schema=SCHEMA)
    (tmp_path / "run").mkdir()
    pq.write_table(rows, tmp_path / "run" / "part-0.parquet", write_statistics=False)
    assert read(files, ["run/part-0.parquet"], value=False) == ["a"]
