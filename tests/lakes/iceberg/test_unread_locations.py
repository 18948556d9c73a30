"""Locations that a table without readable metadata may have."""

from __future__ import annotations

import json

import pytest

from gc_assets.core.claims import find_table_location
from gc_assets.lakes.iceberg.unread_locations import absolute_locations, default_locations, read_locations, sibling_locations


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"text"', b'{"location": 5, "properties": []}', b"\x1f\x8b\x00", b"\xff"])
def test_damaged_metadata_has_no_locations(raw: bytes) -> None:
    assert read_locations(raw) == ()


def test_locations_of_an_unknown_format_version_are_read() -> None:
    properties = {"write.data.path": "s3://b/data", "write.metadata.path": 7}
    raw = json.dumps({"format-version": 99, "location": "s3://b/t", "properties": properties}).encode()
    assert read_locations(raw) == ("s3://b/t", "s3://b/data")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("db.t", {"s3://b/w/db/t/", "s3://b/w/db.db/t/"}),
        ("a.b.t", {"s3://b/w/a/b/t/", "s3://b/w/a.b/t/", "s3://b/w/a.b.db/t/"}),
        ("t", set()),
    ],
)
def test_default_locations_follow_known_engine_layouts(name: str, expected: set[str]) -> None:
    assert set(default_locations("s3://b/w/", name)) == expected
    assert default_locations(None, name) == ()


def test_location_is_guessed_from_other_tables_in_namespace() -> None:
    others = [("db.a", "s3://b/x/a/"), ("db.moved", "s3://b/y/old"), ("other.c", "s3://b/z/c")]
    assert list(sibling_locations("db.t", others)) == ["s3://b/x/t/"]


def test_unresolvable_addresses_are_left_out() -> None:
    assert absolute_locations(["prod", "relative/path", "s3://b/t", "s3://b/t/", "file:///w/../t"]) == ("s3://b/t/",)


@pytest.mark.parametrize(
    "address, location",
    [("s3://b/t/metadata/1.json", "s3://b/t/"), ("s3://b/logs/1.json", "s3://b/logs/"), ("file:/w/t/metadata/1.json", "file:/w/t/")],
)
def test_location_is_the_parent_of_the_metadata_directory(address: str, location: str) -> None:
    assert find_table_location(address) == location
