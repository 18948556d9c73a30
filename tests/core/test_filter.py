"""The filter contains every live key, and one in a million other keys."""

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


def make_filter(hashes: NDArray[np.int64], seed: int = SEED, keys: int | None = None) -> Filter:
    live = Filter.empty(FilterSpec.for_keys(len(hashes) if keys is None else keys, seed))
    live.add(hashes)
    return live


HASHES = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60).map(lambda values: np.array(values, np.int64))


@given(HASHES, HASHES, st.integers(0, 2**31))
def test_filter_contains_every_live_key(first: NDArray[np.int64], second: NDArray[np.int64], seed: int) -> None:
    live = make_filter(first, seed, keys=2)  # far too small for what goes in
    live.add(second)
    live.add(np.concatenate([first, first]))
    assert live.contains(np.concatenate([first, second])).all()


@pytest.mark.parametrize("keys", [1, 100, 16_384, 16_385, 100_000])
def test_filter_of_any_size_contains_every_live_key(keys: int) -> None:
    hashes = random_hashes(keys)
    assert make_filter(hashes).contains(hashes).all()


@pytest.mark.parametrize("keys", [100_000, 1_000_000])
def test_false_positive_rate_meets_target(keys: int) -> None:
    # 3 million samples give 3 hits on average. One in 10,000 correct filters gives 13 or more.
    assert make_filter(random_hashes(keys)).measured_fpr(3_000_000, np.random.default_rng(1)) < 13 / 3_000_000


def test_measured_false_positive_rate_shows_overfull_filter() -> None:
    overfull = make_filter(random_hashes(100_000), keys=25_000)
    assert overfull.measured_fpr(100_000, np.random.default_rng(1)) > 1e-3


def test_similar_hashes_keep_false_positive_rate() -> None:
    live = make_filter(np.arange(200_000, dtype=np.int64))
    assert np.count_nonzero(live.contains(np.arange(200_000, 1_200_000, dtype=np.int64))) < 10


def test_false_positives_change_with_run_date() -> None:
    hashes, dead = random_hashes(50_000), random_hashes(400_000, seed=1)
    current, tomorrow = (np.flatnonzero(make_filter(hashes, seed, keys=12_500).contains(dead)) for seed in (SEED, SEED + 1))
    assert len(current) > 1_000
    assert len(np.intersect1d(current, tomorrow)) < len(current) / 20


def test_empty_filter_contains_nothing() -> None:
    empty = Filter.empty(FilterSpec.for_keys(0, SEED))
    assert not empty.contains(random_hashes(1_000)).any()
    assert Filter.from_bytes(empty.to_bytes()).contains(random_hashes(0)).shape == (0,)


@given(HASHES, HASHES)
def test_merged_parts_equal_filter_of_all_keys(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    expected, part = make_filter(np.concatenate([first, second]), keys=100), make_filter(first, keys=100)
    part.merge(make_filter(second, keys=100))
    assert part.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("other", [FilterSpec.for_keys(100, SEED + 1), FilterSpec.for_keys(101, SEED)])
def test_merge_rejects_filters_with_different_specs(other: FilterSpec) -> None:
    with pytest.raises(StateError, match="cannot be merged"):
        Filter.empty(FilterSpec.for_keys(100, SEED)).merge(Filter.empty(other))


def test_filter_round_trips_and_accepts_keys() -> None:
    hashes, more = random_hashes(5_000), random_hashes(50, seed=1)
    again = Filter.from_bytes(make_filter(hashes).to_bytes())
    assert again.spec == FilterSpec.for_keys(5_000, SEED)
    assert again.contains(hashes).all()
    again.add(more)
    assert again.contains(more).all()


@pytest.mark.parametrize("kept", [0, 7, 30, 47, 48, 1_000, -1])
def test_truncated_filter_is_rejected(kept: int) -> None:
    raw = make_filter(random_hashes(1_000)).to_bytes()
    with pytest.raises(StateError, match="create it again"):
        Filter.from_bytes(raw[:kept])


def test_changed_filter_byte_is_rejected() -> None:
    raw = make_filter(random_hashes(10)).to_bytes()
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises(StateError):
            Filter.from_bytes(bytes(changed))


def test_newer_filter_version_is_rejected() -> None:
    newer = Filter.empty(FilterSpec(keys=10, seed=SEED, blocks=1, version=2))
    with pytest.raises(StateError, match=r"version 2 .* reads version 1"):
        Filter.from_bytes(newer.to_bytes())


def test_filter_rejects_too_many_keys() -> None:
    with pytest.raises(GcError, match=r"3,435,973,836 keys, found 4,000,000,000"):
        FilterSpec.for_keys(4_000_000_000, SEED)
