"""Writer of valid and invalid SSTables, ranges and metaranges of lakeFS, for tests and benchmarks.

It follows Pebble's writer (format RocksDBv2, CRC32C, snappy, blocks of 4 KiB, restart interval 16), and shares no code with the reader.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import google_crc32c
import pyarrow as pa

MAGIC = bytes.fromhex("f7cff485b741e288")
SET = b"\x01" + bytes(7)
SEPARATOR = b"\x11" + bytes(7)


def to_bytes(path: str) -> bytes:
    """Encode a path, in which lone surrogates are bytes that are not UTF-8."""
    return path.encode(errors="surrogateescape")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def svarint(value: int) -> bytes:
    return uvarint(value << 1 ^ value >> 63)


class Table(bytes):
    """The bytes of a table with its lakeFS id (`pkg/graveler/sstable/writer.go`, `pkg/ident`)."""

    object_id: str


def _marshal(texts: Sequence[bytes]) -> bytes:
    return b"".join(b"\x01\x02\x08" + struct.pack(">q", len(one)) + one for one in texts)


def _identity(pairs: Sequence[tuple[bytes, bytes]], properties: Mapping[str, str]) -> str:
    content = hashlib.sha256()
    for piece in (piece for pair in pairs for piece in pair):
        content.update(b"%d%b|" % (len(piece), piece))
    given = sorted((k.encode(), to_bytes(v)) for k, v in properties.items() if k not in {"min_key", "max_key", "count"})
    content.update(b"\x04\x02\x08" + struct.pack(">q", len(given)) + _marshal([text for pair in given for text in pair]))
    return content.hexdigest()


@dataclass
class TableWriter:
    """The settings of a table. Tests change them to write invalid tables."""

    block_bytes: int = 4096
    restart_interval: int = 16
    two_level: bool | None = None
    compression: int = 1
    checksum: int = 1
    version: int = 2
    magic: bytes = MAGIC
    index_type: int | None = None
    num_entries: int | None = None
    key_trailer: bytes = SET
    meta: Mapping[bytes, bytes] = field(default_factory=dict)

    def write(self, pairs: Sequence[tuple[bytes, bytes]], properties: Mapping[str, str] | None = None) -> Table:
        """Write a table of pairs, which must be in order of key."""
        self._out = bytearray()
        index = []
        for chunk in self._chunks(pairs):
            offset = self._put(self._block([(key + self.key_trailer, value) for key, value in chunk]))
            index.append((chunk[-1][0] + SEPARATOR, self._handle(offset)))
        two_level = self.two_level if self.two_level is not None else sum(len(k) + len(v) for k, v in index) > self.block_bytes
        if two_level:
            index = [(part[-1][0], self._handle(self._put(self._block(part, 1)))) for part in self._chunks(index)]
        props = {name.encode(): to_bytes(value) for name, value in (properties or {}).items()}
        props |= {
            b"rocksdb.num.entries": uvarint(len(pairs) if self.num_entries is None else self.num_entries),
            b"rocksdb.block.based.table.index.type": struct.pack("<I", self.index_type if self.index_type is not None else 2 * two_level),
        }
        at_properties = self._put(self._block(sorted(props.items()), 1), compression=0)  # RocksDB reads these two uncompressed
        meta = {b"rocksdb.properties": self._handle(at_properties), **self.meta}
        metaindex = self._put(self._block(sorted(meta.items()), 1), compression=0)
        footer = self._handle(metaindex) + self._handle(self._put(self._block(index, 1)))
        self._out += bytes([self.checksum]) + footer.ljust(40, b"\0") + struct.pack("<I", self.version) + self.magic
        written = Table(self._out)
        written.object_id = _identity(pairs, properties or {})
        return written

    def _chunks(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
        chunks: list[list[tuple[bytes, bytes]]] = [[]]
        size = 0
        for key, value in pairs:
            if size >= self.block_bytes:
                chunks.append([])
                size = 0
            chunks[-1].append((key, value))
            size += len(key) + len(value)
        return [chunk for chunk in chunks if chunk]

    def _block(self, pairs: Iterable[tuple[bytes, bytes]], restart_interval: int | None = None) -> bytes:
        out, restarts, before = bytearray(), [], b""
        for number, (key, value) in enumerate(pairs):
            shared = 0
            if number % (restart_interval or self.restart_interval) == 0:
                restarts.append(len(out))
            else:
                while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                    shared += 1
            out += uvarint(shared) + uvarint(len(key) - shared) + uvarint(len(value)) + key[shared:] + value
            before = key
        restarts = restarts or [0]
        return bytes(out) + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))

    def _put(self, block: bytes, compression: int | None = None) -> tuple[int, int]:
        compression = self.compression if compression is None else compression
        packed = pa.compress(block, codec="snappy", asbytes=True) if compression == 1 else block
        crc = google_crc32c.value(packed + bytes([compression]))
        at = len(self._out)
        self._out += packed + bytes([compression]) + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
        return at, len(packed)

    def _handle(self, offset: tuple[int, int]) -> bytes:
        return uvarint(offset[0]) + uvarint(offset[1])


def text(number: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return uvarint(number << 3 | 2) + uvarint(len(raw)) + raw


def number(number_: int, value: int) -> bytes:
    return uvarint(number_ << 3) + uvarint(value % 2**64)


def timestamp(moment: datetime) -> bytes:
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    return number(1, micros // 1_000_000) + number(2, micros % 1_000_000 * 1_000)


def encode_value(identity: bytes, data: bytes) -> bytes:
    return svarint(len(identity)) + identity + svarint(len(data)) + data


@dataclass(frozen=True)
class Entry:
    """An entry of a range. `address_type`: 0 by prefix, 1 relative, 2 full."""

    path: str
    address: str
    size_bytes: int = 1
    written_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    address_type: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> tuple[bytes, bytes]:
        data = text(1, self.address) + text(2, timestamp(self.written_at)) + number(3, self.size_bytes) + text(4, "0" * 32)
        data += b"".join(text(5, text(1, k) + text(2, v)) for k, v in self.metadata.items())
        data += (number(6, self.address_type) if self.address_type else b"") + text(7, "application/octet-stream")
        identity = hashlib.sha256(to_bytes(f"{self.size_bytes} {self.path}")).digest()
        return to_bytes(self.path), encode_value(identity, data)


def _to_text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def table(pairs: Sequence[tuple[bytes, bytes]], table_type: str, writer: TableWriter | None = None, **properties: Any) -> Table:
    """Write a graveler table. `properties` replaces or adds properties."""
    ordered = sorted(pairs)
    own = {"type": table_type, "count": str(len(ordered))}
    if ordered:
        own |= {"min_key": _to_text(ordered[0][0]), "max_key": _to_text(ordered[-1][0])}
    return (writer or TableWriter()).write(ordered, {name: value for name, value in (own | properties).items() if value is not None})


def range_table(entries: Iterable[Entry], writer: TableWriter | None = None, **properties: Any) -> Table:
    return table([entry.encode() for entry in entries], "ranges", writer, **properties)


def metarange_record(range_id: str, min_key: bytes, max_key: bytes, count: int) -> tuple[bytes, bytes]:
    return max_key, encode_value(range_id.encode(), text(1, min_key) + text(2, max_key) + number(3, 1000) + number(4, count))


def metarange_table(ranges: Iterable[tuple[str, bytes, bytes, int]], writer: TableWriter | None = None, **properties: Any) -> Table:
    return table([metarange_record(*item) for item in ranges], "metaranges", writer, **properties)
