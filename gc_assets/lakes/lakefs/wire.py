"""Parse varints, protobuf fields and strings of many messages at the same time, with numpy.

Format: protobuf.dev, "Encoding", and Go's `encoding/binary`. The functions convert positions in a
buffer to values. Each step processes all messages in one pass. The messages are not interpreted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gc_assets.core.errors import FormatError

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
Numbers = NDArray[np.uint64]

# If the last byte belongs to an unterminated varint, reading continues in the padding. The varint
# is then rejected, because it is too long or exceeds its limit.
PADDING: Final = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes to parse, followed by `PADDING` zeros. `source` is their name in error messages."""

    source: str
    data: Bytes

    @classmethod
    def of(cls, source: str, parts: Collection[bytes]) -> Buffer:
        return cls(source, np.frombuffer(b"".join((*parts, bytes(PADDING))), np.uint8))

    def damage_error(self, what: str) -> FormatError:
        return FormatError(f"{self.source} is damaged: found {what}; restore the object from a backup")

    def check_bounds(self, ends: Positions, limits: Positions, what: str) -> None:
        """Raise `FormatError` if a field or value extends beyond its message or block."""
        if np.any(ends > limits):
            raise self.damage_error(f"{what} that runs past its end")

    def uvarints(self, at: Positions) -> tuple[Numbers, Positions]:
        """Read an unsigned varint at each position. Also returns the positions after them.

        Raises:
            FormatError: If a varint has more than 64 bits.
        """
        first = self.data[at]
        values = (first & 0x7F).astype(np.uint64)
        after = at + 1
        rows = np.flatnonzero(first & 0x80)
        for step in range(1, _LONGEST_VARINT):
            if not len(rows):
                return values, after
            byte = self.data[after[rows]]
            values[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            after[rows] += 1
            rows = rows[(byte & 0x80) != 0]
        if len(rows):
            raise self.damage_error("a varint of more than 10 bytes")
        return values, after

    def lengths(self, at: Positions, limits: Positions, what: str) -> tuple[Positions, Positions]:
        """Read lengths (unsigned varints) within limits, and the positions after them."""
        values, after = self.uvarints(at)
        # Compare as unsigned first, because a length of 2^63 or more would become a negative int64.
        if np.any(values > np.uint64(len(self.data))):
            raise self.damage_error(f"{what} that runs past its end")
        sizes = values.astype(np.int64)
        self.check_bounds(after + sizes, limits, what)
        return sizes, after

    def texts(self, starts: Positions, sizes: Positions) -> pa.BinaryArray:
        """Copy spans of the buffer to a binary array, or raise `FormatError` if they exceed 2 GiB."""
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        if offsets[-1] > np.iinfo(np.int32).max:
            raise self.damage_error(f"{int(offsets[-1]):,} bytes of text, more than the limit of 2 GiB")
        places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], sizes)
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[places])]
        )

    def strings(self, starts: Positions, sizes: Positions, what: str) -> pa.StringArray:
        """Decode spans of the buffer as strings. Raises `FormatError` for invalid UTF-8."""
        return as_utf8(self, self.texts(starts, sizes), what)


def as_utf8(buffer: Buffer, texts: pa.BinaryArray, what: str) -> pa.StringArray:
    """Decode bytes as strings. Raises `FormatError` for invalid UTF-8."""
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise buffer.damage_error(f"{what} that is not UTF-8 ({error})") from error


@dataclass(frozen=True, slots=True)
class Field:
    """All occurrences of a protobuf field in many messages, in order within each message.

    Attributes:
        messages: Number of the message that contains the occurrence.
        values: Value of the field, or the start of its bytes.
        sizes: Length of its bytes.
    """

    messages: Positions
    values: Numbers
    sizes: Positions

    def last(self, count: int) -> tuple[NDArray[np.bool_], Numbers, Positions]:
        """Find the last occurrence of the field in each message, which is the one that counts.

        Returns:
            Whether each message has the field, and the field's value and size in bytes.
        """
        present = np.zeros(count, np.bool_)
        values, sizes = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        present[self.messages], values[self.messages], sizes[self.messages] = True, self.values, self.sizes
        return present, values, sizes

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Return the field's value for each message, as int64.

        A missing field is 0, as protobuf defines.
        """
        return self.last(count)[1].view(np.int64)

    def spans(self, count: int) -> tuple[Positions, Positions]:
        """Return the offset and length of the field's bytes in each message.

        The length of a missing field is 0.
        """
        _, values, sizes = self.last(count)
        return values.view(np.int64), sizes


def scan_messages(buffer: Buffer, starts: Positions, sizes: Positions, wanted: Mapping[int, str]) -> dict[int, Field]:
    """Extract some fields from many protobuf messages. All other fields are skipped.

    Args:
        buffer: Bytes that contain the messages.
        starts: Start of each message.
        sizes: Length of each message.
        wanted: Names by field number: `name` for a varint, `name:bytes` for length-delimited bytes.

    Raises:
        FormatError: If a message contains a group, a field extends beyond its message, or a wanted
            field has another wire type.
    """
    found_fields: dict[int, list[tuple[Positions, Numbers, Positions]]] = {number: [] for number in wanted}
    messages = np.flatnonzero(sizes > 0)
    at, ends = starts[messages], (starts + sizes)[messages]
    while len(messages):
        tags, after = buffer.uvarints(at)
        buffer.check_bounds(after, ends, "a field tag")
        wire = (tags & np.uint64(7)).astype(np.int64)
        values, lengths = np.zeros(len(at), np.uint64), np.zeros(len(at), np.int64)
        is_varint, is_bytes = wire == _VARINT, wire == _BYTES
        if is_varint.any():
            values[is_varint], after[is_varint] = buffer.uvarints(after[is_varint])
        if is_bytes.any():
            lengths[is_bytes], after[is_bytes] = buffer.lengths(after[is_bytes], ends[is_bytes], "a field")
            values[is_bytes] = after[is_bytes].astype(np.uint64)
            after = after + lengths
        fixed = np.where(wire == _FIXED64, 8, np.where(wire == _FIXED32, 4, 0))
        if np.any(~is_varint & ~is_bytes & (fixed == 0)):
            raise buffer.damage_error("a protobuf field of an unknown wire type")
        after = after + fixed
        buffer.check_bounds(after, ends, "a field")
        numbers = tags >> np.uint64(3)
        for number, name in wanted.items():
            mine = numbers == np.uint64(number)
            if mine.any():
                if not np.all((is_bytes if name.endswith(":bytes") else is_varint)[mine]):
                    raise buffer.damage_error(f"the field {name.removesuffix(':bytes')} with another wire type")
                found_fields[number].append((messages[mine], values[mine], lengths[mine]))
        left = after < ends
        messages, at, ends = messages[left], after[left], ends[left]
    return {number: _join_hits(found) for number, found in found_fields.items()}


def _join_hits(found: list[tuple[Positions, Numbers, Positions]]) -> Field:
    if not found:
        return Field(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    messages, values, sizes = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return Field(messages, values, sizes)
