"""numpy parser for chunk manifests with spec version 1 (`manifest.fbs`).

It converts bytes to chunk ids and locations. A reference is native (a chunk id), virtual (a
location) or inline (its bytes are in the manifest). All references with the same layout (vtable)
are read in one pass. Writers share layouts, so there are only a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.flatbuffers import ABSENT, FlatBuffer, VTable
from gc_assets.lakes.icechunk.ids import ID_BYTES, Ids, distinct, spell_one

_ID, _ARRAYS = range(2)
_REFS = 1
_INLINE, _CHUNK_ID, _LOCATION = 1, 4, 5
# Library 2.x also writes the two fields of spec version 2 that describe compressed locations into
# manifests of version 1. A compressed location itself is a ninth field of a reference, which spec
# version 1 does not have.
_MANIFEST_FIELDS, _ARRAY_FIELDS, _REF_FIELDS = 4, 2, 8
# Eight optional fields give 256 layouts. A much larger number means damage.
_MAX_LAYOUTS = 1024
# Number of locations per batch, which bounds the size of the index arrays.
_LOCATION_BATCH = 1 << 16

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChunkManifest:
    """Manifest references.

    Attributes:
        chunk_ids: Distinct native chunk ids, shape (n, 12).
        locations: Distinct virtual locations.
        native_refs: Number of native references.
        virtual_refs: Number of virtual references.
        inline_refs: Number of inline references.
    """

    manifest_id: str
    chunk_ids: Ids
    locations: pa.StringArray
    native_refs: int
    virtual_refs: int
    inline_refs: int

    @property
    def chunk_refs(self) -> int:
        return self.native_refs + self.virtual_refs + self.inline_refs


def parse_chunk_manifest(source: str, raw: bytes) -> ChunkManifest:
    """Parse a chunk manifest.

    Args:
        source: Name of the file in errors.
        raw: Content of the file.

    Raises:
        FormatError: If the file is damaged or unknown.
    """
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.CHUNK_MANIFEST, envelope.SPEC_V1))
    root = buffer.root(_MANIFEST_FIELDS)
    refs = _ref_tables(buffer, root.at(_ARRAYS, "arrays"))
    native: list[Ids] = [np.zeros((0, ID_BYTES), np.uint8)]
    virtual: list[Positions] = [np.zeros(0, np.int64)]
    inline_refs = 0
    for layout, tables in _by_layout(buffer, refs):
        present = [field for field in (_CHUNK_ID, _INLINE, _LOCATION) if layout.fields[field] != ABSENT]
        if len(present) != 1:
            raise FormatError(
                f"{source}: expected each reference to be native, virtual or inline, found one that is {len(present)} of these; "
                "restore the file from a backup"
            )
        if present == [_CHUNK_ID]:
            native.append(_gather_ids(buffer, tables + layout.fields[_CHUNK_ID]))
        elif present == [_LOCATION]:
            virtual.append(tables + layout.fields[_LOCATION])
        else:
            inline_refs += len(tables)
    ids, fields = np.concatenate(native), np.concatenate(virtual)
    return ChunkManifest(
        manifest_id=spell_one(buffer.take(root.at(_ID, "id"), ID_BYTES)),
        chunk_ids=distinct(ids),
        locations=_locations(buffer, fields),
        native_refs=len(ids),
        virtual_refs=len(fields),
        inline_refs=inline_refs,
    )


def _ref_tables(buffer: FlatBuffer, arrays: int) -> Positions:
    """Return all reference positions over all arrays."""
    start, count = buffer.vector(arrays, 4)
    found: list[Positions] = [np.zeros(0, np.int64)]
    total = 0
    for index in range(count):
        array = buffer.table(buffer.indirect(start + 4 * index), _ARRAY_FIELDS)
        first, refs = buffer.vector(array.at(_REFS, "refs"), 4)
        total += refs
        if 4 * total > len(buffer.data):  # arrays that share a vector could name any number of references
            raise buffer.damage_error(f"{total:,} references")
        offsets = np.frombuffer(buffer.data, "<u4", refs, first)
        found.append(first + 4 * np.arange(refs, dtype=np.int64) + offsets)
    return np.concatenate(found)


def _by_layout(buffer: FlatBuffer, tables: Positions) -> list[tuple[VTable, Positions]]:
    """Group the references by vtable. Every offset is verified to be inside the buffer."""
    if not len(tables):
        return []
    vtables = tables - _gather_u32(buffer, tables).view(np.int32)
    starts = np.unique(vtables).tolist()
    if len(starts) > _MAX_LAYOUTS:
        raise buffer.damage_error(f"{len(starts):,} table layouts")
    if len(starts) == 1:
        return [(buffer.vtable(starts[0], int(tables.max()), _REF_FIELDS), tables)]
    order = np.argsort(vtables, kind="stable")
    groups = np.split(tables[order], np.searchsorted(vtables[order], starts[1:]))
    return [(buffer.vtable(start, int(members.max()), _REF_FIELDS), members) for start, members in zip(starts, groups, strict=True)]


def _gather_ids(buffer: FlatBuffer, positions: Positions) -> Ids:
    if int(positions.max()) + ID_BYTES > len(buffer.data):
        raise buffer.damage_error("a chunk id past the end")
    if not np.any(positions & 3):  # true in practice, but not guaranteed by the format
        return _as_u32(buffer)[(positions >> 2)[:, None] + np.arange(3)].view(np.uint8)
    return np.frombuffer(buffer.data, np.uint8)[positions[:, None] + np.arange(ID_BYTES)]


def _gather_u32(buffer: FlatBuffer, positions: Positions) -> NDArray[np.uint32]:
    """Read the numbers at positions, which the format aligns to four bytes."""
    if int(positions.min()) < 0 or int(positions.max()) + 4 > len(buffer.data):
        raise buffer.damage_error("a reference past the end")
    if np.any(positions & 3):
        raise buffer.damage_error("a reference that is not aligned to four bytes")
    return _as_u32(buffer)[positions >> 2]


def _as_u32(buffer: FlatBuffer) -> NDArray[np.uint32]:
    return np.frombuffer(buffer.data, "<u4", len(buffer.data) // 4)


def _locations(buffer: FlatBuffer, fields: Positions) -> pa.StringArray:
    """Return the distinct strings that the fields point to."""
    if not len(fields):
        return pa.array([], pa.string())
    parts: list[Any] = []
    every_string = np.unique(fields + _gather_u32(buffer, fields))  # references may share a string
    every_length = _gather_u32(buffer, every_string).astype(np.int64)
    if int((every_string + 4 + every_length).max()) > len(buffer.data):
        raise buffer.damage_error("a virtual location that runs past the end")
    if int(every_length.sum()) > len(buffer.data):  # strings that overlap could name any number of bytes
        raise buffer.damage_error(f"virtual locations of {int(every_length.sum()):,} bytes together")
    for first in range(0, len(every_string), _LOCATION_BATCH):
        strings, lengths = (values[first : first + _LOCATION_BATCH] for values in (every_string, every_length))
        ends = np.cumsum(lengths)
        offsets = np.concatenate(([0], ends))
        indices = np.arange(int(ends[-1])) + np.repeat(strings + 4 - offsets[:-1], lengths)
        text = np.frombuffer(buffer.data, np.uint8)[indices]
        strings_array = pa.StringArray.from_buffers(len(strings), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text))
        try:
            strings_array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise FormatError(f"{buffer.source}: expected virtual locations in UTF-8: {error}; restore the file from a backup") from error
        parts.append(pc.unique(strings_array))
    return pc.unique(pa.chunked_array(parts))
