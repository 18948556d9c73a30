from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pyiceberg.table.metadata import TableMetadataUtil

from gc_assets.core.errors import FormatError
from gc_assets.lakes.iceberg.metadata import is_fragment, parse_metadata

WILD = Path(__file__).parents[3] / ".." / "shared" / "fixtures" / "iceberg-wild"
WILD_METADATA = [path for path in sorted(WILD.resolve().rglob("*.metadata.json")) if b"format-version" in path.read_bytes()]
ADDRESS = "file:///lake/metadata/00001.metadata.json"


def document(**changes: Any) -> dict[str, Any]:
    snapshot = {
        "snapshot-id": 9007199254740993,
        "timestamp-ms": 1767225600001,
        "manifest-list": "file:///ml",
        "summary": {"operation": "append"},
    }
    return {
        "format-version": 2,
        "table-uuid": "u",
        "location": "file:///lake",
        "current-snapshot-id": 9007199254740993,
        "snapshots": [snapshot],
        "refs": {"main": {"snapshot-id": 9007199254740993, "type": "branch"}},
        **changes,
    }


def parse(**changes: Any) -> Any:
    return parse_metadata(ADDRESS, json.dumps(document(**changes)).encode())


@pytest.mark.skipif(not WILD_METADATA, reason="the fixtures of other writers are missing")
@pytest.mark.parametrize("path", WILD_METADATA, ids=lambda path: f"{path.parts[-3]}-{path.name[:8]}")
def test_parsed_metadata_of_many_writers_matches_json(path: Path) -> None:
    raw = json.loads(path.read_bytes())
    table = parse_metadata(str(path), path.read_bytes())
    assert [snapshot.snapshot_id for snapshot in table.snapshots] == [str(item["snapshot-id"]) for item in raw.get("snapshots", [])]
    assert [snapshot.manifest_list for snapshot in table.snapshots] == [item["manifest-list"] for item in raw.get("snapshots", [])]
    current = raw.get("current-snapshot-id")
    heads = {ref.name: ref.snapshot_id for ref in table.refs}
    assert heads.get("main") == (None if current in {None, -1} else str(current))


def test_snapshot_ids_and_timestamps_are_exact() -> None:
    snapshot = parse().snapshots[0]
    assert snapshot.snapshot_id == "9007199254740993"
    assert snapshot.committed_at == datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


def test_gzipped_metadata_is_parsed_like_plain_json() -> None:
    raw = json.dumps(document()).encode()
    assert parse_metadata(ADDRESS, gzip.compress(raw)) == parse_metadata(ADDRESS, raw)


def test_metadata_without_refs_has_main_at_the_current_snapshot() -> None:
    [main] = parse(refs=None).refs
    assert (main.name, main.ref_type, main.snapshot_id) == ("main", "branch", "9007199254740993")


@pytest.mark.parametrize("missing_id", [None, -1])
def test_table_without_current_snapshot_has_no_main(missing_id: int | None) -> None:
    changes = {"current-snapshot-id": missing_id, "refs": {}}
    assert parse(**changes).refs == ()


def test_statistics_of_missing_snapshot_belong_to_table() -> None:
    statistics = [{"snapshot-id": 5, "statistics-path": "file:///s", "file-size-in-bytes": 3}]
    table = parse(**{"partition-statistics": statistics})
    assert [(file.address, file.kind, file.size_bytes) for file in table.unlisted_statistics] == [("file:///s", "partition_statistics", 3)]


def test_summary_contains_sequence_number_and_schema_id() -> None:
    snapshot = {**document()["snapshots"][0], "sequence-number": 4, "schema-id": 0}
    assert parse(snapshots=[snapshot]).snapshots[0].summary == {"operation": "append", "sequence-number": "4", "schema-id": "0"}


@pytest.mark.parametrize(
    "value, enabled", [("true", True), ("TRUE", True), ("false", False), ("no", False), (" true", False), ("true\n", False), ("", False)]
)
def test_gc_is_enabled_only_if_property_is_true(value: str, enabled: bool) -> None:
    """Iceberg reads it with Java's `Boolean.parseBoolean`."""
    assert parse(properties={"gc.enabled": value}).gc_enabled is enabled


SNAPSHOT = document()["snapshots"][0]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format-version": 4}, "format-version 4 is unknown"),
        ({"format-version": 0}, "format-version 0 is unknown"),
        ({"format-version": "2"}, "`format-version` of the document must be int"),
        ({"format-version": None}, "the document has no `format-version`"),
        ({"table-uuid": None}, "no table-uuid"),
        ({"location": None}, "the document has no `location`"),
        ({"snapshots": {}}, "`snapshots` of the document must be list"),
        ({"snapshots": [1]}, "snapshots[0] must be an object"),
        ({"snapshots": [SNAPSHOT, SNAPSHOT]}, "2 snapshots have 1 distinct ids"),
        ({"snapshots": [{**SNAPSHOT, "manifest-list": None, "manifests": ["m"]}]}, "embedded `manifests` are not supported"),
        ({"snapshots": [{**SNAPSHOT, "timestamp-ms": None}]}, "snapshots[0] has no `timestamp-ms`"),
        ({"snapshots": [{**SNAPSHOT, "timestamp-ms": 10**18}]}, "outside the years 1 to 9999"),
        ({"snapshots": [{**SNAPSHOT, "summary": [1]}]}, "the summary of snapshot 9007199254740993 must be an object"),
        ({"snapshots": []}, "branch 'main' points at snapshot 9007199254740993, which is not among the 0 listed"),
        ({"current-snapshot-id": 1}, "branch main points at snapshot 9007199254740993 but current-snapshot-id is 1"),
        ({"refs": {"v": {"snapshot-id": 9007199254740993, "type": "note"}}}, "ref 'v' is of type 'note'"),
        ({"refs": {"v": {"snapshot-id": 3, "type": "tag"}}}, "tag 'v' points at snapshot 3, which is not among the 1 listed"),
        ({"refs": {"v": {"type": "tag"}}}, "ref 'v' has no `snapshot-id`"),
        ({"refs": {"v": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": "1d"}}}, "`max-ref-age-ms` of ref 'v' must be int"),
        ({"statistics": [{"snapshot-id": 1}]}, "statistics[0] has no `statistics-path`"),
    ],
)
def test_invalid_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        parse(**changes)
    assert str(caught.value).startswith(f"{ADDRESS}: ")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"\x1f\x8bgarbage", gzip.compress(b"{}" * 500, mtime=0)[:-8]])
def test_invalid_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError, match=f"^{ADDRESS}: "):
        parse_metadata(ADDRESS, raw)


def test_truncated_metadata_is_refused() -> None:
    raw = json.dumps(document()).encode()
    for length in range(len(raw)):
        with pytest.raises(FormatError):
            parse_metadata(ADDRESS, raw[:length])


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("escaped", ["a", 'é"\\{}[]'])
def test_truncated_metadata_counts_as_half_written(indent: int | None, escaped: str) -> None:
    raw = json.dumps(document(properties={"note": escaped}), indent=indent, ensure_ascii=False).encode()
    assert all(is_fragment(raw[:length]) for length in range(len(raw)))
    assert all(is_fragment(raw[:length] + b"\0" * 9) for length in range(0, len(raw), 7))
    zipped = gzip.compress(raw, mtime=0)
    assert all(is_fragment(zipped[:length]) for length in range(len(zipped) - 40))
    assert not is_fragment(zipped[:-8])  # readers that stop at the end of the document accept it


@pytest.mark.parametrize("block", [512, 4096])
def test_metadata_with_hole_of_zeros_counts_as_half_written(block: int) -> None:
    """After a power failure, blocks that were not written are read as zeros."""
    raw = json.dumps(document(properties={"note": "é" * 2 * block}), ensure_ascii=False).encode()
    starts = range(block, len(raw) - block, block)
    assert all(is_fragment(raw[:start] + bytes(block) + raw[start + block :]) for start in starts)
    assert is_fragment(bytes(block) + raw[block:])


def test_random_bytes_are_not_half_written_metadata() -> None:
    """They may be encrypted, so that another reader understands them."""
    assert not any(is_fragment(start + b"\x01\0\x02rest\xff" * 200) for start in (b"[", b"{", b'{"'))


@pytest.mark.parametrize("raw", [b"{}", b"[]", b" \n", b'{"owner": "ada"}', gzip.compress(b"{}", mtime=0), gzip.compress(b"", mtime=0)])
def test_json_without_table_metadata_counts_as_half_written(raw: bytes) -> None:
    assert is_fragment(raw)


METADATA = json.dumps(document(), indent=1).encode()
METADATA_WITHOUT_UUID = json.dumps({key: value for key, value in document().items() if key != "table-uuid"}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        METADATA_WITHOUT_UUID,
        gzip.compress(METADATA_WITHOUT_UUID, mtime=0),
        b'{"format-version": 1}',
        b'{"location": "file:///t"}',
        b'{"snapshots": []}',
        METADATA + b"\0\0",
        METADATA + METADATA[-20:],  # a shorter document over a longer one, which lenient readers accept
        METADATA.decode().encode("utf-16"),
        METADATA.decode().encode("utf-16-le"),
        METADATA.decode().encode("utf-16-be"),
        METADATA.decode().encode("utf-32-be"),
        METADATA + bytes(64) + METADATA[-20:],
        b"\xef\xbb\xbf" + METADATA,
        METADATA.replace(b'"u"', b"1" * 5000),  # beyond the limit of digits
        METADATA.replace(b'"u"', b"[" * 100_000 + b"]" * 100_000),
        METADATA.replace(b'"u"', b'"\xe9"'),
        b"\x28\xb5\x2f\xfd" + bytes(range(200)),  # zstd
        b"AGS1" + bytes(range(200)),  # encrypted
        gzip.compress(METADATA, mtime=0)[:40] + b"\xff" * 40,
    ],
    ids=range(19),
)
def test_metadata_that_another_reader_may_accept_is_not_half_written(raw: bytes) -> None:
    assert not is_fragment(raw)


def test_metadata_too_large_to_decompress_is_not_half_written() -> None:
    assert not is_fragment(gzip.compress(b" " * 2**27, mtime=0))


def test_pyiceberg_cannot_write_format_version_3() -> None:
    """Tables of version 3 keep their history, except over REST. If this test fails, raise
    `lake.MAX_WRITABLE_FORMAT`.
    """
    snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "sequence-number": 1, "manifest-list": "/m", "summary": {"operation": "append"}}
    document: dict[str, Any] = {
        "format-version": 3,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "/t",
        "last-sequence-number": 1,
        "last-updated-ms": 1,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "next-row-id": 5,
        "encryption-keys": [{"key-id": "k", "encrypted-key-metadata": "eA=="}],
        "snapshots": [{**snapshot, "schema-id": 0, "first-row-id": 0, "added-rows": 5, "key-id": "k"}],
        "current-snapshot-id": 1,
    }
    parse = TableMetadataUtil.parse_obj(document)
    with pytest.raises(NotImplementedError, match="Writing V3"):
        parse.model_dump_json()
    dumped = json.loads(BaseModel.model_dump_json(parse, by_alias=True, exclude_none=True))
    assert "next-row-id" in dumped
    assert "encryption-keys" not in dumped
    assert "key-id" not in dumped["snapshots"][0]
