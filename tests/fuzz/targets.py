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
from gc_assets.core.errors import FormatError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.kind import identify_table
from gc_assets.lakes.iceberg.metadata import parse_metadata, parse_view
from gc_assets.lakes.icechunk.entries import decode as decode_icechunk
from gc_assets.lakes.icechunk.envelope import HEADER_BYTES
from gc_assets.lakes.icechunk.refs import parse_head
from gc_assets.lakes.icechunk.repo_info import parse_repo
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.icechunk.virtual_locations import parse_chunk_containers, parse_yaml_containers
from gc_assets.lakes.kinds import config_models
from gc_assets.lakes.lakefs.lifecycle_rules import parse_rules
from gc_assets.lakes.protocol import Container, NamedPrefixes
from gc_assets.s3 import pages
from gc_assets.state.files import Files
from gc_assets.state.index import Index, IndexEntry
from tests.lakes.contract import Read
from tests.lakes.icechunk.builder import payload_of
from tests.lakes.icechunk.v2.recordings import unpack_recordings
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
            # A chunk manifest counts its references, and two references may point to one chunk.
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
    yield Seed("icechunk config.yaml", _CONTAINERS, lambda raw: _count(parse_yaml_containers(NAME, raw)))
    yield Seed("lakeFS rules", _RULES, lambda raw: len(parse_rules(NAME, raw.decode("utf-8", "replace"))))
    yield Seed("lakes.yaml", _CONFIG, lambda raw: len(_config(root, raw).lakes))
    yield from _icechunk_2(root / "recordings")
    state = Files(str(root / "state"))
    index = Index(state, "index")
    index.replace({f"{number}": _entry(number) for number in range(4)})
    yield Seed("index of the state", state.read("index"), lambda raw: _index(state, index, raw), True, "index")
    page = b"".join(_CONTENTS % (b"key%d" % number) for number in range(5))
    for name in (b"ListBucketResult", b"ListVersionsResult"):
        yield Seed("page of an S3 listing", _PAGE % (name, page, name), _page)


def _icechunk_2(root: Path) -> Iterator[Seed]:
    """Yield recorded objects of spec version 2. Damage reaches the tables of uncompressed ones."""
    recordings = unpack_recordings(root)
    for name in ("expired-twice", "settings", "virtual-chunks"):
        path = recordings[name].path
        info = parse_repo(NAME, (path / "repo").read_bytes())
        forms = _both_forms(path / "repo")
        for raw in forms:
            yield Seed("icechunk repo", raw, lambda raw: len(parse_repo(NAME, raw).snapshots))
        # The search for the level of a damaged frame takes 50 ms, so only the uncompressed form is rewritten.
        yield Seed("icechunk repo rewrite", forms[-1], lambda raw: len(write_repo(NAME, raw, parse_repo(NAME, raw))))
        containers = parse_chunk_containers(NAME, info.config)
        for folder, kind in (("snapshots", Kind.SNAPSHOT), ("manifests", Kind.CHUNK_MANIFEST)):
            file = max((path / folder).iterdir(), key=lambda item: item.stat().st_size)
            container = Container(f"file:///{NAME}/{folder}/{file.name}", kind)
            for raw in _both_forms(file):
                yield Seed(f"icechunk 2 {kind}", raw, lambda raw, of=container, names=containers: decode_icechunk(of, raw, names).num_rows)
        if info.config is not None:
            yield Seed("icechunk configuration", info.config, lambda raw: _count(parse_chunk_containers(NAME, raw)))


def _both_forms(path: Path) -> tuple[bytes, bytes]:
    raw = path.read_bytes()
    return raw, raw[: HEADER_BYTES - 1] + b"\0" + payload_of(raw)


def _count(found: NamedPrefixes) -> int:
    if found.error is not None:
        raise FormatError(found.error)
    return len(found.prefixes)


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
_CONTAINERS: Final = b"""
inline_chunk_threshold_bytes: 12
storage: {retries: {max_tries: 1}, timeouts: null, unsafe_use_metadata: false}
virtual_chunk_containers:
  s3://bucket/pre/: {name: box, url_prefix: "s3://bucket/pre/", store: !s3 {region: us-east-1}}
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
