"""Search among many hashes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.sorted_hashes import HashSet, SpelledHashes, group_sorted, sort_distinct

# Few values and equal lowest bits, so that slots collide.
HASHES = st.lists(st.sampled_from([0, 1, -1, 2**40, 2**40 + 1, -(2**63), 2**63 - 1, 2**20, 2**30]), max_size=40)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(HASHES, HASHES)
def test_hash_set_contains_exactly_added_hashes(wanted: list[int], hashes: list[int]) -> None:
    index = HashSet(array(wanted))
    rows, positions = index.find(array(hashes))
    assert rows.tolist() == [row for row, value in enumerate(hashes) if value in wanted]
    assert index.hashes[positions].tolist() == [value for value in hashes if value in wanted]


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 2), max_size=12), st.lists(st.tuples(*[st.integers(0, 5)] * 2), max_size=12))
def test_keys_of_an_equal_form_that_differ_from_a_key_are_respelled(wanted: list[tuple[int, int]], given: list[tuple[int, int]]) -> None:
    (keys, loose), (given_keys, given_loose) = (([*zip(*pairs, strict=True)] or [(), ()]) for pairs in (wanted, given))
    rows, is_respelled = SpelledHashes(array(list(keys)), array(list(loose))).find(array(list(given_keys)), array(list(given_loose)))
    assert rows.tolist() == [row for row, (_, form) in enumerate(given) if form in loose]
    respelled = [any(form == own and key != other for other, own in wanted) for key, form in given if form in loose]
    assert is_respelled.tolist() == respelled


@given(HASHES)
def test_distinct_hashes_are_sorted(values: list[int]) -> None:
    assert sort_distinct(array(values)).tolist() == sorted(set(values))


@given(HASHES)
def test_hashes_are_grouped_by_equal_value(values: list[int]) -> None:
    order, first = group_sorted(array(values))
    assert sorted(order.tolist()) == list(range(len(values)))
    groups = [{values[row] for row in rows.tolist()} for rows in np.split(order, first)[1:]]
    assert groups == [{value} for value in sorted(set(values))]
