"""The classification of listed objects."""

from __future__ import annotations

import pyarrow as pa

from gc_assets.stages.sweep.probe import find_unmatched

KEYS = pa.array(["raw/landing/a.csv", "shop/orders/data/b.parquet"])


def test_protect_pattern_that_matches_no_listed_key_is_unused() -> None:
    assert find_unmatched(["raw/landng/**", "raw/*/a.csv", "shop/orders"], KEYS) == ("raw/landng/**",)


def test_all_protect_patterns_are_unused_in_empty_storage() -> None:
    assert find_unmatched(["raw/**"], pa.array([], pa.string())) == ("raw/**",)
