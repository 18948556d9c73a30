"""Read many FlatBuffers tables with numpy.

Tables with the same layout (vtable) are read in one pass. Since writers let tables share layouts, a
file has only a few layouts. Every position is checked against the size of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gc_assets.lakes.icechunk.flatbuffers import FlatBuffer, VTable
from gc_assets.lakes.icechunk.ids import ID_BYTES, Ids

# Ten optional fields allow for at most 1,024 layouts. A much larger number indicates damage.
_MAX_LAYOUTS: Final = 4096
# Number of byte vectors to gather at a time. It limits the size of the index arrays.
_BATCH: Final = 1 << 16

Positions = NDArray[np.int64]


def table_positions(buffer: FlatBuffer, field: int) -> Positions:
    """Return the positions of the tables in a vector, given the field that points to the vector."""
    start, count = buffer.vector(field, 4)
    offsets = np.frombuffer(buffer.data, "<u4", count, start)
    return start + 4 * np.arange(count, dtype=np.int64) + offsets


def group_by_layout(buffer: FlatBuffer, tables: Positions, known_fields: int) -> list[tuple[VTable, Positions]]:
    """Group the positions of tables by their layout (vtable)."""
    if not len(tables):
        return []
    vtables = tables - gather_u32(buffer, tables).view(np.int32)
    starts = np.unique(vtables).tolist()
    if len(starts) > _MAX_LAYOUTS:
        raise buffer.damage_error(f"{len(starts):,} table layouts, which are too many")
    if len(starts) == 1:
        return [(buffer.vtable(starts[0], int(tables.max()), known_fields), tables)]
    order = np.argsort(vtables, kind="stable")
    groups = np.split(tables[order], np.searchsorted(vtables[order], starts[1:]))
    return [(buffer.vtable(start, int(members.max()), known_fields), members) for start, members in zip(starts, groups, strict=True)]


def gather_ids(buffer: FlatBuffer, positions: Positions) -> Ids:
    """Read the object id at each of the given positions, as an array of shape (n, 12)."""
    if int(positions.max()) + ID_BYTES > len(buffer.data):
        raise buffer.damage_error("an id past the end")
    if not np.any(positions & 3):  # This holds in practice, although the format does not guarantee it.
        return _as_u32(buffer)[(positions >> 2)[:, None] + np.arange(3)].view(np.uint8)
    return np.frombuffer(buffer.data, np.uint8)[positions[:, None] + np.arange(ID_BYTES)]


def gather_u32(buffer: FlatBuffer, positions: Positions) -> NDArray[np.uint32]:
    """Read an unsigned 4-byte integer at each of the given, aligned positions."""
    if int(positions.min()) < 0 or int(positions.max()) + 4 > len(buffer.data):
        raise buffer.damage_error("a table past the end")
    if np.any(positions & 3):
        raise buffer.damage_error("a table that is not aligned to four bytes")
    return _as_u32(buffer)[positions >> 2]


def gather_u64(buffer: FlatBuffer, positions: Positions) -> NDArray[np.uint64]:
    """Read an unsigned 8-byte integer at each of the given positions."""
    low, high = gather_u32(buffer, positions), gather_u32(buffer, positions + 4)
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def count_bytes(buffer: FlatBuffer, fields: Positions) -> NDArray[np.uint32]:
    """Return the sizes of byte vectors, given the positions of the fields that point to them."""
    return gather_u32(buffer, fields + gather_u32(buffer, fields))


def gather_bytes(buffer: FlatBuffer, fields: Positions, name: str) -> Iterator[pa.BinaryArray]:
    """Yield distinct byte vectors or strings, given the positions of fields that point to them.

    Args:
        buffer: The file.
        fields: Positions of the fields.
        name: Name of the vectors in error messages, in the plural.
    """
    if not len(fields):
        return
    vectors = np.unique(fields + gather_u32(buffer, fields))  # Tables may share a vector.
    sizes = gather_u32(buffer, vectors).astype(np.int64)
    if int((vectors + 4 + sizes).max()) > len(buffer.data):
        raise buffer.damage_error(f"{name} that run past the end")
    if int(sizes.sum()) > len(buffer.data):  # If vectors overlap, they could have any number of bytes in total.
        raise buffer.damage_error(f"{name} of {int(sizes.sum()):,} bytes in total, which do not fit")
    for first in range(0, len(vectors), _BATCH):
        starts, lengths = (values[first : first + _BATCH] for values in (vectors, sizes))
        ends = np.cumsum(lengths)
        offsets = np.concatenate(([0], ends))
        indices = np.arange(int(ends[-1])) + np.repeat(starts + 4 - offsets[:-1], lengths)
        content: Any = np.frombuffer(buffer.data, np.uint8)[indices]
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
        yield pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)


def _as_u32(buffer: FlatBuffer) -> NDArray[np.uint32]:
    return np.frombuffer(buffer.data, "<u4", len(buffer.data) // 4)
