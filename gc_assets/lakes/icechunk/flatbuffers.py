"""A reader of FlatBuffers tables that verifies each offset against the size of the buffer.

Format: flatbuffers.dev, "FlatBuffer Internals". The module does not contain a schema. Files with
many rows of the same layout are read with numpy, and files with nested tables are read by
`TableReader`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gc_assets.core.errors import FormatError

U8, U16, U32, U64 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
I32 = struct.Struct("<i")
ABSENT = 0
# The library's size limit for a file.
_MAX_TABLES: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class VTable:
    """Layout of a table.

    `fields[i]` is the distance of field i from the start of the table, or `ABSENT` if the field has
    its default value.
    """

    fields: tuple[int, ...]
    table_bytes: int


@dataclass(frozen=True, slots=True)
class FlatBuffer:
    """A buffer, with its name in error messages."""

    source: str
    data: bytes

    def root(self, known_fields: int, identifier: bytes | None = None) -> Table:
        """Return the root table. Raises `FormatError` for an unexpected file identifier."""
        if identifier is not None and (found := self.take(4, len(identifier))) != identifier:
            raise self.damage_error(f"the file identifier {found!r} instead of {identifier!r}")
        return self.table(self.number(U32, 0), known_fields)

    def table(self, position: int, known_fields: int) -> Table:
        vtable = position - self.number(I32, position)
        return Table(self, position, self.vtable(vtable, position, known_fields))

    def vtable(self, at: int, table: int, known_fields: int) -> VTable:
        """Return the layout at `at` for tables up to position `table`.

        Raises:
            FormatError: If the table has a field that is not in the schema. The field may refer to
                objects, which would then look like garbage.
        """
        size, table_bytes = self.number(U16, at), self.number(U16, at + 2)
        if size < 4 or size % 2 or at + size > len(self.data) or table_bytes < 4 or table + table_bytes > len(self.data):
            raise self.damage_error(f"a table layout at byte {at} that does not fit")
        fields = struct.unpack_from(f"<{size // 2 - 2}H", self.data, at + 4)
        if any(offset and not 4 <= offset < table_bytes for offset in fields):
            raise self.damage_error(f"a table layout at byte {at} with a field outside of its table")
        if any(fields[known_fields:]):
            raise FormatError(
                f"{self.source}: expected {known_fields} fields in a table, found a later one; "
                "a newer library wrote the file, and this release cannot read its references"
            )
        return VTable((*fields[:known_fields], *(ABSENT,) * (known_fields - len(fields))), table_bytes)

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Return the start and the number of items of the vector in the field at position `field`."""
        at = field + self.number(U32, field)
        count = self.number(U32, at)
        if at + 4 + count * item_bytes > len(self.data):
            raise self.damage_error(f"a vector of {count:,} items at byte {at} that runs past the end")
        return at + 4, count

    def indirect(self, position: int) -> int:
        """Return the target of the offset that is stored at `position`."""
        return position + self.number(U32, position)

    def unsigned64(self, position: int) -> int:
        return self.number(U64, position)

    def take(self, position: int, length: int) -> bytes:
        if position < 0 or position + length > len(self.data):
            raise self.damage_error(f"an offset to byte {position}")
        return self.data[position : position + length]

    def damage_error(self, found: str) -> FormatError:
        size = f"{len(self.data):,} bytes"
        return FormatError(f"{self.source}: expected a valid payload of {size}, found {found}; restore the file from a backup")

    def number(self, layout: struct.Struct, position: int) -> int:
        if position < 0 or position + layout.size > len(self.data):
            raise self.damage_error(f"an offset to byte {position}")
        return layout.unpack_from(self.data, position)[0]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a buffer."""

    buffer: FlatBuffer
    position: int
    layout: VTable

    def has(self, field: int) -> bool:
        return self.layout.fields[field] != ABSENT

    def at(self, field: int, name: str) -> int:
        """Return the position of a required field."""
        if not self.has(field):
            raise FormatError(f"{self.buffer.source}: expected the field {name!r}, found none; restore the file from a backup")
        return self.position + self.layout.fields[field]

    def number(self, field: int, layout: struct.Struct, default: int = 0) -> int:
        """Return a scalar. Writers omit fields with the default value."""
        return self.buffer.number(layout, self.at(field, "")) if self.has(field) else default


class TableReader:
    """Reads nested tables, strings and bytes in time and memory proportional to the buffer.

    In a valid file, no two vectors overlap, so their total size is at most the size of the buffer.
    Only strings may be shared. A damaged file can refer to a vector any number of times.
    """

    def __init__(self, buffer: FlatBuffer) -> None:
        self._buffer = buffer
        self._unread_bytes = len(buffer.data)
        self._unread_tables = _MAX_TABLES
        self._strings: dict[int, str] = {}

    def tables(self, field: int, known_fields: int) -> Iterator[Table]:
        """Yield the tables in the vector referenced by the offset field at position `field`."""
        start, count = self._vector(field, 4)
        for index in range(count):
            yield self.table(start + 4 * index, known_fields)

    def table(self, field: int, known_fields: int) -> Table:
        """Return the table referenced by the offset field at position `field`."""
        table = self._buffer.table(self._buffer.indirect(field), known_fields)
        self._unread_tables -= 1
        if self._unread_tables < 0:
            raise self._buffer.damage_error(f"more than {_MAX_TABLES:,} tables")
        self._spend(table.layout.table_bytes)
        return table

    def strings(self, field: int) -> Iterator[str]:
        """Yield the strings in the vector referenced by the offset field at position `field`."""
        start, count = self._vector(field, 4)
        for index in range(count):
            yield self.string(start + 4 * index)

    def string(self, field: int) -> str:
        """Return the string referenced by the offset field at position `field`."""
        position = self._buffer.indirect(field)
        if (known := self._strings.get(position)) is not None:
            return known
        raw = self.raw(field)
        try:
            return self._strings.setdefault(position, raw.decode())
        except UnicodeDecodeError as error:
            source = self._buffer.source
            raise FormatError(f"{source}: expected a string in UTF-8, found {error}; restore the file from a backup") from error

    def raw(self, field: int) -> bytes:
        """Return the byte vector referenced by the offset field at position `field`."""
        return self._buffer.take(*self._vector(field, 1))

    def structs(self, field: int, item_bytes: int) -> list[bytes]:
        """Return the structs in the vector referenced by the offset field at position `field`."""
        start, count = self._vector(field, item_bytes)
        raw = self._buffer.take(start, count * item_bytes)
        return [raw[at : at + item_bytes] for at in range(0, len(raw), item_bytes)]

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        start, count = self._buffer.vector(field, item_bytes)
        self._spend(count * item_bytes)
        return start, count

    def _spend(self, size: int) -> None:
        self._unread_bytes -= size
        if self._unread_bytes < 0:
            raise self._buffer.damage_error("vectors that are larger than the file together")
