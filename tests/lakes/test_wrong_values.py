"""Every parser of external JSON and YAML returns checked values, or raises an error that contains
the object.

Each value of a valid document is replaced by about 25 wrong values: other types, numbers beyond 64
bits, lone surrogates, deep nesting and repeated keys (case attack/08). The functions that use a
result must accept it too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from pydantic import BaseModel, ValidationError

from gc_assets.core.errors import FormatError, GcError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.kind import identify_table
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.iceberg.metadata import parse_view
from gc_assets.lakes.iceberg.registrations import build_source, list_refs
from gc_assets.lakes.icechunk.refs import parse_head
from gc_assets.lakes.icechunk.virtual_locations import read_chunk_containers
from gc_assets.lakes.lakefs.lifecycle_rules import parse_rules
from gc_assets.lakes.nessie.commits import build_content_roots
from gc_assets.lakes.nessie.metadata_rows import table_rows, view_rows
from gc_assets.lakes.nessie.models import EntryPage, LogPage, ReferencePage
from gc_assets.lakes.nessie.operations import operation_lines, operation_table, state_lines
from gc_assets.lakes.protocol import Container, FrozenRefs
from gc_assets.stages.mark.commit_rows import build_commit_rows
from tests.lakes.wrong_values import damaged_documents

ADDRESS = "s3://b/t/metadata/2.metadata.json"
NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
METADATA: dict[str, Any] = {
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": "s3://b/t",
    "last-updated-ms": 1700000000000,
    "properties": {
        "history.expire.max-snapshot-age-ms": "86400000",
        "history.expire.min-snapshots-to-keep": "1",
        "gc.enabled": "true",
        "write.data.path": "s3://b/d",
    },
    "current-snapshot-id": 2,
    "refs": {
        "main": {"snapshot-id": 2, "type": "branch", "min-snapshots-to-keep": 1, "max-snapshot-age-ms": 5, "max-ref-age-ms": 5},
        "v": {"snapshot-id": 1, "type": "tag"},
    },
    "snapshots": [
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1,
            "sequence-number": 1,
            "schema-id": 0,
            "timestamp-ms": 1700000000000,
            "manifest-list": f"s3://b/t/metadata/snap-{number}.avro",
            "summary": {"operation": "append", "added-records": "3"},
        }
        for number in (1, 2)
    ],
    "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 1}],
    "metadata-log": [{"metadata-file": "s3://b/t/metadata/1.metadata.json", "timestamp-ms": 1}],
    "statistics": [{"snapshot-id": 1, "statistics-path": "s3://b/t/s.puffin", "file-size-in-bytes": 4}],
    "partition-statistics": [{"snapshot-id": 7, "statistics-path": "s3://b/t/p.parquet", "file-size-in-bytes": 4}],
}
VIEW: dict[str, Any] = {
    "view-uuid": "8f0a291b-f981-472c-9e4d-33ed4e5bab50",
    "format-version": 1,
    "location": "s3://b/v",
    "versions": [{"version-id": 1, "timestamp-ms": 1700000000000}],
    "metadata-log": [{"metadata-file": "s3://b/v/metadata/1.metadata.json", "timestamp-ms": 1}],
}
CONTENT = {"type": "ICEBERG_TABLE", "id": "1", "metadataLocation": "s3://b/t/metadata/1.metadata.json", "snapshotId": 7}
KEY = {"elements": ["db", "t"]}
LOG_ENTRY = {
    "commitMeta": {"hash": "ab", "message": "m", "commitTime": "2026-01-01T00:00:00Z", "parentCommitHashes": ["aa"]},
    "parentCommitHash": "aa",
    "operations": [{"type": "PUT", "key": KEY, "content": CONTENT}, {"type": "DELETE", "key": KEY}],
}


# The YAML parser takes two seconds to refuse them.
SLOW_IN_YAML = ("deep list", "deep object")


@dataclass
class OneObject:
    """A store with the same content at every address."""

    raw: bytes
    reads: list[str] = field(default_factory=list)

    def read(self, address: str) -> bytes:
        self.reads.append(address)
        return self.raw


def use_table(raw: bytes) -> None:
    """Read a table as a run does: freeze it, read its commits, and apply the retention."""
    config = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": "http://c"}})
    lake = IcebergLake(config, cast("Objects", OneObject(raw)))
    item = lake.read_registration("db.t", ADDRESS)
    source = build_source(item)
    commits = list(lake.commits(source))
    rows = pa.Table.from_batches([build_commit_rows(commits, KeyResolver([("s", "s3://b/")]))]) if commits else None
    frozen = FrozenRefs("sales", "iceberg", tuple(list_refs(item)), (source,), (), ())
    json.dumps([item.table.locations, item.table.previous_metadata, dict(source.properties)]).encode()
    if rows is not None:
        lake.retain(frozen, rows, NOW, NOW)
    lake.read_registration("db.t", ADDRESS)


def use_metadata_of_nessie(raw: bytes) -> None:
    table_rows(Container(ADDRESS, "metadata_json"), raw, "all")


def use_view(raw: bytes) -> None:
    view = parse_view(ADDRESS, raw)
    "".join([view.view_uuid, view.location, *view.previous_metadata]).encode()
    view_rows(Container(ADDRESS, "view_metadata"), raw)


def use_identity(raw: bytes) -> None:
    found = identify_table(raw)
    assert isinstance(found.uuid.encode(), bytes)
    assert found.newest is None or -(2**63) <= found.newest < 2**63


def use_log(raw: bytes) -> None:
    page = _parse_answer(LogPage, raw)
    for entry in page.items:
        operations = entry.operations or ()
        operation_table(["\n".join(operation_lines(operations))])
        build_content_roots([item.content for item in operations if item.content is not None])


def use_entries(raw: bytes) -> None:
    operation_table(["\n".join(state_lines(_parse_answer(EntryPage, raw).items))])


def _parse_answer(model: type[Any], raw: bytes) -> Any:
    """Parse a response as the client does, whose error shows the request."""
    try:
        return cast("type[BaseModel]", model).model_validate_json(raw)
    except ValidationError as error:
        raise FormatError(f"{ADDRESS}: {error}") from None


def use_chunk_containers(raw: bytes) -> None:
    found = read_chunk_containers(cast("Objects", OneObject(raw)), "s3://b/r")
    if found.error is not None:
        raise FormatError(found.error)
    "".join([*found.prefixes, *found.prefixes.values()]).encode()


PARSERS: dict[str, tuple[Any, Callable[[bytes], object], str]] = {
    "table metadata": (METADATA, use_table, "db.t"),
    "table metadata under Nessie": (METADATA, use_metadata_of_nessie, ADDRESS),
    "view metadata": (VIEW, use_view, ADDRESS),
    "identity of table metadata": (METADATA, use_identity, "its content"),
    "identity of view metadata": (VIEW, use_identity, "its content"),
    "Nessie log": ({"hasMore": False, "token": "t", "logEntries": [LOG_ENTRY]}, use_log, ""),
    "Nessie entries": ({"entries": [{"name": KEY, "type": "ICEBERG_TABLE", "content": CONTENT}]}, use_entries, ""),
    "Nessie references": (
        {"references": [{"type": "BRANCH", "name": "main", "hash": "ab", "metadata": {"numTotalCommits": 3}}]},
        lambda raw: _parse_answer(ReferencePage, raw),
        "",
    ),
    "Icechunk ref": ({"snapshot": "1CECHNKREP0F1RSTCMT0"}, lambda raw: parse_head(ADDRESS, raw), ADDRESS),
    "Icechunk configuration": (
        {"virtual_chunk_containers": {"b": {"name": "b", "url_prefix": "s3://b/", "store": {"s3": {}}}}},
        use_chunk_containers,
        "s3://b/r",
    ),
    "lakeFS rules": (
        {"old": {"prefix": "a/", "days": 3, "enabled": True, "branch_days": {"main": 4}}},
        lambda raw: parse_rules(ADDRESS, raw.decode()),
        ADDRESS,
    ),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_parser_accepts_valid_document(parser: str) -> None:
    document, use, _ = PARSERS[parser]
    use(json.dumps(document).encode())


@pytest.mark.parametrize("parser", PARSERS)
def test_wrong_value_is_accepted_or_refused_with_file_name(parser: str) -> None:
    document, use, name = PARSERS[parser]
    refused, unexpected = 0, dict[str, str]()
    skipped = SLOW_IN_YAML if use is use_chunk_containers else ()
    for description, raw in damaged_documents(document):
        if description.endswith(skipped):
            continue
        try:
            use(raw)
        except GcError as error:
            refused += 1
            if name not in str(error) or not _is_printable(str(error)):
                unexpected[description] = f"the message lacks {name!r} or is not printable: {str(error)!r:.200}"
        except Exception as error:  # noqa: BLE001 - the test reports all of them
            unexpected[description] = f"{type(error).__name__}: {str(error)[:200]}"
    assert unexpected == {}
    assert refused


def _is_printable(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


@pytest.mark.parametrize(
    "key", ["history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep", "history.expire.max-ref-age-ms"]
)
@pytest.mark.parametrize("value", ["5d", "-1", "", " 5", "5.0", "1e3", "NaN", "9" * 30, "٣", "true", "--5", "0x10"])
def test_invalid_retention_property_keeps_all_snapshots(key: str, value: str) -> None:
    document = copy.deepcopy(METADATA)
    document["properties"][key] = value
    config = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": "http://c"}})
    lake = IcebergLake(config, cast("Objects", OneObject(json.dumps(document).encode())))
    item = lake.read_registration("db.t", ADDRESS)
    source = build_source(item)
    rows = pa.Table.from_batches([build_commit_rows(list(lake.commits(source)), KeyResolver([]))])
    found = lake.retain(FrozenRefs("sales", "iceberg", tuple(list_refs(item)), (source,), (), ()), rows, NOW, NOW)
    assert found.reachable.column("state").to_pylist() == ["retained", "retained"]
    assert found.expiry.num_rows == 0
    assert [note for note in found.notes if f"db.t: table property {key}" in note]


def test_configured_retention_replaces_invalid_table_property() -> None:
    document = copy.deepcopy(METADATA)
    document["properties"]["history.expire.max-snapshot-age-ms"] = "5d"
    settings = {"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": "http://c"}, "retention": {"max_snapshot_age": "1d"}}
    lake = IcebergLake(IcebergLakeConfig.model_validate(settings), cast("Objects", OneObject(json.dumps(document).encode())))
    item = lake.read_registration("db.t", ADDRESS)
    source = build_source(item)
    rows = pa.Table.from_batches([build_commit_rows(list(lake.commits(source)), KeyResolver([]))])
    found = lake.retain(FrozenRefs("sales", "iceberg", tuple(list_refs(item)), (source,), (), ()), rows, NOW, NOW)
    assert not found.notes


def test_unknown_format_version_makes_only_one_table_unreadable() -> None:
    raw = json.dumps({**METADATA, "format-version": 4}).encode()
    with pytest.raises(GcError, match=r"table db\.t could not be read: .*format-version 4 is unknown"):
        use_table(raw)
    assert identify_table(raw).uuid == METADATA["table-uuid"]


def test_table_with_unknown_format_version_is_identified_without_snapshots() -> None:
    raw = json.dumps({**METADATA, "format-version": 9, "snapshots": {"by-id": {}}}).encode()
    assert identify_table(raw).newest is None
