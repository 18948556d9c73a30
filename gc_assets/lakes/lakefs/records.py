"""Parse the records of a graveler table: a range, a metarange, or a part of the refs dump.

Format: lakeFS `pkg/graveler/committed/value.go`. A value consists of an identity and data, each
after its length as a signed Go varint. The records are checked against the table's name and its
properties `type`, `entity`, `count`, `min_key` and `max_key`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lakefs.object_ids import object_id as id_of
from gc_assets.lakes.lakefs.sstable import SSTable, read_sstable
from gc_assets.lakes.lakefs.wire import Buffer, Positions

RANGES: Final = "ranges"
METARANGES: Final = "metaranges"


@dataclass(frozen=True, slots=True)
class Records:
    """Keys of records in order, and the positions of each record's identity and data in `buffer`."""

    buffer: Buffer
    keys: pa.BinaryArray
    identity_starts: Positions
    identity_sizes: Positions
    data_starts: Positions
    data_sizes: Positions

    def __len__(self) -> int:
        return len(self.data_starts)


def read_records(source: str, object_id: str, raw: bytes, table_type: str, entity: str | None = None) -> Records:
    """Read the records of a table.

    Args:
        source: Name of the table for error messages.
        object_id: Id of the table.
        raw: Content of the table.
        table_type: `RANGES` or `METARANGES`.
        entity: `branch`, `tag` or `commit` for a refs dump, or None for a commit's objects.

    Raises:
        FormatError: If the table does not have the expected type, entity, content or counts.
    """
    table = read_sstable(source, raw)
    found = tuple(_text(table, name) for name in ("type", "entity"))
    if found != (table_type, entity):
        raise FormatError(
            f"{source}: expected a table of type and entity {(table_type, entity)}, found {found}; the file has the content "
            "of another object, restore it from a backup"
        )
    _verify_bounds(source, table)
    if (found_id := id_of(table)) != object_id:
        raise FormatError(f"{source}: the object has the content of {found_id}, expected {object_id}; restore it from a backup")
    entries = table.entries
    buffer, ends = entries.buffer, entries.value_starts + entries.value_sizes
    identity_starts, identity_sizes = _read_frames(buffer, entries.value_starts, ends)
    data_starts, data_sizes = _read_frames(buffer, identity_starts + identity_sizes, ends)
    return Records(buffer, entries.keys, identity_starts, identity_sizes, data_starts, data_sizes)


def _read_frames(buffer: Buffer, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Return the start and length of the length-prefixed value at each position in the buffer."""
    if np.any(at >= ends):
        raise buffer.damage_error("a value that ends before its data")
    sizes, starts = buffer.uvarints(at)
    if np.any(sizes & np.uint64(1)) or np.any(sizes > np.uint64(2 * len(buffer.data))):
        raise buffer.damage_error("a value with a negative length, or one beyond the table")
    lengths = (sizes >> np.uint64(1)).astype(np.int64)
    buffer.check_bounds(starts + lengths, ends, "a value")
    return starts, lengths


def _verify_bounds(source: str, table: SSTable) -> None:
    keys = table.entries.keys
    count = _text(table, "count")
    if count is None or not count.isdecimal() or int(count) != len(keys):
        raise FormatError(f"{source}: its `count` property is {count}, but it has {len(keys):,} records; restore the object from a backup")
    if len(keys) == 0:
        return
    for name, key in (("min_key", keys[0].as_py()), ("max_key", keys[-1].as_py())):
        if table.properties.get(name.encode()) != key:
            raise FormatError(
                f"{source}: its property {name} is {table.properties.get(name.encode())!r}, but the record has {key!r}; "
                "restore the object from a backup"
            )


def _text(table: SSTable, name: str) -> str | None:
    value = table.properties.get(name.encode())
    return None if value is None else value.decode(errors="backslashreplace")
