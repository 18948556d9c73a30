"""Parse chunk manifests (`manifest.fbs`) with numpy.

Format: Icechunk `spec-v1.md` and `spec-v2.md`, "Chunk Manifest Files". The parser returns chunk ids
and locations of chunks. A reference to a chunk is native if it has a chunk id, virtual if it has a
location, which may be compressed, and inline if the manifest contains the bytes themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.compressed_locations import UNCOMPRESSED, ZSTD, decompress_locations
from gc_assets.lakes.icechunk.flatbuffers import ABSENT, U8, FlatBuffer, Table, VTable
from gc_assets.lakes.icechunk.ids import ID_BYTES, Ids, distinct, spell_one
from gc_assets.lakes.icechunk.table_columns import (
    Positions,
    count_bytes,
    gather_bytes,
    gather_ids,
    gather_u64,
    group_by_layout,
    table_positions,
)

# Spec version 2 adds `_DICTIONARY`, `_ALGORITHM` and all fields for extra bytes and compressed
# locations. Library 2.x writes the first two of these to files with spec version 1 as well.
_ID, _ARRAYS, _DICTIONARY, _ALGORITHM, _EXTRA = range(5)
_MANIFEST_FIELDS: Final = 5
_REFS, _ARRAY_EXTRA = 1, 2
_ARRAY_FIELDS: Final = 3
_INLINE, _OFFSET, _LENGTH, _CHUNK_ID, _LOCATION, _COMPRESSED_LOCATION, _REF_EXTRA = 1, 2, 3, 4, 5, 8, 9
_REF_FIELDS: Final = 10
# Larger values indicate damage, and their sum in a report would not fit into an int64.
_MAX_CHUNK_BYTES: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class ChunkManifest:
    """The references to chunks in a chunk manifest.

    Attributes:
        chunk_ids: Distinct native chunk ids, as an array of shape (n, 12).
        chunk_bytes: For each id in `chunk_ids`, the number of bytes that references read from the
            start of the chunk file, or 0 if unknown.
        locations: Distinct locations of virtual chunks.
        native_refs: Number of native references.
        virtual_refs: Number of virtual references.
        inline_refs: Number of inline references.
        has_extra: True if a reserved field contains data, which only later library releases write.
    """

    manifest_id: str
    chunk_ids: Ids
    chunk_bytes: NDArray[np.int64]
    locations: pa.StringArray
    native_refs: int
    virtual_refs: int
    inline_refs: int
    has_extra: bool = False

    @property
    def chunk_refs(self) -> int:
        return self.native_refs + self.virtual_refs + self.inline_refs


def parse_chunk_manifest(source: str, raw: bytes) -> ChunkManifest:
    """Parse a chunk manifest of any spec version.

    Args:
        source: Name of the file for error messages.
        raw: Content of the file.

    Raises:
        FormatError: If the file is damaged or has an unknown format.
    """
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.CHUNK_MANIFEST, envelope.SPEC_V1_AND_V2))
    root = buffer.root(_MANIFEST_FIELDS)
    algorithm = root.number(_ALGORITHM, U8, ZSTD)
    if algorithm not in {UNCOMPRESSED, ZSTD}:
        raise FormatError(f"{source}: expected compression algorithm {UNCOMPRESSED} or {ZSTD}, found {algorithm}; upgrade gc-assets")
    refs, has_extra = _ref_tables(buffer, root.at(_ARRAYS, "arrays"))
    has_extra |= _is_filled(root, _EXTRA)
    native: list[Ids] = [np.zeros((0, ID_BYTES), np.uint8)]
    sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    virtual: dict[int, list[Positions]] = {field: [np.zeros(0, np.int64)] for field in (_LOCATION, _COMPRESSED_LOCATION)}
    inline_refs = 0
    for layout, tables in group_by_layout(buffer, refs, _REF_FIELDS):
        present = [field for field in (_CHUNK_ID, _INLINE, _LOCATION, _COMPRESSED_LOCATION) if layout.fields[field] != ABSENT]
        if len(present) != 1:
            raise FormatError(
                f"{source}: expected each reference to be native, virtual or inline, found one that is {len(present)} of these; "
                "restore the file from a backup"
            )
        (field,) = present
        if field == _CHUNK_ID:
            native.append(gather_ids(buffer, tables + layout.fields[_CHUNK_ID]))
            sizes.append(_chunk_bytes(buffer, layout, tables))
        elif field in virtual:
            virtual[field].append(tables + layout.fields[field])
        else:
            inline_refs += len(tables)
        if layout.fields[_REF_EXTRA] != ABSENT:
            has_extra |= bool(count_bytes(buffer, tables + layout.fields[_REF_EXTRA]).any())
    ids = np.concatenate(native)
    chunk_ids, chunk_bytes = distinct(ids, np.concatenate(sizes))
    plain, compressed = (np.concatenate(virtual[field]) for field in (_LOCATION, _COMPRESSED_LOCATION))
    locations = [*gather_bytes(buffer, plain, "virtual locations")]
    if len(compressed):
        frames = gather_bytes(buffer, compressed, "compressed locations")
        locations.append(decompress_locations(source, frames, algorithm, _dictionary(root), len(buffer.data)))
    return ChunkManifest(
        manifest_id=spell_one(buffer.take(root.at(_ID, "id"), ID_BYTES)),
        chunk_ids=chunk_ids,
        chunk_bytes=chunk_bytes,
        locations=_as_text(source, locations),
        native_refs=len(ids),
        virtual_refs=len(plain) + len(compressed),
        inline_refs=inline_refs,
        has_extra=has_extra,
    )


def _chunk_bytes(buffer: FlatBuffer, layout: VTable, tables: Positions) -> NDArray[np.int64]:
    """Return the end of each native reference's byte range in its chunk file. 0 if implausible.

    The largest end for a chunk is the smallest possible size of its file.
    """
    end = np.zeros(len(tables), np.uint64)
    for field in (_OFFSET, _LENGTH):  # Each is omitted if it is 0.
        if layout.fields[field] != ABSENT:
            end += np.minimum(gather_u64(buffer, tables + layout.fields[field]), np.uint64(_MAX_CHUNK_BYTES))
    return np.where(end < _MAX_CHUNK_BYTES, end, 0).astype(np.int64)


def _ref_tables(buffer: FlatBuffer, arrays: int) -> tuple[Positions, bool]:
    """Locate the reference tables of all arrays. The flag is True if an array has reserved bytes."""
    start, count = buffer.vector(arrays, 4)
    found: list[Positions] = [np.zeros(0, np.int64)]
    total, has_extra = 0, False
    for index in range(count):
        array = buffer.table(buffer.indirect(start + 4 * index), _ARRAY_FIELDS)
        field = array.at(_REFS, "refs")
        total += buffer.vector(field, 4)[1]
        if 4 * total > len(buffer.data):  # If arrays share a vector, they could have any number of references.
            raise buffer.damage_error(f"{total:,} references, which do not fit")
        found.append(table_positions(buffer, field))
        has_extra |= _is_filled(array, _ARRAY_EXTRA)
    return np.concatenate(found), has_extra


def _is_filled(table: Table, field: int) -> bool:
    return table.has(field) and table.buffer.vector(table.at(field, ""), 1)[1] > 0


def _dictionary(root: Table) -> bytes:
    if not root.has(_DICTIONARY):
        return b""
    start, count = root.buffer.vector(root.at(_DICTIONARY, ""), 1)
    return root.buffer.take(start, count)


def _as_text(source: str, locations: Iterable[pa.BinaryArray]) -> pa.StringArray:
    """Return the distinct virtual locations as strings."""
    try:
        parts = [pc.unique(part.cast(pa.string())) for part in locations]
    except pa.ArrowInvalid as error:
        raise FormatError(f"{source}: a virtual location is not valid UTF-8 ({error}); restore the file from a backup") from error
    return pc.unique(pa.chunked_array(parts, pa.string()))
