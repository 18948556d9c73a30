"""Parse the SSTables that lakeFS writes with Pebble, in RocksDB's block-based format, version 2.

Format: RocksDB wiki, "Rocksdb BlockBasedTable Format". The parser verifies the checksum of every
block and all counts in the format, because entries might be missed otherwise. For the same reason,
it rejects any unknown magic, checksum, compression, index or kind of entry. It does not interpret
the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import google_crc32c
import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.blocks import LARGEST_KEY, Entries, read_blocks

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
# A block has 4 KiB, plus its last entry. The largest value in graveler has 40 MiB.
_LARGEST_BLOCK: Final = 2**28
_SINGLE_INDEX, _TWO_LEVEL_INDEX = 0, 2
_TRAILER_BYTES: Final = 5

_PROPERTIES: Final = b"rocksdb.properties"
_RANGE_DELETIONS: Final = b"rocksdb.range_del"
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_NUM_ENTRIES: Final = b"rocksdb.num.entries"


@dataclass(frozen=True, slots=True)
class SSTable:
    """The entries of an SSTable in key order, and its properties.

    The properties include those that lakeFS adds.
    """

    properties: Mapping[bytes, bytes]
    entries: Entries


def read_sstable(source: str, raw: bytes) -> SSTable:
    """Parse an SSTable. Raises `FormatError` if it is damaged or has an unknown format."""
    file = _File(source, raw)
    metaindex, index = file.footer()
    meta = dict(file.pairs(metaindex))
    if _RANGE_DELETIONS in meta:
        raise FormatError(f"{source}: the table contains range deletions, which lakeFS never writes")
    if _PROPERTIES not in meta:
        raise FormatError(f"{source}: the table has no properties block; restore the object from a backup")
    properties = dict(file.pairs(file.handle(meta[_PROPERTIES])[:2]))
    blocks = file.handles(file.pairs(index))
    index_type = int.from_bytes(properties.get(_INDEX_TYPE, bytes(4)), "little")
    if index_type == _TWO_LEVEL_INDEX:
        blocks = file.handles([pair for part in blocks for pair in file.pairs(part)])
    elif index_type != _SINGLE_INDEX:
        raise FormatError(f"{source}: the index has type {index_type}; expected {_SINGLE_INDEX} (one level) or {_TWO_LEVEL_INDEX} (two)")
    entries = read_blocks(source, [file.block(block) for block in blocks])
    file.verify_count("rocksdb.num.entries", file.uvarint(properties.get(_NUM_ENTRIES, b"\0"), 0)[0], len(entries))
    return SSTable(properties, entries)


@dataclass(frozen=True, slots=True)
class _File:
    source: str
    raw: bytes

    def damage_error(self, what: str) -> FormatError:
        return FormatError(f"{self.source} is damaged: found {what}; restore the object from a backup")

    def footer(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Read the handles (offset and size) of the metaindex block and the index block."""
        magic = self.raw[-len(MAGIC) :]
        if magic in _OTHER_MAGICS:
            raise FormatError(f"{self.source}: the object is {_OTHER_MAGICS[magic]}; expected RocksDB's block-based format")
        if len(self.raw) < FOOTER_BYTES or magic != MAGIC:
            raise FormatError(
                f"{self.source}: expected an SSTable that ends in {MAGIC.hex()}, found {len(self.raw):,} bytes ending in {magic.hex()}; "
                "it is truncated or another file, restore the object from a backup"
            )
        footer = self.raw[-FOOTER_BYTES:]
        if footer[0] != _CRC32C:
            name = _CHECKSUMS.get(footer[0], "unknown")
            raise FormatError(f"{self.source}: its checksums are {name} (type {footer[0]}); expected CRC32C (type {_CRC32C})")
        (version,) = struct.unpack_from("<I", footer, FOOTER_BYTES - 12)
        if version != FORMAT_VERSION:
            raise FormatError(f"{self.source}: the table has format version {version}; expected {FORMAT_VERSION}")
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
        raise self.damage_error("a number that does not end")

    def handle(self, data: bytes, at: int = 0) -> tuple[int, int, int]:
        """Read the offset and size of a block. The third value is the position after the handle."""
        offset, at = self.uvarint(data, at)
        size, at = self.uvarint(data, at)
        return offset, size, at

    def block(self, handle: tuple[int, int]) -> bytes:
        """Verify and decompress the content of a block."""
        offset, size = handle
        trailer = offset + size
        if trailer + _TRAILER_BYTES > len(self.raw):
            raise self.damage_error(f"a block of {size:,} bytes at {offset:,}, which ends after the file of {len(self.raw):,} bytes")
        (stored,) = struct.unpack_from("<I", self.raw, trailer + 1)
        if stored != masked_crc32c(self.raw[offset : trailer + 1]):
            raise self.damage_error(f"a block at {offset:,} with a wrong checksum")
        compression = self.raw[trailer]
        if compression == _UNCOMPRESSED:
            return self.raw[offset:trailer]
        if compression != _SNAPPY:
            name = _COMPRESSIONS.get(compression, "unknown")
            raise FormatError(f"{self.source}: a block is compressed with {name} (type {compression}); expected none or snappy")
        length, _ = self.uvarint(self.raw[offset:trailer], 0)
        if length > _LARGEST_BLOCK:
            raise self.damage_error(f"a block at {offset:,} that unpacks to {length:,} bytes, which is too large")
        try:
            return pa.decompress(self.raw[offset:trailer], decompressed_size=length, codec="snappy", asbytes=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.damage_error(f"a block at {offset:,} that does not unpack ({error})") from error

    def handles(self, index: list[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Read the offsets and sizes of the blocks that an index lists.

        Blocks must be in order. If an index could repeat a block, it could contain any number of
        entries.
        """
        found, end = list[tuple[int, int]](), 0
        for _, value in index:
            offset, size, _ = self.handle(value)
            if offset < end:
                raise self.damage_error(f"a block at {offset:,} that overlaps the block before it")
            found.append((offset, size))
            end = offset + size + _TRAILER_BYTES
        return found

    def pairs(self, handle: tuple[int, int]) -> list[tuple[bytes, bytes]]:
        """Read the keys and values of a small block, such as the index or the properties.

        A plain loop is faster than `read_blocks` for these.
        """
        block, at, key = self.block(handle), 0, b""
        end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
        found: list[tuple[bytes, bytes]] = []
        while at < end:
            shared, at = self.uvarint(block, at)
            fresh, at = self.uvarint(block, at)
            size, at = self.uvarint(block, at)
            if shared > len(key) or at + fresh + size > end or shared + fresh > LARGEST_KEY:
                raise self.damage_error("an entry that runs past its block")
            key = key[:shared] + block[at : at + fresh]
            found.append((key, block[at + fresh : at + fresh + size]))
            at += fresh + size
        if end < 0 or at != end:
            raise self.damage_error(f"a block of {len(block):,} bytes whose entries end at {at:,}, expected {end:,}")
        return found

    def verify_count(self, name: str, expected: int, found: int) -> None:
        if expected != found:
            raise FormatError(f"{self.source}: {name} is {expected:,}, read {found:,} entries; restore the object from a backup")


def masked_crc32c(data: bytes) -> int:
    """Compute the CRC32C checksum, masked as in SSTables (LevelDB `crc32c.h`, Mask)."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
