"""Datasets of other formats are recognised by the keys of their files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.stages.sweep.foreign_files import find_datasets, outermost


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


def test_dataset_at_root_of_claim_does_not_hide_nested_datasets() -> None:
    """A dataset that is the whole claim of a lake does not count, so those in it must be found."""
    claims = Claims.of([PrefixClaim("w/", Owner("shop", None)), PrefixClaim("w/t/", Owner("shop", "1"), table="1")])
    keys = ["w/offsets/0", "w/raw/snapshot/snapshot-1", "w/raw/x.zarr/zarr.json", "w/t/.zgroup", "w/t/a/.zgroup", "w/t/a/b/.zgroup"]
    found = outermost(pa.Table.from_batches([find_datasets(pa.array(keys))]), claims)
    assert found.column("key").to_pylist() == ["w/", "w/raw/", "w/t/", "w/t/a/"]
