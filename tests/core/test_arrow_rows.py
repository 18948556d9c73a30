"""Rows are built from dataclasses, and changed and aggregated columns keep their names."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gc_assets.core.arrow_rows import aggregate_rows, exclude_rows, replace_columns, to_row


@dataclass(frozen=True, slots=True)
class _File:
    key: str
    names: tuple[str, ...]


def test_dataclass_row_contains_fields() -> None:
    names = ("a", "b")
    row = to_row(_File("k", names))
    assert row == {"key": "k", "names": names}
    assert row["names"] is names


def test_aggregated_columns_keep_their_names() -> None:
    rows = pa.table({"key": ["a", "b", "a"], "kind": ["x", "x", "x"], "size": [1, 2, 3], "rank": [5, 4, 3]})
    found = aggregate_rows(rows, ["key", "kind"], {"size": "max", "rank": "min"}).sort_by("key").to_pylist()
    assert found == [{"key": "a", "kind": "x", "size": 3, "rank": 3}, {"key": "b", "kind": "x", "size": 2, "rank": 4}]
    assert aggregate_rows(rows, "kind", {"size": "sum"}).to_pylist() == [{"kind": "x", "size": 6}]


def test_replaced_columns_keep_their_position_and_type() -> None:
    rows = pa.table({"key": pa.array(["a", "b"]), "rank": pa.array([1, 2], pa.int8()), "size": [3, 4]})
    found = replace_columns(rows, {"rank": pa.array([7, None], pa.int64()), "key": pa.chunked_array([["c"], ["d"]])})
    assert found.schema == rows.schema
    assert found.to_pylist() == [{"key": "c", "rank": 7, "size": 3}, {"key": "d", "rank": None, "size": 4}]


def test_masked_rows_are_excluded() -> None:
    rows = pa.table({"key": ["a", "b", "c"]})
    assert exclude_rows(rows, pa.chunked_array([[True, False, True]])).to_pylist() == [{"key": "b"}]
    assert exclude_rows(rows, pa.chunked_array([[False, False, False]])) is rows
