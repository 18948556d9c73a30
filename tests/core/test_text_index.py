"""Texts are found at the positions that a dictionary gives, even if hashes collide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gc_assets.core import text_index
from gc_assets.core.text_index import TextIndex

TEXTS = st.text(max_size=6)


def find(texts: Sequence[str], wanted: Sequence[str | None]) -> list[int]:
    return TextIndex(pa.array(texts, pa.string())).find(pa.array(wanted, pa.string())).tolist()


@given(st.lists(TEXTS, unique=True), st.lists(TEXTS))
def test_texts_are_found_at_original_positions(texts: list[str], others: list[str]) -> None:
    wanted = [*others, *texts[::2]]
    position = {text: number for number, text in enumerate(texts)}
    assert find(texts, wanted) == [position.get(text, -1) for text in wanted]


def test_text_with_only_equal_hash_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "xxhash64", hash_lengths)
    assert find(["a", "bb"], ["a", "x", "bb", "yy", "zzz"]) == [0, -1, 1, -1, -1]


def test_indexed_texts_with_equal_hashes_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "xxhash64", hash_lengths)
    assert find(["a", "b", "cc"], ["b", "a", "d", "cc"]) == [1, 0, -1, 2]


def test_missing_text_is_not_found() -> None:
    assert find(["", "a"], [None, "a", ""]) == [-1, 1, 0]
    assert find([], ["a"]) == [-1]
    assert find(["a"], []) == []


def hash_lengths(texts: pa.Array) -> NDArray[np.int64]:
    return np.array([len(text) for text in texts.to_pylist()], np.int64)
