"""The scan of a column's buffer finds the same rows as a search in each row."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core import byte_scan
from gc_assets.core.byte_scan import find_rows, has_irregular_components

KEYS = st.lists(st.text(st.sampled_from("a/.é%"), max_size=6), max_size=12)


@given(KEYS, st.integers(0, 4), st.integers(0, 4))
def test_keys_with_empty_or_dot_components_are_irregular(keys: list[str], start: int, dropped: int) -> None:
    column = pa.array(keys, pa.string()).slice(start, max(0, len(keys) - start - dropped))
    found = has_irregular_components(column)
    for key, irregular in zip(column.to_pylist(), found, strict=True):
        # A slash at the end may be taken together with the next row, which costs time and nothing else.
        assert irregular or not re.search(r"^[/.]|/[/.]", key)
        assert not irregular or re.search(r"^[/.]|/[/.]|/$", key)


@given(KEYS, st.integers(0, 4))
def test_find_rows_returns_rows_containing_byte(keys: list[str], start: int) -> None:
    column = pa.array(keys, pa.string()).slice(start)
    assert find_rows(column, lambda byte, _: byte == ord("%")).tolist() == ["%" in key for key in column.to_pylist()]


def test_pattern_across_window_border_is_found() -> None:
    window = byte_scan.WINDOW_BYTES
    column = pa.array(["a" * (window - 1) + "//" + "b" * window, "c/d"])
    assert has_irregular_components(column).tolist() == [True, False]


def test_nulls_and_empty_columns_match_nothing() -> None:
    assert has_irregular_components(pa.array([None, ""], pa.string())).tolist() == [False, False]
    assert np.array_equal(has_irregular_components(pa.array([], pa.string())), np.zeros(0, bool))
