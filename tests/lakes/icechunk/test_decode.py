"""Decoding of snapshots and chunk manifests, compared with the files of the library, and damaged files."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import entries
from gc_assets.lakes.icechunk.envelope import rewrap
from gc_assets.lakes.icechunk.ids import distinct, is_object_id, spell, spell_one
from gc_assets.lakes.protocol import Container
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.icechunk.builder import RepositoryBuilder, field_position, numbers, payload_of, set_value, with_payload
from tests.lakes.icechunk.icechunk_lakes import commits_of, container, lake_at

START = datetime(2026, 1, 1, tzinfo=UTC)
OBJECTS = LocalObjects()
MANIFEST_FILES = 6


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    builder = RepositoryBuilder.create(tmp_path_factory.mktemp("decode") / "repo", START)
    builder.commit("main", START + timedelta(days=1), numbers("values", range(50)))
    builder.commit("main", START + timedelta(days=2), numbers("more", range(7)))
    builder.commit("main", START + timedelta(days=3), set_value("values", 3, 33))
    return builder


def snapshot_container(built: RepositoryBuilder, snapshot: str) -> Container:
    lake = lake_at(built.path)
    return next(container(c.content_roots[0]) for c in commits_of(lake, lake.freeze(START)) if c.commit_id == snapshot)


def children(parent: Container) -> list[Container]:
    rows = entries.decode(parent, OBJECTS.read(parent.address)).to_pylist()
    return [Container(row["address"], row["kind"], row["size_bytes"], row["expected_entries"]) for row in rows if row["is_container"]]


def leaves(built: RepositoryBuilder, snapshot: str) -> list[dict]:
    rows = entries.decode(snapshot_container(built, snapshot), built.snapshot_file(snapshot).read_bytes()).to_pylist()
    found = [row for row in rows if not row["is_container"]]
    for manifest in children(snapshot_container(built, snapshot)):
        found += entries.decode(manifest, OBJECTS.read(manifest.address)).to_pylist()
    return found


def test_snapshots_reference_all_files_written_by_icechunk(built: RepositoryBuilder):
    named = {f"{built.path}/snapshots/{name}" for name in built.created}
    for snapshot in built.created:
        named |= {child.address.removeprefix("file://") for child in children(snapshot_container(built, snapshot))}
        named |= {row["address"].removeprefix("file://") for row in leaves(built, snapshot)}
    first = built.path / "transactions" / next(iter(built.created))
    assert {Path(name) for name in named} - {first} == built.files(), "the first snapshot has no log"


def test_overwritten_chunk_is_referenced_only_by_older_snapshot(built: RepositoryBuilder):
    _, _, second, third = built.created
    old, new = ({row["address"] for row in leaves(built, s) if row["kind"] == Kind.CHUNK} for s in (second, third))
    assert len(old - new) == len(new - old) == 1
    assert len(new) == 57


def test_decoded_rows_have_entry_schema_and_optional_transaction_log(built: RepositoryBuilder):
    snapshot = built.head("main")
    batch = entries.decode(snapshot_container(built, snapshot), built.snapshot_file(snapshot).read_bytes())
    batch.validate(full=True)
    assert batch.schema == ENTRY_SCHEMA
    log = [row for row in batch.to_pylist() if row["kind"] == Kind.TRANSACTION_LOG]
    assert [(row["address"], row["must_exist"]) for row in log] == [(f"{built.location}/transactions/{snapshot}", False)]
    chunks = entries.decode((manifest := children(snapshot_container(built, snapshot))[0]), OBJECTS.read(manifest.address))
    chunks.validate(full=True)
    assert chunks.schema == ENTRY_SCHEMA
    assert all(row["must_exist"] for row in chunks.to_pylist())


def test_chunk_rows_contain_file_sizes(built: RepositoryBuilder):
    chunks = [row for row in leaves(built, built.head("main")) if row["kind"] == Kind.CHUNK]
    assert chunks
    for row in chunks:
        assert row["size_bytes"] == Path(row["address"].removeprefix("file://")).stat().st_size


def test_chunk_with_impossible_byte_range_has_no_size(manifest: tuple[Container, bytes]):
    of, raw = manifest
    (size,) = set(entries.decode(of, raw)["size_bytes"].to_pylist())
    payload = payload_of(raw).replace(size.to_bytes(8, "little"), b"\xff" * 8)
    rows = entries.decode(Container(of.address, of.kind, None, of.expected_entries), with_payload(raw, payload))
    assert set(rows["size_bytes"].to_pylist()) == {None}


def test_inline_chunks_reference_no_file(tmp_path: Path):
    builder = RepositoryBuilder.create(tmp_path / "repo", START, inline_below_bytes=512)
    snapshot = builder.commit("main", START + timedelta(days=1), numbers("values", range(9)))
    (manifest,) = children(snapshot_container(builder, snapshot))
    assert manifest.expected_entries == 9
    assert entries.decode(manifest, OBJECTS.read(manifest.address)).num_rows == 0


VIRTUAL_NAMES = ["plain.nc", "a b%20c.nc", "a%20b%2520c.nc", "é.nc", "%C3%A9x.nc", "éx.nc", "sub/../plain.nc"]


def virtual_repository(folder: Path) -> tuple[RepositoryBuilder, str]:
    data = folder / "data"
    data.mkdir()
    for name in (*VIRTUAL_NAMES[:-1], "a b c.nc"):
        (data / name).write_bytes(np.array([len(name)], "i8").tobytes())
    builder = RepositoryBuilder.create(folder / "repo", START, virtual_below=data)

    def write(group: zarr.Group) -> None:
        group.create_array("native", shape=(1,), chunks=(1,), dtype="i8", compressors=None, fill_value=-1)[:] = 5
        group.create_array("virtual", shape=(len(VIRTUAL_NAMES) * 2,), chunks=(1,), dtype="i8", compressors=None, fill_value=-1)
        for index, name in enumerate(VIRTUAL_NAMES * 2):
            group.store.set_virtual_ref(f"virtual/c/{index}", f"file://{data}/{name}", offset=0, length=8)

    return builder, builder.commit("main", START + timedelta(days=1), write)


def test_virtual_chunk_locations_are_decoded_in_all_spellings(tmp_path: Path):
    builder, snapshot = virtual_repository(tmp_path)
    rows = leaves(builder, snapshot)
    assert Counter(row["kind"] for row in rows)[Kind.CHUNK] == 1
    virtual = [row["address"] for row in rows if row["kind"] in {Kind.VIRTUAL_CHUNK, Kind.POSSIBLE_OBJECT}]
    assert len(virtual) == len(set(virtual))
    stored = set(builder.repo.readonly_session("main").all_virtual_chunk_locations())
    assert stored <= set(virtual)
    assert {f"file://{tmp_path}/data/{name}" for name in ("plain.nc", "a b c.nc", "a b%20c.nc", "é.nc", "éx.nc")} <= set(virtual)


def test_only_virtual_files_that_icechunk_reads_are_required(tmp_path: Path):
    builder, snapshot = virtual_repository(tmp_path)
    array = zarr.open_group(builder.repo.readonly_session("main").store, mode="r")["virtual"]
    by_length = {len(name): name for name in ("plain.nc", "a b c.nc", "a b%20c.nc", "é.nc", "éx.nc")}
    read = {by_length[int(array[index])] for index in range(array.shape[0])}
    rows = [row for row in leaves(builder, snapshot) if row["kind"] not in {Kind.CHUNK, Kind.TRANSACTION_LOG}]
    assert read | {"plain.nc"} == {row["address"].rpartition("/")[2] for row in rows if row["must_exist"]}, "it is as long as `a b c.nc`"
    assert {row["kind"] for row in rows if not row["must_exist"]} == {Kind.POSSIBLE_OBJECT}


@pytest.fixture(scope="module")
def manifest(built: RepositoryBuilder) -> tuple[Container, bytes]:
    largest = max(children(snapshot_container(built, list(built.created)[1])), key=lambda item: item.expected_entries or 0)
    return largest, OBJECTS.read(largest.address)


@pytest.fixture(scope="module")
def snapshot(built: RepositoryBuilder) -> tuple[Container, bytes]:
    found = snapshot_container(built, built.head("main"))
    return found, OBJECTS.read(found.address)


def assert_refused(of: Container, raw: bytes, expected: str, **changes: object) -> None:
    changed = Container(**{name: changes.get(name, getattr(of, name)) for name in of.__dataclass_fields__})
    with pytest.raises(FormatError) as caught:
        entries.decode(changed, raw)
    assert changed.address in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("which", ["manifest", "snapshot"])
def test_decode_refuses_damage(which: str, request: pytest.FixtureRequest):
    of, raw = request.getfixturevalue(which)
    any_size = {"size_bytes": None}
    assert_refused(of, b"", "Icechunk header", **any_size)
    assert_refused(of, raw[:20], "Icechunk header", **any_size)
    assert_refused(of, b"PK" + raw[2:], "Icechunk header")
    assert_refused(of, raw[:-1], "bytes, read")
    assert_refused(of, raw[:-1], "found a truncated one", **any_size)
    assert_refused(of, raw + b"x", "after it", **any_size)
    assert_refused(of, raw[:36] + b"\x03" + raw[37:], "spec version 3; expected 1 and 2")
    assert_refused(of, raw[:37] + b"\x04" + raw[38:], "found a transaction log")
    assert_refused(of, raw[:38] + b"\x07" + raw[39:], "compression")
    assert_refused(of, raw, "expected the object", address=of.address[:-20] + "0123456789ABCDEFGHJ0")
    assert_refused(of, raw, "an address like", address=of.address.replace("/manifests/", "/else/").replace("/snapshots/", "/else/"))


def test_decode_refuses_wrong_chunk_reference_count(manifest: tuple[Container, bytes]):
    of, raw = manifest
    assert_refused(of, raw, "records 51 chunk references, found 50", expected_entries=51)


def test_decode_refuses_manifest_size_over_int64(snapshot: tuple[Container, bytes]):
    of, raw = snapshot
    payload = payload_of(raw)
    field = field_position(payload, MANIFEST_FILES)
    first = field + struct.unpack_from("<I", payload, field)[0] + 4
    payload[first + 16 : first + 24] = b"\0" * 7 + b"\x80"  # after an id of 12 bytes and 4 of padding
    assert_refused(of, with_payload(raw, payload), "size of 9,223,372,036,854,775,808 bytes", size_bytes=None)


def test_decode_refuses_manifest_as_snapshot(manifest: tuple[Container, bytes]):
    of, raw = manifest
    moved = of.address.replace("/manifests/", "/snapshots/")
    assert_refused(of, raw, "expected a snapshot, found a chunk manifest", kind=Kind.SNAPSHOT, address=moved)


def test_decode_refuses_container_kind_of_another_lake(manifest: tuple[Container, bytes]):
    assert_refused(manifest[0], manifest[1], "no other", kind=Kind.MANIFEST_LIST)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_decode_refuses_truncated_file(built: RepositoryBuilder, manifest, snapshot, data: st.DataObject):
    of, raw = data.draw(st.sampled_from([manifest, snapshot]))
    assert_refused(of, raw[: data.draw(st.integers(0, len(raw) - 1))], "", size_bytes=None)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_payload_is_refused_or_decodes_to_all_rows(built: RepositoryBuilder, manifest, snapshot, data: st.DataObject):
    """Ids are random and have no checksum, so only changes outside of ids can be detected."""
    of, raw = data.draw(st.sampled_from([manifest, snapshot]))
    payload = payload_of(raw)
    rows_of_file = len(payload)
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(0, rows_of_file - 1))]
    for _ in range(data.draw(st.integers(0 if len(payload) < rows_of_file else 1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    sound = entries.decode(of, raw)
    rows = decode_or_none(Container(of.address, of.kind, None, of.expected_entries), with_payload(raw, payload))
    if rows is not None and of.kind == Kind.CHUNK_MANIFEST:
        assert rows.num_rows <= sound.num_rows
        assert {address[:-20] for address in rows["address"].to_pylist()} <= {address[:-20] for address in sound["address"].to_pylist()}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flipped_bit_raises_no_error_except_format_error(built: RepositoryBuilder, manifest, snapshot, data: st.DataObject):
    of, raw = data.draw(st.sampled_from([manifest, snapshot]))
    flipped = bytearray(raw)
    flipped[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    decode_or_none(of, bytes(flipped))


def decode_or_none(of: Container, raw: bytes) -> pa.RecordBatch | None:
    """Return the rows, None for a `FormatError`."""
    try:
        rows = entries.decode(of, raw)
    except FormatError:
        return None
    rows.validate(full=True)
    return rows


def test_decode_refuses_unknown_field(snapshot: tuple[Container, bytes]):
    of, raw = snapshot
    payload = payload_of(raw)
    table = int.from_bytes(payload[:4], "little")
    vtable = table - int.from_bytes(payload[table : table + 4], "little", signed=True)
    # The root table points to a copy of its layout that has a tenth field.
    layout = payload[vtable : vtable + 18] + bytes(4)
    layout[0:2] = (24).to_bytes(2, "little")
    at = len(payload) + len(payload) % 2
    payload += b"\0" * (at - len(payload)) + layout + (4).to_bytes(2, "little")
    payload[table : table + 4] = (table - at).to_bytes(4, "little", signed=True)
    assert_refused(of, with_payload(raw, payload), "a newer library", size_bytes=None)
    assert field_position(payload, 9) is not None


@given(st.lists(st.binary(min_size=12, max_size=12), max_size=40))
def test_batch_and_single_id_spelling_agree(raw: list[bytes]):
    ids = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 12)
    spelled = [row.tobytes().decode() for row in spell(ids)]
    assert spelled == [spell_one(item) for item in raw]
    assert all(is_object_id(name) for name in spelled)


@given(st.lists(st.sampled_from([bytes(12), bytes(11) + b"\1", b"\1" + bytes(11), bytes(8) + b"\1" + bytes(3)]), max_size=12))
def test_distinct_ids_keep_first_order_and_largest_value(raw: list[bytes]):
    ids = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 12)
    values = [number * 7 % 5 for number in range(len(raw))]
    found, largest = distinct(ids, np.array(values, np.int64))
    assert [row.tobytes() for row in found] == list(dict.fromkeys(raw))
    assert largest.tolist() == [max(v for item, v in zip(raw, values, strict=True) if item == key) for key in dict.fromkeys(raw)]


def test_id_of_first_snapshot_is_valid_object_id():
    assert is_object_id("1CECHNKREP0F1RSTCMT0")
    assert not is_object_id("1CECHNKREP0F1RSTCMT1"), "bits beyond the twelfth byte"
    assert not is_object_id("1cechnkrep0f1rstcmt0")


def test_installed_icechunk_is_the_tested_version():
    assert icechunk.__version__ == "1.1.21"


def test_decode_refuses_decompression_bomb(manifest: tuple[Container, bytes]):
    of, raw = manifest
    bomb = rewrap(raw, bytes(70_000_000))
    assert_refused(of, bomb, "larger than 67,108,864 bytes", size_bytes=len(bomb))
