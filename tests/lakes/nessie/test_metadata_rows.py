"""Decode metadata files of tables and views into rows of retained files, locations and uuids."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.nessie.locations import build_content_roots
from gc_assets.lakes.nessie.metadata_rows import KeepListed, table_rows, view_rows
from gc_assets.lakes.nessie.models import Content
from gc_assets.lakes.protocol import Container
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.nessie.builder import LONG_AGO

VIEW = {"view-uuid": "u", "location": "s3://b/v", "format-version": 1}


@pytest.fixture
def metadata_file(tmp_path: Path) -> tuple[Container, bytes, list[str]]:
    """Return a metadata file with three snapshots and a native tag on the first, and their ids."""
    lake = LakeBuilder(tmp_path)
    table = lake.table("db.t", LONG_AGO)
    ids = [table.append(LONG_AGO) for _ in range(3)]
    table.tag(LONG_AGO, "audit", ids[0])
    table.statistics(LONG_AGO, ids[1])
    address = table.metadata_location
    return Container(address, Kind.METADATA_JSON), table.path(address).read_bytes(), ids


@pytest.mark.parametrize("keep, retained", [("all", [0, 1, 2]), ("refs", [0, 2]), ("none", [2])])
def test_metadata_file_keeps_configured_listed_snapshots(
    metadata_file: tuple[Container, bytes, list[str]], keep: KeepListed, retained: list[int]
) -> None:
    container, raw, ids = metadata_file
    rows = table_rows(container, raw, keep).to_pylist()
    lists = [row for row in rows if row["kind"] == Kind.MANIFEST_LIST]
    assert {row["snapshot_id"] for row in lists} == {ids[number] for number in retained}
    statistics = {row["snapshot_id"] for row in rows if row["kind"] in {Kind.STATISTICS, Kind.PARTITION_STATISTICS}}
    assert statistics == ({ids[1]} if 1 in retained else set())


def test_only_current_snapshot_is_required(metadata_file: tuple[Container, bytes, list[str]]) -> None:
    container, raw, ids = metadata_file
    rows = table_rows(container, raw, "all").to_pylist()
    assert {row["snapshot_id"] for row in rows if row["must_exist"]} == {ids[2]}


def test_metadata_file_contains_locations_and_uuid(tmp_path: Path) -> None:
    lake = LakeBuilder(tmp_path)
    table = lake.table("db.t", LONG_AGO, properties={"write.data.path": f"file://{tmp_path}/data/"})
    address = table.metadata_location
    rows = table_rows(Container(address, Kind.METADATA_JSON), table.path(address).read_bytes(), "all").to_pylist()
    locations = {row["address"] for row in rows if row["kind"] == Kind.TABLE_LOCATION}
    assert locations == {f"{table.table.location()}/", f"file://{tmp_path}/data/"}
    assert [row["address"] for row in rows if row["kind"] == Kind.TABLE_UUID] == [f"urn:uuid:{table.uuid}"]


def test_view_metadata_contains_location_and_uuid() -> None:
    rows = view_rows(Container("s3://b/v/metadata/1.json", Kind.VIEW_METADATA), json.dumps(VIEW).encode()).to_pylist()
    assert [(row["kind"], row["address"]) for row in rows] == [("table_location", "s3://b/v/"), ("table_uuid", "urn:uuid:u")]


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b'{"location": "s3://b/v"}', json.dumps({**VIEW, "location": 1}).encode()])
def test_error_reports_invalid_view_metadata(document: bytes) -> None:
    with pytest.raises(FormatError, match=r"s3://b/v/metadata/1\.json: "):
        view_rows(Container("s3://b/v/metadata/1.json", Kind.VIEW_METADATA), document)


def content(**fields: Any) -> Content:
    return Content.model_validate(fields)


@pytest.mark.parametrize(
    "fields, protected",
    [
        ({"type": "UDF", "metadataLocation": "s3://b/f/metadata/1.json"}, ["s3://b/f/"]),
        ({"type": "UDF", "sqlText": "/* see lib/../udf.sql */ select 1", "dialect": "spark"}, []),
        ({"type": "UDF", "metadataLocation": "s3://b/f/metadata/1.json", "signatureId": "/s/"}, ["s3://b/f/"]),
        ({"type": "ACME_VIEW", "sqlText": "/* text */ select 1", "at": "s3://b/v/"}, ["s3://b/v/"]),
        (
            {"type": "DELTA_LAKE_TABLE", "metadataLocationHistory": ["s3://b/d/_delta_log/0.json"], "lastCheckpoint": "/e/_delta_log/9.cp"},
            ["s3://b/d/", "/e/"],
        ),
        ({"type": "ACME_TENSOR", "where": {"deep": ["s3a://b/tensors/one/"]}}, ["s3a://b/tensors/one/"]),
        ({"type": "ACME_TENSOR", "where": "file:///d/x/../t/"}, ["file:///d/x/../t/", "file:///d/t/"]),
        ({"type": "ACME_TENSOR", "where": "file://nas/d/t/"}, ["file://nas/d/t/", "file:///d/t/"]),
        ({"type": "ACME_TENSOR", "where": "file:///d/t/"}, ["file:///d/t/"]),
        ({"type": "NAMESPACE", "properties": {"location": "s3://b/"}}, []),
    ],
)
def test_location_of_unsupported_content_is_protected(fields: dict[str, Any], protected: list[str]) -> None:
    roots = build_content_roots([content(**fields)])
    assert [(root.kind, root.address, root.must_exist) for root in roots] == [(Kind.UNLISTED_LOCATION, place, False) for place in protected]


def test_repeated_content_adds_one_metadata_root() -> None:
    table = content(type="ICEBERG_TABLE", id="1", metadataLocation="s3://b/t/metadata/1.json", snapshotId=7, later={"field": 1})
    view = content(type="ICEBERG_VIEW", id="2", metadataLocation="s3://b/v/metadata/1.json", versionId=1)
    roots = build_content_roots([table, table, view])
    assert [(root.kind, root.address) for root in roots] == [
        (Kind.METADATA_JSON, "s3://b/t/metadata/1.json"),
        (Kind.VIEW_METADATA, "s3://b/v/metadata/1.json"),
    ]


def test_content_without_metadata_location_has_empty_address() -> None:
    roots = build_content_roots([content(type="ICEBERG_TABLE", id="1", metadataLocation=""), content(type="ICEBERG_VIEW", id="2")])
    assert [root.address for root in roots] == ["", ""]


def test_gzipped_metadata_of_view_is_read() -> None:
    """Iceberg's Java library gzips view metadata by default, also through NessieCatalog (case iceberg/02)."""
    raw = gzip.compress(json.dumps(VIEW).encode())
    rows = view_rows(Container("s3://b/v/metadata/1.gz.metadata.json", Kind.VIEW_METADATA, len(raw)), raw).to_pylist()
    assert [row["address"] for row in rows] == ["s3://b/v/", "urn:uuid:u"]


def test_gzip_is_recognized_by_its_content(metadata_file: tuple[Container, bytes, list[str]]) -> None:
    container, raw, _ = metadata_file
    assert table_rows(container, gzip.compress(raw), "all").equals(table_rows(container, raw, "all"))


def test_truncated_gzip_error_contains_file_name() -> None:
    with pytest.raises(FormatError, match=r"s3://b/v/metadata/1\.json: .*not a complete JSON document"):
        view_rows(Container("s3://b/v/metadata/1.json", Kind.VIEW_METADATA), gzip.compress(json.dumps(VIEW).encode())[:-9])


def test_field_of_another_content_type_may_have_any_type() -> None:
    odd = content(type="UDF", id=5, metadataLocation=["s3://b/f/metadata/1.json"], snapshotId="main")
    roots = build_content_roots([odd])
    assert [root.address for root in roots] == ["s3://b/f/"]
