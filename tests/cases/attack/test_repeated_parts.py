"""A few kilobytes of Icechunk or lakeFS metadata decode to gigabytes, because parts are repeated.

Relatives of attack/01: FlatBuffers offsets may share a target, keys of an SSTable share the start of
the key before them, and the index of an SSTable may repeat a block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
import zstandard

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.chunk_manifests import parse_chunk_manifest
from gc_assets.lakes.icechunk.envelope import CHUNK_MANIFEST, MAGIC
from gc_assets.lakes.lakefs.sstable import read_sstable
from tests.lakes.lakefs.tables import SEPARATOR, TableWriter, uvarint

TRAILER = b"\x01" + bytes(7)
COUNT = 20_000


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def vtable(*fields: int, table_bytes: int) -> bytes:
    return struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), table_bytes, *fields)


def chunk_manifest(payload: bytes) -> bytes:
    """Return a file of spec version 1 with this payload."""
    header = MAGIC + b"test".ljust(24) + bytes([1, CHUNK_MANIFEST, 1])
    return header + zstandard.ZstdCompressor().compress(payload)


def shared_references(arrays: int, refs: int) -> bytes:
    """Return a manifest in which all arrays have the same vector of references."""
    layouts = vtable(4, 16, table_bytes=20) + vtable(0, 4, table_bytes=8) + vtable(table_bytes=4) + bytes(4)
    root_at = 4 + len(layouts)
    array_vector_at = root_at + 20
    array_at = array_vector_at + 4 + 4 * arrays
    refs_at = array_at + 8
    ref_at = refs_at + 4 + 4 * refs
    root = u32(root_at - 4) + bytes(12) + u32(4)
    vector = u32(arrays, *(array_at - (array_vector_at + 4 + 4 * number) for number in range(arrays)))
    array = u32(array_at - 12) + u32(4)
    references = u32(refs, *(ref_at - (refs_at + 4 + 4 * number) for number in range(refs)))
    return u32(root_at) + layouts + root + vector + array + references + u32(ref_at - 20)


def test_manifest_whose_arrays_share_references_is_refused() -> None:
    with pytest.raises(FormatError, match=r"manifest m: the payload of .* is damaged: found .* references"):
        parse_chunk_manifest("manifest m", chunk_manifest(shared_references(COUNT, COUNT)))


class LongKeys(TableWriter):
    """Writer of one data block whose keys share all but four bytes."""

    def _block(self, pairs: Iterable[tuple[bytes, bytes]], restart_interval: int | None = None) -> bytes:
        if restart_interval is not None:
            return super()._block(pairs, restart_interval)
        first = b"k" * 60_000
        entries = uvarint(0) + uvarint(len(first) + 8) + uvarint(0) + first + TRAILER
        entries += b"".join(
            uvarint(len(first)) + uvarint(12) + uvarint(0) + number.to_bytes(4, "big") + TRAILER for number in range(1, COUNT)
        )
        return entries + u32(0) + u32(1)


class RepeatedBlock(TableWriter):
    """Writer of an index that lists one data block many times."""

    def _block(self, pairs: Iterable[tuple[bytes, bytes]], restart_interval: int | None = None) -> bytes:
        pairs = list(pairs)
        is_index = pairs[0][0].endswith(SEPARATOR)
        return super()._block(pairs * COUNT if is_index else pairs, restart_interval)


class LongIndexKeys(TableWriter):
    """Writer of an index with a key of a megabyte."""

    def _block(self, pairs: Iterable[tuple[bytes, bytes]], restart_interval: int | None = None) -> bytes:
        return super()._block([(key + b"k" * 2**20 if key.endswith(SEPARATOR) else key, value) for key, value in pairs], restart_interval)


@pytest.mark.parametrize(
    "writer, found",
    [
        (LongKeys(), "a key of 60,012 bytes, or keys of"),
        (RepeatedBlock(two_level=False), "overlaps the block before it"),
        (LongIndexKeys(two_level=False), "runs past its block"),
    ],
)
def test_sstable_that_repeats_blocks_or_key_prefixes_is_refused(writer: TableWriter, found: str) -> None:
    with pytest.raises(FormatError, match=f"range r is damaged: found .*{found}"):
        read_sstable("range r", writer.write([(b"key", b"value")]))


def test_long_key_sstable_is_valid_except_for_the_entry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "COUNT", 3)
    with pytest.raises(FormatError, match=r"num\.entries is 1, read 3"):
        read_sstable("range r", LongKeys().write([(b"key", b"value")]))
