"""A live key is always found; a dead one is taken for live about once in a million."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gc_assets.core.errors import GcError, StateError
from gc_assets.core.filter import Filter, FilterSpec

SEED = 20260101


def random_hashes(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count, np.int64)


def filled(hashes: NDArray[np.int64], seed: int = SEED, keys: int | None = None) -> Filter:
    live = Filter.empty(FilterSpec.for_keys(len(hashes) if keys is None else keys, seed))
    live.add(hashes)
    return live


HASHES = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60).map(lambda values: np.array(values, np.int64))


@given(HASHES, HASHES, st.integers(0, 2**31))
def test_no_live_key_is_ever_missed(first: NDArray[np.int64], second: NDArray[np.int64], seed: int) -> None:
    live = filled(first, seed, keys=2)  # far too small for what goes in
    live.add(second)
    live.add(np.concatenate([first, first]))
    assert live.contains(np.concatenate([first, second])).all()
    live.self_test(np.concatenate([first, second]))


@pytest.mark.parametrize("keys", [1, 100, 16_384, 16_385, 100_000])
def test_no_live_key_is_missed_whatever_the_number(keys: int) -> None:
    hashes = random_hashes(keys)
    assert filled(hashes).contains(hashes).all()


@pytest.mark.parametrize("keys", [100_000, 1_000_000])
def test_the_false_positive_rate_is_the_promised_one(keys: int) -> None:
    # 3 million samples expect 3 hits; 13 or more come once in 10,000 filters that keep the promise.
    assert filled(random_hashes(keys)).measured_fpr(3_000_000, np.random.default_rng(1)) < 13 / 3_000_000


def test_a_filter_that_is_overfull_shows_in_its_measured_rate() -> None:
    overfull = filled(random_hashes(100_000), keys=25_000)
    assert overfull.measured_fpr(100_000, np.random.default_rng(1)) > 1e-3


def test_hashes_that_differ_little_are_as_good_as_random_ones() -> None:
    live = filled(np.arange(200_000, dtype=np.int64))
    assert np.count_nonzero(live.contains(np.arange(200_000, 1_200_000, dtype=np.int64))) < 10


def test_another_run_date_takes_other_dead_keys_for_live() -> None:
    hashes, dead = random_hashes(50_000), random_hashes(400_000, seed=1)
    tonight, tomorrow = (np.flatnonzero(filled(hashes, seed, keys=12_500).contains(dead)) for seed in (SEED, SEED + 1))
    assert len(tonight) > 1_000
    assert len(np.intersect1d(tonight, tomorrow)) < len(tonight) / 20


def test_an_empty_filter_holds_nothing() -> None:
    empty = Filter.empty(FilterSpec.for_keys(0, SEED))
    assert not empty.contains(random_hashes(1_000)).any()
    assert Filter.from_bytes(empty.to_bytes()).contains(random_hashes(0)).shape == (0,)


@given(HASHES, HASHES)
def test_merging_parts_gives_the_filter_of_the_whole(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    whole, part = filled(np.concatenate([first, second]), keys=100), filled(first, keys=100)
    part.merge(filled(second, keys=100))
    assert part.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("other", [FilterSpec.for_keys(100, SEED + 1), FilterSpec.for_keys(101, SEED)])
def test_filters_of_different_specs_are_not_merged(other: FilterSpec) -> None:
    with pytest.raises(StateError, match="cannot be merged"):
        Filter.empty(FilterSpec.for_keys(100, SEED)).merge(Filter.empty(other))


def test_a_filter_survives_its_bytes_and_can_be_added_to() -> None:
    hashes, more = random_hashes(5_000), random_hashes(50, seed=1)
    again = Filter.from_bytes(filled(hashes).to_bytes())
    assert again.spec == FilterSpec.for_keys(5_000, SEED)
    again.self_test(hashes)
    again.add(more)
    again.self_test(more)


@pytest.mark.parametrize("kept", [0, 7, 30, 47, 48, 1_000, -1])
def test_truncated_bytes_are_refused(kept: int) -> None:
    raw = filled(random_hashes(1_000)).to_bytes()
    with pytest.raises(StateError, match="create it again"):
        Filter.from_bytes(raw[:kept])


def test_any_changed_byte_is_refused() -> None:
    raw = filled(random_hashes(10)).to_bytes()
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises(StateError):
            Filter.from_bytes(bytes(changed))


def test_a_newer_version_is_refused_by_number() -> None:
    newer = Filter.empty(FilterSpec(keys=10, seed=SEED, blocks=1, version=2))
    with pytest.raises(StateError, match=r"version 2 .* reads version 1"):
        Filter.from_bytes(newer.to_bytes())


def test_the_self_test_names_how_many_live_keys_are_missing() -> None:
    hashes = random_hashes(1_000)
    with pytest.raises(StateError, match=r"10 of 1,000 live keys"):
        filled(hashes[10:]).self_test(hashes)


def test_a_storage_too_large_for_one_filter_is_refused_with_the_limit() -> None:
    with pytest.raises(GcError, match=r"3,435,973,836 keys, found 4,000,000,000"):
        FilterSpec.for_keys(4_000_000_000, SEED)
