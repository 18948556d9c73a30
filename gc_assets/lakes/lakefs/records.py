"""The records of a graveler table: a range, a metarange, or a part of the refs dump (lakeFS
`pkg/graveler/committed/value.go`).

A value is an identity and data, each behind its length as a Go signed varint. Which records there
are is verified against the table's own properties `type`, `entity`, `count`, `min_key` and
`max_key`, and against its name.
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
    """Keys in order, and where each record's identity and data lie in `buffer`."""

    buffer: Buffer
    keys: pa.BinaryArray
    identity_starts: Positions
    identity_sizes: Positions
    data_starts: Positions
    data_sizes: Positions

    def __len__(self) -> int:
        return len(self.data_starts)


def read_records(where: str, object_id: str, raw: bytes, table_type: str, entity: str | None = None) -> Records:
    """Returns the records of the table stored as `object_id`. `entity` is null for a commit's
    objects; a refs dump names branch, tag or commit.

    Raises `FormatError` naming `where` for another type, entity or content, and where the table
    holds more or less than it says.
    """
    table = read_sstable(where, raw)
    found = tuple(_text(table, name) for name in ("type", "entity"))
    if found != (table_type, entity):
        raise FormatError(f"{where}: a table of type and entity {found}, expected {(table_type, entity)}; it is another object")
    _verify_bounds(where, table)
    if (found_id := id_of(table)) != object_id:
        raise FormatError(f"{where}: holds what is named {found_id}, expected {object_id}; restore the object from a backup")
    entries = table.entries
    buffer, ends = entries.buffer, entries.value_starts + entries.value_sizes
    identity_starts, identity_sizes = _framed(buffer, entries.value_starts, ends)
    data_starts, data_sizes = _framed(buffer, identity_starts + identity_sizes, ends)
    return Records(buffer, entries.keys, identity_starts, identity_sizes, data_starts, data_sizes)


def _framed(buffer: Buffer, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Returns start and length of the pieces at the given positions."""
    if np.any(at >= ends):
        raise buffer.damaged("a value that ends before its data")
    sizes, starts = buffer.uvarints(at)
    if np.any(sizes & np.uint64(1)) or np.any(sizes > np.uint64(2 * len(buffer.data))):
        raise buffer.damaged("a value with a negative length, or one beyond the table")
    lengths = (sizes >> np.uint64(1)).astype(np.int64)
    buffer.within(starts + lengths, ends, "a value")
    return starts, lengths


def _verify_bounds(where: str, table: SSTable) -> None:
    keys = table.entries.keys
    count = _text(table, "count")
    if count is None or not count.isdecimal() or int(count) != len(keys):
        raise FormatError(f"{where}: its property count is {count}, read {len(keys):,} records; restore the object from a backup")
    if len(keys) == 0:
        return
    for name, key in (("min_key", keys[0].as_py()), ("max_key", keys[-1].as_py())):
        if table.properties.get(name.encode()) != key:
            raise FormatError(
                f"{where}: its property {name} is {table.properties.get(name.encode())!r}, the record there has {key!r}; "
                "restore the object from a backup"
            )


def _text(table: SSTable, name: str) -> str | None:
    value = table.properties.get(name.encode())
    return None if value is None else value.decode(errors="backslashreplace")
