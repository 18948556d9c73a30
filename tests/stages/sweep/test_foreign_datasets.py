"""Datasets of other formats are recognised by the keys of their files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gc_assets.stages.sweep.foreign_files import find_datasets


@pytest.mark.parametrize(
    "key, root",
    [
        ("_delta_log/0.json", ""),
        ("d/_delta_log/0.json", "d/"),
        ("d\n1/_delta_log/0.json", "d\n1/"),
        ("a\nb/c/snapshot/LATEST", "a\nb/c/"),
        ("a\nb/c\n.lance/data/x", "a\nb/c\n.lance/"),
    ],
)
def test_dataset_is_found_in_any_directory(key: str, root: str) -> None:
    assert find_datasets(pa.array([key])).column("key").to_pylist() == [root]
