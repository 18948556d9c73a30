"""Decoding of snapshots and chunk manifests of spec version 2, compared with the library's report."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import pytest
import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import entries, envelope
from gc_assets.lakes.icechunk.chunk_manifests import parse_chunk_manifest
from gc_assets.lakes.icechunk.compressed_locations import MAX_LOCATION_BYTES
from gc_assets.lakes.icechunk.ids import spell_one
from gc_assets.lakes.icechunk.repo_info import parse_repo
from gc_assets.lakes.icechunk.snapshots import parse_snapshot
from gc_assets.lakes.icechunk.virtual_locations import parse_chunk_containers
from gc_assets.lakes.protocol import Container, NamedPrefixes
from tests.lakes.icechunk.builder import field_position, payload_of, with_payload
from tests.lakes.icechunk.v2.recordings import NAMES, Recording, unpack_recordings

MANIFEST_FILES_V2 = 7
# Random histories are in v2/test_random_histories.py.
EXAMPLES = [name for name in NAMES if not name.startswith("random")]
EXAMPLE_ID = bytes(range(12))
HEADER = envelope.MAGIC + b"test".ljust(24)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    return unpack_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(params=EXAMPLES)
def recording(request: pytest.FixtureRequest, recordings: dict[str, Recording]) -> Recording:
    return recordings[request.param]


def test_snapshots_reference_manifests_that_icechunk_reports(recording: Recording):
    assert recording.verdict["snapshots"]
    for snapshot_id, expected in recording.verdict["snapshots"].items():
        raw = (recording.path / "snapshots" / snapshot_id).read_bytes()
        snapshot = parse_snapshot(snapshot_id, raw, envelope.SPEC_V1_AND_V2)
        found = [[item.manifest_id, item.size_bytes, item.chunk_refs] for item in snapshot.manifest_files]
        assert sorted(found) == sorted(expected["manifests"])
        assert (snapshot.snapshot_id, snapshot.has_extra) == (snapshot_id, False)
        assert envelope.spec_version(raw) == 1 or snapshot.parent_id is None


def test_manifests_contain_references_that_icechunk_reports(recording: Recording):
    for manifest_id, expected in recording.verdict["manifests"].items():
        manifest = parse_chunk_manifest(manifest_id, (recording.path / "manifests" / manifest_id).read_bytes())
        assert {"inline": manifest.inline_refs, "native": manifest.native_refs, "virtual": manifest.virtual_refs} == expected
        assert (manifest.manifest_id, manifest.has_extra) == (manifest_id, False)


def test_snapshots_need_virtual_chunks_that_icechunk_reports(recording: Recording):
    containers = parse_chunk_containers("repo", parse_repo("repo", (recording.path / "repo").read_bytes()).config)
    for snapshot_id, expected in recording.verdict["snapshots"].items():
        rows = rows_of(recording.path, f"snapshots/{snapshot_id}", Kind.SNAPSHOT, containers)
        found: set[str] = set()
        for row in rows:
            if row["is_container"]:
                manifest = f"manifests/{row['address'].rpartition('/')[2]}"
                leaves = rows_of(recording.path, manifest, Kind.CHUNK_MANIFEST, containers, row["expected_entries"])
                found |= {leaf["address"] for leaf in leaves if leaf["kind"] in {Kind.VIRTUAL_CHUNK, Kind.POSSIBLE_OBJECT}}
        assert {location.replace("x/../", "") for location in expected["virtual_locations"]} <= found


def rows_of(path: Path, name: str, kind: str, containers: NamedPrefixes, refs: int | None = None) -> list[dict[str, Any]]:
    raw = (path / name).read_bytes()
    return entries.decode(Container(f"file:///r/{name}", kind, len(raw), refs), raw, containers).to_pylist()


def test_reader_that_follows_parents_refuses_spec_version_2(recording: Recording):
    for file in sorted((recording.path / "snapshots").iterdir()):
        raw = file.read_bytes()
        if envelope.spec_version(raw) == 2:
            with pytest.raises(envelope.SpecVersionError, match=f"{file.name}: .* spec version 2; expected 1"):
                parse_snapshot(file.name, raw)


def test_version_2_snapshot_without_manifest_list_is_refused(recordings: dict[str, Recording]):
    folder = recordings["expired-twice"].path / "snapshots"
    raw = next(raw for file in sorted(folder.iterdir()) if envelope.spec_version(raw := file.read_bytes()) == 2)
    payload = payload_of(raw)
    table = struct.unpack_from("<I", payload)[0]
    layout = table - struct.unpack_from("<i", payload, table)[0]
    struct.pack_into("<H", payload, layout + 4 + 2 * MANIFEST_FILES_V2, 0)
    assert field_position(payload, MANIFEST_FILES_V2) is None
    with pytest.raises(FormatError, match="x: the field 'manifest_files_v2' is missing"):
        parse_snapshot("x", with_payload(raw, payload), envelope.SPEC_V2)


@dataclass
class Reference:
    """A reference of a built manifest: a field number and its bytes, and the reserved bytes."""

    field: int
    value: bytes
    extra: bytes | None = None


def manifest(
    references: list[Reference], *, algorithm: int | None = None, dictionary: bytes | None = None, extra: bytes | None = None
) -> bytes:
    """Return a manifest of one array by the schema `manifest.fbs`."""
    builder: Any = flatbuffers.Builder(1024)
    tables: list[int] = []
    for reference in references:
        vectors = {
            field: builder.CreateByteVector(value)
            for field, value in ((reference.field, reference.value), (9, reference.extra))
            if value is not None and field != 4
        }
        builder.StartObject(10)
        if reference.field == 4:
            add_id(builder, 4, reference.value)
        for field, offset in vectors.items():
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
        tables.append(builder.EndObject())
    refs = add_offsets(builder, tables)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, refs, 0)
    arrays = add_offsets(builder, [builder.EndObject()])
    bytes_of = {field: builder.CreateByteVector(value) for field, value in ((2, dictionary), (4, extra)) if value is not None}
    builder.StartObject(5)
    add_id(builder, 0, EXAMPLE_ID)
    builder.PrependUOffsetTRelativeSlot(1, arrays, 0)
    for field, offset in bytes_of.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    if algorithm is not None:
        builder.PrependUint8Slot(3, algorithm, 1)
    builder.Finish(builder.EndObject(), b"Ichk")
    return HEADER + bytes([2, envelope.CHUNK_MANIFEST, 1]) + zstandard.ZstdCompressor().compress(bytes(builder.Output()))


def add_id(builder: Any, slot: int, value: bytes) -> None:
    builder.Prep(4, 12)
    for byte in reversed(value):
        builder.PrependByte(byte)
    builder.PrependStructSlot(slot, builder.Offset(), 0)


def add_offsets(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


NATIVE, PLAIN, COMPRESSED = 4, 5, 8


def compress(location: str, dictionary: zstandard.ZstdCompressionDict | None = None) -> bytes:
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(location.encode())


def test_chunk_references_of_all_types_are_read():
    """A location that is compressed and plain counts once. The default algorithm is zstd, also without a dictionary."""
    references = [
        Reference(NATIVE, bytes(range(1, 13)), b""),
        Reference(PLAIN, b"s3://b/plain"),
        Reference(PLAIN, b"s3://b/twice"),
        Reference(COMPRESSED, compress("s3://b/twice")),
        Reference(COMPRESSED, compress("s3://b/\u00e9")),
        Reference(1, b"inline"),
    ]
    found = parse_chunk_manifest("m", manifest(references, extra=b""))
    assert found.manifest_id == spell_one(EXAMPLE_ID)
    assert (found.native_refs, found.virtual_refs, found.inline_refs) == (1, 4, 1)
    assert sorted(found.locations.to_pylist()) == ["s3://b/plain", "s3://b/twice", "s3://b/\u00e9"]
    assert not found.has_extra


def test_dictionary_compressed_locations_are_read_quickly():
    locations = [f"s3://bucket/year-{n // 100}/file-{n:05}.nc" for n in range(5_000)]
    dictionary = zstandard.train_dictionary(4096, [location.encode() for location in locations[::7]])
    references = [Reference(COMPRESSED, compress(location, dictionary)) for location in locations]
    started = time.process_time()
    found = parse_chunk_manifest("m", manifest(references, dictionary=dictionary.as_bytes()))
    assert sorted(found.locations.to_pylist()) == sorted(locations)
    assert time.process_time() - started < 5


def test_reserved_bytes_in_manifest_are_detected():
    assert parse_chunk_manifest("m", manifest([Reference(NATIVE, EXAMPLE_ID)], extra=b"x")).has_extra
    assert parse_chunk_manifest("m", manifest([Reference(NATIVE, EXAMPLE_ID, b"x")])).has_extra


BOMB = zstandard.ZstdCompressor().compress(bytes(2**27))
STREAMED_BOMB = (lambda stream: stream.compress(bytes(2**27)) + stream.flush())(zstandard.ZstdCompressor().compressobj())


@pytest.mark.parametrize(
    "references, settings, expected",
    [
        ([Reference(COMPRESSED, b"not zstd")], {}, "a compressed location is damaged"),
        ([Reference(COMPRESSED, b"")], {}, "a compressed location is damaged"),
        ([Reference(COMPRESSED, compress("s3://b/x")[:-1])], {}, "a compressed location is damaged"),
        ([Reference(COMPRESSED, compress("s3://b/x") + b"x")], {}, "a compressed location is damaged"),
        ([Reference(COMPRESSED, BOMB)], {}, f"expected a location of at most {MAX_LOCATION_BYTES:,} bytes, found 134,217,728"),
        ([Reference(COMPRESSED, STREAMED_BOMB)], {}, "a compressed location is damaged"),
        ([Reference(COMPRESSED, zstandard.ZstdCompressor().compress(b"\xff"))], {}, "a virtual location is not valid UTF-8"),
        ([Reference(COMPRESSED, compress("s3://b/x"))], {"algorithm": 0}, "expected compression algorithm 1"),
        ([Reference(NATIVE, EXAMPLE_ID)], {"algorithm": 2}, "expected compression algorithm 0 or 1, found 2"),
        ([Reference(3, b"neither")], {}, "found one that is 0 of these"),
    ],
)
def test_damaged_chunk_references_are_refused(references: list[Reference], settings: dict[str, Any], expected: str):
    with pytest.raises(FormatError, match=f"^manifest m: .*{expected}"):
        parse_chunk_manifest("manifest m", manifest(references, **settings))


def test_total_size_of_compressed_locations_is_limited():
    """Each frame is small enough, all together are larger than metadata can be."""
    frames = [zstandard.ZstdCompressor().compress(bytes(MAX_LOCATION_BYTES - 2) + number.to_bytes(2, "big")) for number in range(1100)]
    with pytest.raises(FormatError, match="its locations have more than 67,108,864 bytes"):
        parse_chunk_manifest("m", manifest([Reference(COMPRESSED, frame) for frame in frames]))
