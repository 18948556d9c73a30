"""SSTables as lakeFS writes them: Pebble's, in RocksDB's block-based format version 2 (RocksDB
wiki, "Rocksdb BlockBasedTable Format").

Bytes in, entries out; knows nothing of lakeFS. Every block's checksum is verified and every count
that the format carries. What is unknown is refused by name: another magic, checksum, compression,
index or entry kind could mean that entries are missed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import google_crc32c
import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.blocks import Entries, read_blocks

MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_OTHER_MAGICS: Final = {
    bytes.fromhex("57fb808b247547db"): "a LevelDB table",
    bytes.fromhex("f09faab3f09faab3"): "a table of Pebble's own format",
}
FOOTER_BYTES: Final = 53
FORMAT_VERSION: Final = 2
_CHECKSUMS: Final = {0: "none", 1: "CRC32C", 2: "xxHash", 3: "xxHash64", 4: "XXH3"}
_CRC32C: Final = 1
_COMPRESSIONS: Final = {2: "zlib", 3: "bzip2", 4: "lz4", 5: "lz4hc", 6: "xpress", 7: "zstd"}
_UNCOMPRESSED, _SNAPPY = 0, 1
# A block is 4 KiB and grows by its last entry; the largest value graveler writes is 40 MiB.
_LARGEST_BLOCK: Final = 2**28
_SINGLE_INDEX, _TWO_LEVEL_INDEX = 0, 2
_TRAILER_BYTES: Final = 5

_PROPERTIES: Final = b"rocksdb.properties"
_RANGE_DELETIONS: Final = b"rocksdb.range_del"
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_NUM_ENTRIES: Final = b"rocksdb.num.entries"


@dataclass(frozen=True, slots=True)
class SSTable:
    """A whole table: its properties, the writer's own among them, and its entries in order of key."""

    properties: Mapping[bytes, bytes]
    entries: Entries


def read_sstable(where: str, raw: bytes) -> SSTable:
    """Returns the table in a file's bytes. Raises `FormatError` naming `where` for anything that is
    not a whole and known table.
    """
    file = _File(where, raw)
    metaindex, index = file.footer()
    meta = dict(file.pairs(metaindex))
    if _RANGE_DELETIONS in meta:
        raise FormatError(f"{where}: holds range deletions, which no table of lakeFS has; expected none")
    if _PROPERTIES not in meta:
        raise FormatError(f"{where}: has no properties block; restore the object from a backup")
    properties = dict(file.pairs(file.handle(meta[_PROPERTIES])[:2]))
    blocks = [block for _, block in file.pairs(index)]
    index_type = int.from_bytes(properties.get(_INDEX_TYPE, bytes(4)), "little")
    if index_type == _TWO_LEVEL_INDEX:
        blocks = [block for part in blocks for _, block in file.pairs(file.handle(part)[:2])]
    elif index_type != _SINGLE_INDEX:
        raise FormatError(f"{where}: index type {index_type}; expected {_SINGLE_INDEX} (one level) or {_TWO_LEVEL_INDEX} (two levels)")
    entries = read_blocks(where, [file.block(file.handle(block)[:2]) for block in blocks])
    file.verify_count("rocksdb.num.entries", file.uvarint(properties.get(_NUM_ENTRIES, b"\0"), 0)[0], len(entries))
    return SSTable(properties, entries)


@dataclass(frozen=True, slots=True)
class _File:
    where: str
    raw: bytes

    def damaged(self, what: str) -> FormatError:
        return FormatError(f"{self.where}: damaged, found {what}; restore the object from a backup")

    def footer(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the handles of the metaindex block and the index block."""
        magic = self.raw[-len(MAGIC) :]
        if magic in _OTHER_MAGICS:
            raise FormatError(f"{self.where}: is {_OTHER_MAGICS[magic]}; expected one of RocksDB's block-based format")
        if len(self.raw) < FOOTER_BYTES or magic != MAGIC:
            raise FormatError(
                f"{self.where}: expected an SSTable that ends in {MAGIC.hex()}, found {len(self.raw):,} bytes ending in {magic.hex()}; "
                "it is truncated or another file, restore the object from a backup"
            )
        footer = self.raw[-FOOTER_BYTES:]
        if footer[0] != _CRC32C:
            name = _CHECKSUMS.get(footer[0], "unknown")
            raise FormatError(f"{self.where}: its checksums are {name} (type {footer[0]}); expected CRC32C (type {_CRC32C})")
        (version,) = struct.unpack_from("<I", footer, FOOTER_BYTES - 12)
        if version != FORMAT_VERSION:
            raise FormatError(f"{self.where}: format version {version}; expected {FORMAT_VERSION}")
        *metaindex, after = self.handle(footer, 1)
        offset, size, _ = self.handle(footer, after)
        return (metaindex[0], metaindex[1]), (offset, size)

    def uvarint(self, data: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while at < len(data) and shift < 64:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at
        raise self.damaged("a number that does not end")

    def handle(self, data: bytes, at: int = 0) -> tuple[int, int, int]:
        """Returns offset and size of a block, and the position behind the handle."""
        offset, at = self.uvarint(data, at)
        size, at = self.uvarint(data, at)
        return offset, size, at

    def block(self, handle: tuple[int, int]) -> bytes:
        """Returns a block's bytes, verified and decompressed."""
        offset, size = handle
        trailer = offset + size
        if trailer + _TRAILER_BYTES > len(self.raw):
            raise self.damaged(f"a block at {offset:,} of {size:,} bytes in a file of {len(self.raw):,}")
        (stored,) = struct.unpack_from("<I", self.raw, trailer + 1)
        if stored != masked_crc32c(self.raw[offset : trailer + 1]):
            raise self.damaged(f"a block at {offset:,} with a wrong checksum")
        compression = self.raw[trailer]
        if compression == _UNCOMPRESSED:
            return self.raw[offset:trailer]
        if compression != _SNAPPY:
            name = _COMPRESSIONS.get(compression, "unknown")
            raise FormatError(f"{self.where}: a block is compressed with {name} (type {compression}); expected none or snappy")
        length, _ = self.uvarint(self.raw[offset:trailer], 0)
        if length > _LARGEST_BLOCK:
            raise self.damaged(f"a block at {offset:,} that unpacks to {length:,} bytes")
        try:
            return pa.decompress(self.raw[offset:trailer], decompressed_size=length, codec="snappy", asbytes=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.damaged(f"a block at {offset:,} that does not unpack ({error})") from error

    def pairs(self, handle: tuple[int, int]) -> list[tuple[bytes, bytes]]:
        """Returns keys and values of one of the few small blocks (index, properties), where a step
        for many at once would cost more.
        """
        block, at, key = self.block(handle), 0, b""
        end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
        found: list[tuple[bytes, bytes]] = []
        while at < end:
            shared, at = self.uvarint(block, at)
            fresh, at = self.uvarint(block, at)
            size, at = self.uvarint(block, at)
            if shared > len(key) or at + fresh + size > end:
                raise self.damaged("an entry that runs past its block")
            key = key[:shared] + block[at : at + fresh]
            found.append((key, block[at + fresh : at + fresh + size]))
            at += fresh + size
        if end < 0 or at != end:
            raise self.damaged(f"a block of {len(block):,} bytes whose entries end at {at:,}, expected {end:,}")
        return found

    def verify_count(self, name: str, expected: int, found: int) -> None:
        if expected != found:
            raise FormatError(f"{self.where}: {name} is {expected:,}, read {found:,} entries; restore the object from a backup")


def masked_crc32c(data: bytes) -> int:
    """Returns CRC32C as tables store it (LevelDB `crc32c.h`, Mask)."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
