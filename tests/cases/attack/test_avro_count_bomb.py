"""A few bytes of Avro state 100 million records, items or entries.

Case attack/01: a manifest of 113 bytes with 10^8 empty records took 2.8 GB. Counts are compared with
the length of the file, and with the manifest list, before anything is decoded.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import zlib
from typing import Any

import fastavro
import pytest

from gc_assets.core.errors import DecodingAborted, FormatError
from gc_assets.core.worker_process import WorkerDied
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg import avro
from gc_assets.lakes.iceberg.manifests import decode
from gc_assets.lakes.protocol import Container
from tests.lakes.iceberg.test_manifests import ENTRY, LARGE, corrupt_map_count, manifest_with_statistics

EMPTY = {"type": "record", "name": "manifest_entry", "fields": []}
NULLS = {"type": "record", "name": "manifest_entry", "fields": [{"name": "status", "type": "null"}]}
SYNC = b"0123456789abcdef"


def long(value: int) -> bytes:
    """Return a zig-zag varint."""
    value = value << 1 if value >= 0 else ((-value) << 1) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def avro_bytes(schema: Any, count: int, block: bytes, codec: str | None = None) -> bytes:
    """Write a container file with one block of any content."""
    metadata = {"avro.schema": json.dumps(schema)} | ({"avro.codec": codec} if codec else {})
    pairs = b"".join(long(len(text)) + text.encode() for pair in metadata.items() for text in pair)
    return b"Obj\x01" + long(len(metadata)) + pairs + long(0) + SYNC + long(count) + long(len(block)) + block + SYNC


def record_with(field: Any) -> Any:
    return {"type": "record", "name": "manifest_entry", "fields": [{"name": "x", "type": field}]}


BOMBS = {
    "empty records": avro_bytes(EMPTY, 10**8, b""),
    "records of nulls": avro_bytes(NULLS, 10**8, b""),
    "more records than bytes": avro_bytes(ENTRY, 10**8, bytes(1000)),
    "more records than any manifest": avro_bytes(record_with("boolean"), 30_000_000, bytes(30_000_000)),
    "array of nulls": avro_bytes(record_with({"type": "array", "items": "null"}), 1, long(10**8) + long(0)),
    "array of empty records": avro_bytes(record_with({"type": "array", "items": {**EMPTY, "name": "e"}}), 1, long(10**8) + long(0)),
    "array of fixed 0": avro_bytes(record_with({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}), 1, long(10**8)),
    "recursive record": avro_bytes(record_with("manifest_entry"), 1, b""),
    "deeply nested schema": avro_bytes("[" * 5000, 1, b"").replace(b'"' + b"[" * 5000 + b'"', b"[" * 5000 + b"]]"),
    "unknown type": avro_bytes(record_with("nothing"), 1, b"\0"),
    "deflate": avro_bytes(record_with({"type": "array", "items": "int"}), 3, zlib.compress(bytes(10**8), 9)[2:-4], "deflate"),
    "snappy that states 4 GiB": avro_bytes(ENTRY, 1, b"\xff\xff\xff\xff\x0f" + bytes(20), "snappy"),
    "negative count": avro_bytes(ENTRY, -(10**8), bytes(1000)),
}


def decode_all() -> None:
    """Decode all bombs, and print each error and the growth of the process in MiB."""
    for raw in BOMBS.values():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error: Exception | None = None
        try:
            decode(Container("file:///x/m.avro", Kind.MANIFEST, len(raw), None, "1"), raw)
        except FormatError as caught:
            error = caught
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sys.stdout.write(f"{growth // 1024} {error}\n")


def test_avro_files_with_huge_counts_are_refused_with_little_memory() -> None:
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True, timeout=60)
    found = dict(zip(BOMBS, (line.split(" ", 1) for line in done.stdout.splitlines()), strict=True))
    assert {name: error for name, (_, error) in found.items() if not error.startswith("manifest file:///x/m.avro: cannot decode")} == {}
    assert {name: growth for name, (growth, _) in found.items() if int(growth) >= 400} == {}


def test_expected_count_is_compared_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = avro_bytes(record_with("boolean"), 9_000_000, bytes(9_000_000))
    for name in ("read_with_datafusion", "read_with_fastavro"):
        monkeypatch.setattr(avro, name, lambda *_: pytest.fail("a file with a wrong count is decoded"))
    with pytest.raises(FormatError, match="read 9,000,000 entries, but its manifest list records 7"):
        decode(Container("file:///x/m.avro", Kind.MANIFEST, len(raw), 7, "1"), raw)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_real_manifest_is_within_the_limits(codec: str) -> None:
    buffer = io.BytesIO()
    entry = {"status": 1, "snapshot_id": 7, "data_file": {"content": 0, "file_format": "PARQUET", "partition": {}, "file_size_in_bytes": 1}}
    records = [entry | {"data_file": entry["data_file"] | {"file_path": f"file:///{number}"}} for number in range(LARGE)]
    fastavro.writer(buffer, ENTRY, records, codec=codec)
    raw = buffer.getvalue()
    assert decode(Container("file:///x/m.avro", Kind.MANIFEST, len(raw), LARGE, "7"), raw).num_rows == LARGE


def test_hanging_decoder_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """DataFusion 55 never returns from a map with a negative number of items."""
    monkeypatch.setattr(avro, "DATAFUSION_SECONDS", 1.0)
    raw = corrupt_map_count(manifest_with_statistics(LARGE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(FormatError, match="cannot decode"):
        decode(Container("file:///x/m.avro", Kind.MANIFEST, len(raw), None, "1"), raw)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 1.0  # no thread goes on


@pytest.mark.parametrize("is_limit", [True, False])
def test_decoder_failure_is_remembered_only_if_a_limit_was_exceeded(is_limit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that the system kills must not make a manifest unreadable until an upgrade."""

    def die(*_: object) -> None:
        error = WorkerDied("the worker process ended")
        error.is_limit = is_limit
        raise error

    monkeypatch.setattr(avro, "run_in_worker", die)
    monkeypatch.setattr(avro, "MAX_IN_PROCESS_BYTES", 0)
    raw = manifest_with_statistics(LARGE)
    with pytest.raises(FormatError) as caught:
        decode(Container("file:///x/m.avro", Kind.MANIFEST, len(raw), None, "1"), raw)
    assert isinstance(caught.value, DecodingAborted) is is_limit


if __name__ == "__main__":
    decode_all()
