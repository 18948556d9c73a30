"""The readers of foreign bytes, with real bytes as a start."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import pytest

from gc_assets.config.file import load_config
from gc_assets.config.models import Config
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.kind import identify_table
from gc_assets.lakes.iceberg.metadata import parse_metadata, parse_view
from gc_assets.lakes.icechunk.refs import parse_head
from gc_assets.lakes.kinds import config_models
from gc_assets.lakes.lakefs.lifecycle_rules import parse_rules
from gc_assets.lakes.protocol import Container
from gc_assets.s3 import pages
from gc_assets.state.files import Files
from gc_assets.state.index import Index, IndexEntry
from tests.lakes.contract import Read
from tests.lakes.test_contract import SAMPLES

# Kinds whose samples need no server of their own program. Nessie's containers are Iceberg's.
KINDS = ("iceberg", "icechunk", "lakefs")
NAME = "of-this-object"


@dataclass(frozen=True)
class Seed:
    """Real bytes of an object, and a reader that returns a count or raises a project error."""

    reader: str
    raw: bytes
    read: Callable[[bytes], int]
    # Formats in which damage cannot hide: whatever is read is all that was there.
    is_promised: bool = False
    name: str = NAME


def seeds(root: Path) -> list[Seed]:
    return [*_containers(root), *_documents(root)]


def _containers(root: Path) -> Iterator[Seed]:
    for kind in KINDS:
        with SAMPLES[kind](root / kind, cast(pytest.FixtureRequest, None)) as sample:
            read = Read.of(sample)
        for container, raw, _ in read.containers.values():
            # The count of a chunk manifest is that of its references, and two of them may name one
            # chunk.
            is_counted = container.expected_entries is not None and container.kind != Kind.CHUNK_MANIFEST
            name, is_promised = f"{kind} {container.kind}", is_counted or sample.checksums
            yield Seed(name, raw, _decoder(read, container), is_promised, container.address)


def _decoder(read: Read, container: Container) -> Callable[[bytes], int]:
    """Return a decoder without the expected length, which would detect most damage."""
    open_ended = replace(container, size_bytes=None)
    return lambda raw: read.lake.decode(open_ended, raw).num_rows


def _documents(root: Path) -> Iterator[Seed]:
    for path in sorted(root.rglob("*.metadata.json"))[-2:]:
        yield Seed("iceberg metadata", path.read_bytes(), lambda raw: len(parse_metadata(NAME, raw).snapshots))
        yield Seed("iceberg metadata", gzip.compress(path.read_bytes()), lambda raw: len(parse_metadata(NAME, raw).snapshots))
        yield Seed("iceberg identity", path.read_bytes(), lambda raw: len(identify_table(raw).uuid), name="its content")
    yield Seed("iceberg view", gzip.compress(_VIEW), lambda raw: len(parse_view(NAME, raw).view_uuid))
    for path in sorted(root.rglob("ref.json"))[:1]:
        yield Seed("icechunk ref", path.read_bytes(), lambda raw: len(parse_head(NAME, raw)))
    yield Seed("lakeFS rules", _RULES, lambda raw: len(parse_rules(NAME, raw.decode("utf-8", "replace"))))
    yield Seed("lakes.yaml", _CONFIG, lambda raw: len(_config(root, raw).lakes))
    state = Files(str(root / "state"))
    index = Index(state, "index")
    index.replace({f"{number}": _entry(number) for number in range(4)})
    yield Seed("index of the state", state.read("index"), lambda raw: _index(state, index, raw), True, "index")
    page = b"".join(_CONTENTS % (b"key%d" % number) for number in range(5))
    for name in (b"ListBucketResult", b"ListVersionsResult"):
        yield Seed("page of an S3 listing", _PAGE % (name, page, name), _page)


_RULES: Final = b"""{
  "short": {"enabled": true, "prefix": "logs/", "days": 3},
  "long": {"enabled": true, "prefix": "", "branch_days": {"main": 9}}
}"""
_VIEW: Final = b"""{
  "view-uuid": "8f0a291b-f981-472c-9e4d-33ed4e5bab50", "format-version": 1, "location": "s3://b/v",
  "versions": [{"version-id": 1, "timestamp-ms": 1700000000000}],
  "metadata-log": [{"metadata-file": "s3://b/v/metadata/1.metadata.json", "timestamp-ms": 1}]
}"""
_CONFIG: Final = b"""
state: file:///lakes/state/
storages:
  - {name: lake, location: "file:///lakes/lake/", grace: 72h, quarantine_days: 7, gates: {max_live_drop: 0.2}}
lakes:
  - {name: sales, kind: iceberg, catalog: {type: sql, uri: "sqlite:////lakes/catalog.db"}}
  - {name: weather, kind: icechunk, location: "file:///lakes/lake/weather/", retention: {default: 30d}}
"""
_CONTENTS: Final = (
    b"<Contents><Key>%s</Key><LastModified>2026-11-22T03:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>4</Size>"
    b"<StorageClass>STANDARD</StorageClass></Contents>"
)
_PAGE: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><%s xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>'
    b"<MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>%s</%s>"
)


def _config(root: Path, raw: bytes) -> Config:
    path = root / NAME
    path.write_bytes(raw)
    return load_config(path, {}, config_models())


def _entry(number: int) -> IndexEntry:
    day = datetime(2026, 11, 1 + number, tzinfo=UTC)
    return IndexEntry(run_date=day.date(), run_id=str(number), created_at=day, rows=number, receipt_sha256="0" * 64, is_published=True)


def _index(state: Files, index: Index, raw: bytes) -> int:
    state.replace("index", raw)
    return len(index.read() or {})


def _page(raw: bytes) -> int:
    return len(pages.parse_page(*pages.parse_response(200, raw, NAME), NAME).keys)
