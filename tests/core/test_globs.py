"""Patterns of keys, as in `protect` in lakes.yaml."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gc_assets.core.globs import glob_regex

KEYS = ("raw/a.csv", "raw/x/b.csv", "raw/x/y/c.csv", "raws/d.csv", "db/raw/e.csv", "a+b/(c)", "n/x\ny/z\n.csv")


@pytest.mark.parametrize(
    "pattern, matched",
    [
        ("raw/**", KEYS[:3]),
        ("raw/", KEYS[:3]),
        ("raw", KEYS[:3]),
        ("raw/*.csv", KEYS[:1]),
        ("raw/*", KEYS[:3]),  # a directory that matches is protected as a whole
        ("raw/?/*.csv", KEYS[1:2]),
        ("**/raw/**", (*KEYS[:3], KEYS[4])),
        ("**/c.csv", KEYS[2:3]),
        ("raw/**/c.csv", KEYS[2:3]),
        ("a+b/(c)", KEYS[5:6]),
        ("n/**", KEYS[6:]),
        ("n", KEYS[6:]),
        ("n/*/z?.csv", KEYS[6:]),
        ("**/*.csv", (*KEYS[:5], KEYS[6])),
        ("RAW/**", ()),
    ],
)
def test_glob_matches_keys_and_all_files_in_matched_directories(pattern: str, matched: tuple[str, ...]) -> None:
    keys = pa.array(KEYS)
    assert tuple(keys.filter(pc.match_substring_regex(keys, glob_regex([pattern]))).to_pylist()) == matched


def test_empty_pattern_list_has_no_regular_expression() -> None:
    assert glob_regex([]) is None
