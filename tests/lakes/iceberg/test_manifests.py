from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg import avro, manifests
from gc_assets.lakes.iceberg.manifests import decode, decode_many
from gc_assets.lakes.protocol import Container

WILD = Path(__file__).parents[3] / ".." / "shared" / "fixtures" / "iceberg-wild"
WILD_AVRO = sorted(WILD.resolve().rglob("*.avro"))
ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int"},
        {"name": "snapshot_id", "type": ["null", "long"]},
        {
            "name": "data_file",
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "content", "type": "int"},
                    {"name": "file_path", "type": "string"},
                    {"name": "file_format", "type": "string"},
                    {"name": "partition", "type": {"type": "record", "name": "r102", "fields": []}},
                    {"name": "file_size_in_bytes", "type": "long"},
                ],
            },
        },
    ],
}
LISTED = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "manifest_length", "type": "long"},
        {"name": "content", "type": "int"},
        {"name": "added_snapshot_id", "type": "long"},
        *({"name": f"{kind}_files_count", "type": ["null", "int"]} for kind in ("added", "existing", "deleted")),
    ],
}
# Column statistics as pyiceberg and Java write them: a map from column ids to counts.
COUNTED = {"type": "array", "logicalType": "map", "items": {"type": "record", "name": "k_v", "fields": []}}
COUNTED["items"]["fields"] = [{"name": "key", "type": "int"}, {"name": "value", "type": "long"}]
TEN_COLUMNS = [{"key": number, "value": 100_000 + number} for number in range(10)]
original_fastavro = avro.read_with_fastavro
LARGE = 2_000  # number of entries; such a manifest is decoded by DataFusion


def container(raw: bytes, kind: str = Kind.MANIFEST, **fields: Any) -> Container:
    return Container("file:///lake/metadata/m0.avro", kind, **{"size_bytes": len(raw), **fields})


def manifest(*changes: dict[str, Any], count: int | None = None) -> bytes:
    """Write a manifest with one entry per change, or with `count` default entries.

    The keys of a change are fields of the entry or of its data file.
    """
    records = []
    for index, change in enumerate(changes or [{}] * (count or 1)):
        file = {"content": 0, "file_path": f"file:///lake/data/{index}.parquet", "file_format": "PARQUET", "partition": {}}
        file["file_size_in_bytes"] = 100 + index
        records.append(
            {
                "status": change.get("status", 1),
                "snapshot_id": change.get("snapshot_id", 7),
                "data_file": {**file, **{key: value for key, value in change.items() if key in file}},
            }
        )
    return avro_file(ENTRY, records)


def avro_file(schema: dict[str, Any], records: list[dict[str, Any]], codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec=codec)
    return sink.getvalue()


def manifest_list_bytes(**change: Any) -> bytes:
    row = {"manifest_path": "file:///m", "manifest_length": 9, "content": 0, "added_snapshot_id": 7}
    row |= {"added_files_count": 1, "existing_files_count": 2, "deleted_files_count": 3, **change}
    return avro_file(LISTED, [row])


def oracle(path: Path, inherited: str | None) -> list[dict[str, Any]]:
    """Decode a container with fastavro and the rules of the specification."""
    rows = []
    with path.open("rb") as file:
        for record in fastavro.reader(file):
            if "manifest_path" in record:
                counts = [
                    record.get(f"{kind}_files_count", record.get(f"{kind}_data_files_count")) for kind in ("added", "existing", "deleted")
                ]
                address, kind, size = record["manifest_path"], "manifest", record["manifest_length"]
                expected, snapshot, status = None if None in counts else sum(counts), str(record["added_snapshot_id"]), None
            else:
                file_entry = record["data_file"]
                address, size, expected = file_entry["file_path"], file_entry["file_size_in_bytes"], None
                kind = {0: "data", 1: "position_deletes", 2: "equality_deletes"}[file_entry.get("content", 0)]
                if file_entry["file_format"].lower() == "puffin":
                    kind = "deletion_vector"
                snapshot = inherited if record.get("snapshot_id") is None else str(record["snapshot_id"])
                status = ("existing", "added", "deleted")[record["status"]]
            is_container = kind == "manifest"
            rows.append(dict(zip(ENTRY_SCHEMA.names, (address, kind, is_container, size, expected, snapshot, status, True), strict=True)))
    return rows


def stated_snapshot(path: Path) -> str:
    """Return the snapshot that the parent of a file states: that of the added entries, or of the header of a list."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        added = [record["snapshot_id"] for record in reader if record.get("status") == 1 and record.get("snapshot_id") is not None]
        return str(added[0] if added else reader.metadata.get("snapshot-id", "55"))


@pytest.mark.skipif(not WILD_AVRO, reason="the fixtures of other writers are missing")
@pytest.mark.parametrize("from_bytes", [0, 2**62], ids=["datafusion", "fastavro"])
def test_manifests_of_many_writers_decode_like_fastavro(from_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MIN_DATAFUSION_BYTES", from_bytes)
    for path in WILD_AVRO:
        raw = path.read_bytes()
        kind = Kind.MANIFEST_LIST if "list" in path.name or path.name.startswith("snap-") else Kind.MANIFEST
        snapshot = stated_snapshot(path)
        rows = oracle(path, inherited=snapshot)
        batch = decode(Container(str(path), kind, len(raw), len(rows), snapshot), raw)
        assert batch.schema == ENTRY_SCHEMA
        assert batch.to_pylist() == rows, path


@pytest.mark.skipif(not WILD_AVRO, reason="the fixtures of other writers are missing")
def test_datafusion_cannot_read_only_bigquery_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MIN_DATAFUSION_BYTES", 0)
    fallbacks: list[bytes] = []
    monkeypatch.setattr(avro, "read_with_fastavro", lambda raw, columns: fallbacks.append(raw) or original_fastavro(raw, columns))
    for path in WILD_AVRO:
        kind = Kind.MANIFEST_LIST if "list" in path.name or path.name.startswith("snap-") else Kind.MANIFEST
        decode(Container(str(path), kind), path.read_bytes())
    refused = {path for path in WILD_AVRO if path.read_bytes() in fallbacks}
    assert refused == {path for path in WILD_AVRO if "big_query" in str(path) and "manifest-list" not in path.name}


@pytest.mark.parametrize("count", [1, LARGE])
def test_entry_without_snapshot_id_inherits_it_from_manifest(count: int) -> None:
    raw = manifest(*[{"snapshot_id": None}] * count)
    batch = decode(container(raw, expected_entries=count, snapshot_id="42"), raw)
    assert batch["snapshot_id"].to_pylist() == ["42"] * count


def test_datafusion_and_fastavro_return_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = manifest(*({"status": i % 3, "content": i % 3, "snapshot_id": None if i % 5 else i} for i in range(LARGE)))
    monkeypatch.setattr(avro, "read_with_fastavro", lambda *_: pytest.fail("DataFusion rejected the manifest"))
    fast = decode(container(raw, expected_entries=LARGE), raw)
    monkeypatch.setattr(avro, "read_with_fastavro", original_fastavro)
    monkeypatch.setattr(avro, "MIN_DATAFUSION_BYTES", 2**62)
    assert fast == decode(container(raw, expected_entries=LARGE), raw)


@pytest.fixture
def without_datafusion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the package `datafusion` unavailable, as without the `iceberg-fast` extra."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "datafusion" else find_spec(name, *rest))
    monkeypatch.setattr(avro, "read_with_datafusion", lambda *_: pytest.fail("DataFusion is not installed"))
    avro.has_datafusion.cache_clear()
    yield
    avro.has_datafusion.cache_clear()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_large_manifest_has_the_same_rows_without_datafusion(codec: str, request: pytest.FixtureRequest) -> None:
    entries = ({"status": i % 3, "content": i % 3, "snapshot_id": None if i % 5 else i} for i in range(8 * LARGE))
    raw = avro_file(ENTRY, list(fastavro.reader(io.BytesIO(manifest(*entries)))), codec)
    with_it = decode(container(raw, expected_entries=8 * LARGE), raw)
    request.getfixturevalue("without_datafusion")
    assert with_it == decode(container(raw, expected_entries=8 * LARGE), raw)


def test_many_manifests_have_the_same_rows_without_datafusion(grouped_calls: list[int], request: pytest.FixtureRequest) -> None:
    raws = [manifest({"snapshot_id": None}, {"content": 1}, {"status": 2}) for _ in range(12)]
    items = name_manifests(*raws, b"damaged", expected_entries=3, snapshot_id="9")
    with_it = [str(item) if isinstance(item, FormatError) else item for item in decode_many(items)]
    assert grouped_calls
    grouped_calls.clear()
    request.getfixturevalue("without_datafusion")
    assert with_it == [str(item) if isinstance(item, FormatError) else item for item in decode_many(items)]
    assert grouped_calls == []


def test_damaged_large_manifest_is_refused_without_datafusion(without_datafusion: None) -> None:
    raw = manifest(count=LARGE)
    for damaged in (corrupt_map_count(manifest_with_statistics(LARGE)), raw[:-1] + bytes([raw[-1] ^ 1]), raw[: len(raw) // 2]):
        with pytest.raises(FormatError, match="cannot decode"):
            decode(container(damaged), damaged)
    with pytest.raises(FormatError, match="its manifest list records 5"):
        decode(container(raw, expected_entries=5), raw)


def test_doctor_reports_manifest_decoder(request: pytest.FixtureRequest) -> None:
    assert avro.describe_decoder() == "DataFusion decodes large manifests"
    request.getfixturevalue("without_datafusion")
    assert "pip install 'gc-assets[iceberg-fast]'" in avro.describe_decoder()


def test_small_manifest_does_not_start_datafusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "read_with_datafusion", lambda *_: pytest.fail("a small manifest is decoded by fastavro"))
    raw = manifest(count=60)
    assert decode(container(raw, expected_entries=60), raw).num_rows == 60


@pytest.mark.parametrize("promised", [True, False])
def test_fastavro_reads_rows_that_datafusion_omits(promised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """DataFusion 55 stops at a truncated block and reports success. Only the row count shows that."""
    original = avro.read_with_datafusion
    monkeypatch.setattr(avro, "read_with_datafusion", lambda *given: original(*given).slice(0, LARGE // 2))
    raw = manifest(count=LARGE)
    assert decode(container(raw, expected_entries=LARGE if promised else None), raw).num_rows == LARGE


def test_delete_file_in_puffin_format_is_a_deletion_vector() -> None:
    raw = manifest({"content": 1, "file_format": "puffin"}, {"content": 1}, {"content": 2})
    assert decode(container(raw), raw)["kind"].to_pylist() == ["deletion_vector", "position_deletes", "equality_deletes"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"content": 3}, "content 3"),
        ({"content": -1}, "content"),
        ({"status": 3}, "status 3"),
        ({"content": 0, "file_format": "PUFFIN"}, "Puffin"),
        ({"content": 2, "file_format": "PUFFIN"}, "Puffin"),
        ({"file_path": ""}, "no path"),
    ],
)
@pytest.mark.parametrize("count", [0, LARGE])
def test_invalid_manifest_entry_is_refused(change: dict[str, Any], message: str, count: int) -> None:
    raw = manifest(*[{}] * count, change)
    with pytest.raises(FormatError, match=f"manifest file:///lake/metadata/m0.avro.*{message}"):
        decode(container(raw), raw)


def test_manifest_list_with_unknown_content_is_refused() -> None:
    raw = manifest_list_bytes(content=2)
    with pytest.raises(FormatError, match=r"manifest list file:///lake.*content 2"):
        decode(container(raw, Kind.MANIFEST_LIST), raw)


def test_expected_entries_are_sum_of_manifest_list_counts() -> None:
    raw = manifest_list_bytes()
    assert decode(container(raw, Kind.MANIFEST_LIST), raw)["expected_entries"].to_pylist() == [6]


def test_expected_entries_are_none_if_a_count_is_missing() -> None:
    raw = manifest_list_bytes(existing_files_count=None)
    assert decode(container(raw, Kind.MANIFEST_LIST), raw)["expected_entries"].to_pylist() == [None]


def test_manifest_read_as_manifest_list_is_refused() -> None:
    raw = manifest()
    with pytest.raises(FormatError, match="not a manifest list"):
        decode(container(raw, Kind.MANIFEST_LIST), raw)


def test_unknown_container_kind_is_refused() -> None:
    raw = manifest()
    with pytest.raises(FormatError, match="kind 'snapshot' is not an Iceberg container"):
        decode(container(raw, Kind.SNAPSHOT), raw)


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_manifest_with_wrong_entry_count_is_refused(count: int, wrong: int) -> None:
    raw = manifest(count=count)
    with pytest.raises(FormatError, match=f"read {count:,} entries, but its manifest list records {count + wrong:,}"):
        decode(container(raw, expected_entries=count + wrong), raw)


@pytest.mark.parametrize("count", [1, LARGE])
def test_manifest_with_wrong_length_is_refused(count: int) -> None:
    raw = manifest(count=count)
    with pytest.raises(FormatError, match=f"{len(raw) - 1:,} bytes, expected {len(raw):,}"):
        decode(Container("a", Kind.MANIFEST, len(raw), count), raw[:-1])


@pytest.mark.parametrize("count", [1, LARGE, 20 * LARGE])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("promised", [True, False])
def test_truncated_manifest_of_unknown_length_is_refused(count: int, share: float, promised: bool) -> None:
    raw = manifest(count=count)
    with pytest.raises(FormatError, match="manifest a: "):
        decode(Container("a", Kind.MANIFEST, None, count if promised else None), raw[: int(len(raw) * share)])


def test_large_manifest_without_expected_count_decodes() -> None:
    raw = manifest(count=LARGE)
    assert decode(Container("a", Kind.MANIFEST), raw).num_rows == LARGE


@pytest.mark.parametrize("raw", [b"", b"garbage", b"x" * 100_000, b"Obj\x01", json.dumps({"a": 1}).encode()])
@pytest.mark.parametrize("kind", [Kind.MANIFEST, Kind.MANIFEST_LIST])
def test_invalid_avro_error_contains_file(raw: bytes, kind: str) -> None:
    with pytest.raises(FormatError, match=f"^{kind.replace('_', ' ')} file:///lake/metadata/m0.avro: .*restore"):
        decode(container(raw, kind), raw)


def test_manifest_with_damaged_avro_block_is_refused() -> None:
    raw = bytearray(manifest(count=LARGE))
    header = avro.read_header(bytes(raw))
    raw[raw.index(header.sync, header.first_block)] ^= 0xFF
    with pytest.raises(FormatError):
        decode(Container("a", Kind.MANIFEST), bytes(raw))


def test_schema_without_empty_records_keeps_all_other_fields() -> None:
    assert avro.drop_empty_records(ENTRY) == {
        **ENTRY,
        "fields": [
            *ENTRY["fields"][:2],
            {
                "name": "data_file",
                "type": {
                    **ENTRY["fields"][2]["type"],
                    "fields": [f for f in ENTRY["fields"][2]["type"]["fields"] if f["name"] != "partition"],
                },
            },
        ],
    }


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard", "snappy"])
@pytest.mark.parametrize("count", [2, 2_000])
def test_compressed_manifest_decodes_like_uncompressed(codec: str, count: int) -> None:
    records = list(fastavro.reader(io.BytesIO(manifest(count=count))))
    packed = avro_file(ENTRY, records, codec)
    plain = avro_file(ENTRY, records)
    assert decode(container(packed), packed).equals(decode(container(plain), plain))


def test_decompression_bomb_is_refused() -> None:
    records = list(fastavro.reader(io.BytesIO(manifest({"file_path": "a" * 70_000_000}))))
    bomb = avro_file(ENTRY, records, "deflate")
    with pytest.raises(FormatError, match="larger than 67,108,864 bytes"):
        decode(container(bomb), bomb)


def manifest_with_statistics(count: int) -> bytes:
    """Write a manifest whose entries have the value counts of ten columns."""
    entry = json.loads(json.dumps(ENTRY))
    entry["fields"][2]["type"]["fields"].append({"name": "value_counts", "type": COUNTED})
    file = {"content": 0, "file_format": "PARQUET", "partition": {}, "file_size_in_bytes": 100, "value_counts": TEN_COLUMNS}
    records = [{"status": 1, "snapshot_id": 7, "data_file": {**file, "file_path": f"file:///{index}.parquet"}} for index in range(count)]
    return avro_file(entry, records)


def corrupt_map_count(raw: bytes) -> bytes:
    """Change the item count of a map from 10 to -11, after which a length in bytes is expected."""
    at = raw.rindex(b"\x14\x00\xc0\x9a\x0c")
    return raw[:at] + b"\x15" + raw[at + 1 :]


def test_block_on_which_datafusion_hangs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "DATAFUSION_SECONDS", 1.0)
    raw = corrupt_map_count(manifest_with_statistics(LARGE))
    with pytest.raises(FormatError, match="cannot decode"):
        decode(container(raw), raw)


def name_manifests(*raws: bytes, **fields: Any) -> list[tuple[Container, bytes]]:
    return [(Container(f"file:///lake/metadata/m{number}.avro", Kind.MANIFEST, len(raw), **fields), raw) for number, raw in enumerate(raws)]


@pytest.fixture
def grouped_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of files of each grouped call. Small files are grouped too."""
    monkeypatch.setattr(manifests, "MIN_IMPORT_BYTES", 0)
    calls: list[int] = []
    read = manifests.read_groups
    monkeypatch.setattr(manifests, "read_groups", lambda raws, columns: calls.append(len(raws)) or read(raws, columns))
    return calls


@pytest.mark.skipif(not WILD_AVRO, reason="the fixtures of other writers are missing")
def test_manifests_of_many_writers_decode_equally_in_groups_and_singly(grouped_calls: list[int]) -> None:
    items = []
    for path in WILD_AVRO:
        if "big_query" not in str(path):
            kind = Kind.MANIFEST_LIST if "list" in path.name or path.name.startswith("snap-") else Kind.MANIFEST
            raw = path.read_bytes()
            items += [
                (Container(f"{path}#{copy}", kind, len(raw), snapshot_id=stated_snapshot(path)), raw)
                for copy in range(manifests.MIN_GROUP_FILES)
            ]
    assert decode_many(items) == [decode(*item) for item in items]
    assert len(grouped_calls) == 2


def test_entries_decoded_in_group_inherit_snapshot_of_their_manifest(grouped_calls: list[int]) -> None:
    raws = [manifest({"snapshot_id": None}, {"status": 0}) for _ in range(9)]
    items = [(Container("a", Kind.MANIFEST, len(raw), 2, str(number)), raw) for number, raw in enumerate(raws)]
    assert [rows["snapshot_id"].to_pylist() for rows in decode_many(items)] == [[str(number), "7"] for number in range(9)]
    assert grouped_calls == [9]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-5],
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
        lambda raw: b"garbage",
        lambda raw: bytes(len(raw)),
        lambda raw: manifest(count=2),
        lambda raw: manifest({"content": 3}, {}, {}),
        lambda raw: manifest({"file_path": ""}, {}, {}),
        corrupt_map_count,
    ],
)
def test_error_reports_which_manifest_in_group_is_damaged(damage: Any, grouped_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "DATAFUSION_SECONDS", 1.0)
    original = [manifest_with_statistics(3) for _ in range(20)]
    raws = [*original[:11], damage(original[11]), *original[12:]]
    found = decode_many(name_manifests(*raws, expected_entries=3))
    assert isinstance(found[11], FormatError)
    assert "m11.avro" in str(found[11])
    expected = decode(*name_manifests(original[0])[0])
    assert [rows for number, rows in enumerate(found) if number != 11] == [expected] * 19
    assert grouped_calls


def test_group_with_large_decompressed_size_is_decoded_separately(grouped_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MAX_GROUP_BYTES", 9 * 500_000)
    raws = [avro_file(ENTRY, list(fastavro.reader(io.BytesIO(manifest({"file_path": "a" * 500_000})))), "deflate") for _ in range(9)]
    inflated: list[bytes] = []
    unpacked = avro.read_with_datafusion
    monkeypatch.setattr(avro, "read_with_datafusion", lambda raw, *rest: inflated.append(raw) or unpacked(raw, *rest))
    items = name_manifests(*raws)
    assert decode_many(items) == [decode(*item) for item in items]
    assert grouped_calls == [9]
    assert inflated == []


def test_small_group_does_not_start_datafusion(grouped_calls: list[int]) -> None:
    assert len(decode_many(name_manifests(*[manifest()] * (manifests.MIN_GROUP_FILES - 1)))) == manifests.MIN_GROUP_FILES - 1
    assert grouped_calls == []


@pytest.mark.parametrize("count", [1, LARGE])
def test_manifest_of_another_snapshot_is_refused(count: int) -> None:
    raw = manifest(*[{}] * count)
    with pytest.raises(FormatError, match="snapshot 7 added an entry, but the manifest list records another snapshot"):
        decode(container(raw, expected_entries=count, snapshot_id="8"), raw)


def test_manifest_list_of_another_snapshot_is_refused() -> None:
    raw = manifest_list_bytes()
    named = io.BytesIO()
    fastavro.writer(named, LISTED, list(fastavro.reader(io.BytesIO(raw))), metadata={"snapshot-id": "7"})
    expected = container(named.getvalue(), Kind.MANIFEST_LIST, snapshot_id="8")
    assert decode(container(raw, Kind.MANIFEST_LIST, snapshot_id="8"), raw).num_rows == 1  # without a snapshot in the header
    assert decode(Container(expected.address, expected.kind, snapshot_id="7"), named.getvalue()).num_rows == 1
    for found in (decode_many([(expected, named.getvalue())])[0], *decode_many([(expected, named.getvalue())] * 9)):
        assert "its header has snapshot id 7, but snapshot 8 needs it" in str(found)
