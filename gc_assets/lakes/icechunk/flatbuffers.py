"""A reader of FlatBuffers tables that verifies each offset against the size of the buffer.

Format: flatbuffers.dev, "FlatBuffer Internals". The module reads the few scalar fields of a file
and contains no schema. Callers read rows with numpy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gc_assets.core.errors import FormatError

_U16, _U32, _I32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<Q")
ABSENT = 0


@dataclass(frozen=True, slots=True)
class VTable:
    """Layout of a table.

    `fields[i]` is the distance of field i from the start of the table, or `ABSENT` for the default
    value.
    """

    fields: tuple[int, ...]
    table_bytes: int


@dataclass(frozen=True, slots=True)
class FlatBuffer:
    """A buffer, and its name in errors."""

    source: str
    data: bytes

    def root(self, known_fields: int) -> Table:
        return self.table(self._number(_U32, 0), known_fields)

    def table(self, position: int, known_fields: int) -> Table:
        vtable = position - self._number(_I32, position)
        return Table(self, position, self.vtable(vtable, position, known_fields))

    def vtable(self, at: int, table: int, known_fields: int) -> VTable:
        """Return the layout at `at` for tables up to position `table`.

        Raises:
            FormatError: If the table has a field that the schema does not have. It may name objects,
                which would look like garbage.
        """
        size, table_bytes = self._number(_U16, at), self._number(_U16, at + 2)
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
        """Return the start and the number of items of the vector of the field at position `field`."""
        at = field + self._number(_U32, field)
        count = self._number(_U32, at)
        if at + 4 + count * item_bytes > len(self.data):
            raise self.damage_error(f"a vector of {count:,} items at byte {at} that runs past the end")
        return at + 4, count

    def indirect(self, position: int) -> int:
        """Return the target of the offset that is stored at `position`."""
        return position + self._number(_U32, position)

    def unsigned64(self, position: int) -> int:
        return self._number(_U64, position)

    def take(self, position: int, length: int) -> bytes:
        if position < 0 or position + length > len(self.data):
            raise self.damage_error(f"an offset to byte {position}")
        return self.data[position : position + length]

    def damage_error(self, found: str) -> FormatError:
        size = f"{len(self.data):,} bytes"
        return FormatError(f"{self.source}: expected a valid payload of {size}, found {found}; restore the file from a backup")

    def _number(self, layout: struct.Struct, position: int) -> int:
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
