"""Repositories under a location in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from gc_assets.core.errors import UsageError
from gc_assets.lakes.discovery import DiscoveryTarget
from gc_assets.lakes.icechunk import discovery
from gc_assets.lakes.icechunk.envelope import MAGIC

V1 = ("snapshots/1CECHUNKREP0", "refs/branch.main/ref.json", "chunks/a", "manifests/b")
V2 = ("snapshots/1CECHUNKREP0", "repo", "chunks/a")


class Bucket:
    """Objects of a bucket by key. Objects with the name `repo` begin as those of Icechunk."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = sorted(keys)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        for key in self.keys:
            if f"s3://b/{key}".startswith(prefix):
                yield f"s3://b/{key}", 1, datetime(2026, 1, 1, tzinfo=UTC)

    def read(self, address: str) -> bytes:
        if address.removeprefix("s3://b/") not in self.keys:
            raise FileNotFoundError(address)
        return MAGIC if address.endswith("/repo") else b"other"

    def read_identified(self, address: str) -> tuple[bytes, str]:
        return self.read(address), ""

    def cached_identity(self, address: str) -> str | None:
        return None

    def size(self, address: str) -> int:
        return len(self.read(address))


def find(bucket: Bucket, address: str) -> list[tuple[str, str]]:
    return [(lake.name, lake.locations[0]) for lake in discovery.discover(DiscoveryTarget(address, bucket, {}))]


def under(prefix: str, names: Sequence[str]) -> list[str]:
    return [f"{prefix}{name}" for name in names]


BUCKET = Bucket([*under("a/weather/", V1), *under("x/y/z/radar/", V1), *under("x/y/ocean/", V2), "a/table/snapshots/only", "refs/text"])


@pytest.mark.parametrize(
    "address, found",
    [
        ("s3://b/", [("weather", "s3://b/a/weather/"), ("ocean", "s3://b/x/y/ocean/")]),
        ("s3://b/x", [("ocean", "s3://b/x/y/ocean/"), ("radar", "s3://b/x/y/z/radar/")]),
        ("s3://b/a/weather/", [("weather", "s3://b/a/weather/")]),
        ("s3://b/a/table/", []),
        ("s3://b/nothing/", []),
    ],
)
def test_discovery_finds_repositories_three_levels_deep(address: str, found: list[tuple[str, str]]) -> None:
    assert find(BUCKET, address) == found


def test_discovery_refuses_bucket_with_too_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_OBJECTS", 5)
    with pytest.raises(UsageError, match=r"more than 5 objects.*specify each of them, such as s3://b/a/weather"):
        find(BUCKET, "s3://b/")
