"""Aggregated columns keep their names."""

from __future__ import annotations

import pyarrow as pa

from gc_assets.core.aggregation import aggregate_rows


def test_columns_are_aggregated_under_their_own_names() -> None:
    rows = pa.table({"key": ["a", "b", "a"], "kind": ["x", "x", "x"], "size": [1, 2, 3], "rank": [5, 4, 3]})
    found = aggregate_rows(rows, ["key", "kind"], {"size": "max", "rank": "min"}).sort_by("key").to_pylist()
    assert found == [{"key": "a", "kind": "x", "size": 3, "rank": 3}, {"key": "b", "kind": "x", "size": 2, "rank": 4}]
    assert aggregate_rows(rows, "kind", {"size": "sum"}).to_pylist() == [{"kind": "x", "size": 6}]
