"""Read FlatBuffers tables, and check every offset against the size of the buffer.

Format: flatbuffers.dev, "FlatBuffer Internals". This module does not contain a schema. Files with
many rows in the same layout are read with numpy instead, and files with nested tables are read with
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
# The library limits the size of a file to this number of tables.
_MAX_TABLES: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class VTable:
    """Layout of a FlatBuffers table.

    `fields[i]` is the distance from the start of the table to field i. It is `ABSENT` if the field
    was omitted because it has its default value.
    """

    fields: tuple[int, ...]
    table_bytes: int


@dataclass(frozen=True, slots=True)
class FlatBuffer:
    """The bytes of a FlatBuffer, and its name in error messages."""

    source: str
    data: bytes

    def root(self, known_fields: int, identifier: bytes | None = None) -> Table:
        """Return the buffer's root table, or raise `FormatError` for an unexpected file identifier."""
        if identifier is not None and (found := self.take(4, len(identifier))) != identifier:
            raise self.damage_error(f"the file identifier {found!r} instead of {identifier!r}")
        return self.table(self.number(U32, 0), known_fields)

    def table(self, position: int, known_fields: int) -> Table:
        vtable = position - self.number(I32, position)
        return Table(self, position, self.vtable(vtable, position, known_fields))

    def vtable(self, at: int, table: int, known_fields: int) -> VTable:
        """Return the layout stored at byte `at`, which the table at byte `table` uses.

        Raises:
            FormatError: If the table has a field that is not in our schema. Such a field may refer
                to objects, which would look like garbage if it were ignored.
        """
        size, table_bytes = self.number(U16, at), self.number(U16, at + 2)
        if size < 4 or size % 2 or at + size > len(self.data) or table_bytes < 4 or table + table_bytes > len(self.data):
            raise self.damage_error(f"a table layout at byte {at} that does not fit")
        fields = struct.unpack_from(f"<{size // 2 - 2}H", self.data, at + 4)
        if any(offset and not 4 <= offset < table_bytes for offset in fields):
            raise self.damage_error(f"a table layout at byte {at} with a field outside of its table")
        if any(fields[known_fields:]):
            raise FormatError(
                f"{self.source}: expected {known_fields} fields in a table, found an additional one; "
                "a newer library wrote the file, and this release cannot read its references"
            )
        return VTable((*fields[:known_fields], *(ABSENT,) * (known_fields - len(fields))), table_bytes)

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Follow a field's offset to a vector, and return the vector's start and number of items."""
        at = field + self.number(U32, field)
        count = self.number(U32, at)
        if at + 4 + count * item_bytes > len(self.data):
            raise self.damage_error(f"a vector of {count:,} items at byte {at} that runs past the end")
        return at + 4, count

    def indirect(self, position: int) -> int:
        """Follow the offset stored at `position`."""
        return position + self.number(U32, position)

    def unsigned64(self, position: int) -> int:
        return self.number(U64, position)

    def take(self, position: int, length: int) -> bytes:
        if position < 0 or position + length > len(self.data):
            raise self.damage_error(f"an offset to byte {position}, which is outside")
        return self.data[position : position + length]

    def damage_error(self, found: str) -> FormatError:
        size = f"{len(self.data):,} bytes"
        return FormatError(f"{self.source}: the payload of {size} is damaged: found {found}; restore the file from a backup")

    def number(self, layout: struct.Struct, position: int) -> int:
        if position < 0 or position + layout.size > len(self.data):
            raise self.damage_error(f"an offset to byte {position}, which is outside")
        return layout.unpack_from(self.data, position)[0]


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a FlatBuffer."""

    buffer: FlatBuffer
    position: int
    layout: VTable

    def has(self, field: int) -> bool:
        return self.layout.fields[field] != ABSENT

    def at(self, field: int, name: str) -> int:
        """Return the position of a field that must be present."""
        if not self.has(field):
            raise FormatError(f"{self.buffer.source}: the field {name!r} is missing; restore the file from a backup")
        return self.position + self.layout.fields[field]

    def number(self, field: int, layout: struct.Struct, default: int = 0) -> int:
        """Read a scalar field. Writers omit a field that has the default value."""
        return self.buffer.number(layout, self.at(field, "")) if self.has(field) else default


class TableReader:
    """Reads nested tables, strings and bytes in time and memory proportional to the buffer's size.

    In a valid file, vectors do not overlap, so together they are not larger than the buffer. Only
    strings may be shared. A damaged file could refer to the same vector any number of times.
    """

    def __init__(self, buffer: FlatBuffer) -> None:
        self._buffer = buffer
        self._unread_bytes = len(buffer.data)
        self._unread_tables = _MAX_TABLES
        self._strings: dict[int, str] = {}

    def tables(self, field: int, known_fields: int) -> Iterator[Table]:
        """Yield the tables of the vector to which an offset field points."""
        start, count = self._vector(field, 4)
        for index in range(count):
            yield self.table(start + 4 * index, known_fields)

    def table(self, field: int, known_fields: int) -> Table:
        """Return the table to which an offset field points."""
        table = self._buffer.table(self._buffer.indirect(field), known_fields)
        self._unread_tables -= 1
        if self._unread_tables < 0:
            raise self._buffer.damage_error(f"more than {_MAX_TABLES:,} tables, which is the limit")
        self._spend(table.layout.table_bytes)
        return table

    def strings(self, field: int) -> Iterator[str]:
        """Yield the strings of the vector to which an offset field points."""
        start, count = self._vector(field, 4)
        for index in range(count):
            yield self.string(start + 4 * index)

    def string(self, field: int) -> str:
        """Return the string to which an offset field points."""
        position = self._buffer.indirect(field)
        if (known := self._strings.get(position)) is not None:
            return known
        raw = self.raw(field)
        try:
            return self._strings.setdefault(position, raw.decode())
        except UnicodeDecodeError as error:
            source = self._buffer.source
            raise FormatError(f"{source}: a string is not valid UTF-8 ({error}); restore the file from a backup") from error

    def raw(self, field: int) -> bytes:
        """Return the bytes to which an offset field points."""
        return self._buffer.take(*self._vector(field, 1))

    def structs(self, field: int, item_bytes: int) -> list[bytes]:
        """Return the structs of the vector to which an offset field points."""
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
            raise self._buffer.damage_error("vectors that are larger than the file in total")
