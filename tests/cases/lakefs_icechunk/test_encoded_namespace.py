"""Repositories in one place did not overlap if one namespace was percent-encoded.

lakeFS decodes the path of a namespace in a bucket and cuts its query (`resolveRelative` in `pkg/block/namespace.go`).
"""

from __future__ import annotations

import pytest

from gc_assets.lakes.lakefs.namespaces import find_incomparable, find_overlap
from tests.lakes.lakefs.lakefs_lakes import config_of


@pytest.mark.parametrize(
    "own, other",
    [
        ("s3://b/a b/", "s3://b/a%20b"),
        ("s3://b/a%20b", "s3://b/a b/data/sub"),
        ("s3://b/a%20b/", "s3://b/a%2520b"),  # a literal location
        ("s3://b/a", "s3://b/a?x=1"),
        ("s3://b/a", "S3://b/a/"),
        ("s3://b/%ff", "s3://b/%FF/x"),
        ("https://acc.blob.core.windows.net/lake/a%20b", "abfss://lake@acc.dfs.core.windows.net/a b/"),
    ],
)
def test_percent_encoded_namespaces_overlap(own: str, other: str) -> None:
    assert find_overlap(own, {"x": other}) == find_overlap(other, {"x": own}) == "x"


def test_sibling_namespaces_do_not_overlap() -> None:
    assert find_overlap("s3://b/a%20b", {"x": "s3://b/a%20c", "y": "local://a b"}) is None
    assert find_incomparable("s3://b/a b/", {"x": "s3://b/a%20b", "y": "s3://b?x=1"}) is None


@pytest.mark.parametrize(
    "location, namespace",
    [
        ("s3a://lake/ml", "s3://lake/raw"),
        ("S3://lake/ml/", "s3://lake/raw"),
        ("gcs://lake/ml", "gs://lake/raw"),
        ("abfs://lake@acc.dfs.core.windows.net/ml", "https://acc.blob.core.windows.net/lake/raw"),
    ],
)
def test_location_with_another_scheme_is_comparable_to_server_namespace(location: str, namespace: str) -> None:
    (found,) = config_of("http://localhost:8000", "ml", location=location).own_locations()
    assert find_incomparable(found, {"raw": namespace}) is None
