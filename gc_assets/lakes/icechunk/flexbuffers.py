"""Read FlexBuffers maps and strings, and check every position against the size of the buffer.

Format: flatbuffers.dev, "FlexBuffers". The reader in the package `flatbuffers` is not used, because
it accepts positions outside the buffer, and a damaged buffer can keep it busy indefinitely. Lists
and numbers are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gc_assets.core.errors import FormatError

NULL, STRING, MAP = 0, 5, 9
_WIDTHS: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class FlexValue:
    """An element of a FlexBuffers map, or the root value.

    Attributes:
        position: Start of the element.
        width: Size of the element in bytes. The element is a number or the distance to its content.
        type: Type of the content.
        content_width: Size in bytes of the elements in the content.
    """

    position: int
    width: int
    type: int
    content_width: int


class FlexReader:
    """Reads a FlexBuffer in time and memory proportional to its size.

    Content precedes the elements that point to it. In a valid buffer, maps do not overlap, so they
    have fewer elements in total than the buffer has bytes.
    """

    def __init__(self, source: str, data: bytes) -> None:
        self._source = source
        self._data = data
        self._unread_bytes = len(data)

    def root(self) -> FlexValue:
        """Return the root value.

        The last byte of the buffer contains its width, and the byte before contains its type.
        """
        if len(self._data) < 3 or (width := self._data[-1]) not in _WIDTHS:
            raise self.damage_error("no root")
        return self._value(len(self._data) - 2 - width, width, self._data[-2])

    def values(self, value: FlexValue) -> list[FlexValue]:
        """Return the values of a map, ordered by key."""
        start, count = self._map(value)
        width = value.content_width
        types = self._take(start + count * width, count)
        return [self._value(start + number * width, width, packed) for number, packed in enumerate(types)]

    def fields(self, value: FlexValue, *names: str) -> list[FlexValue | None]:
        """Look up keys in a map. The result contains None for each missing key."""
        values = self.values(value)
        start, width = self._keys(value, len(values))
        found: dict[bytes, FlexValue] = {}
        wanted = [name.encode() + b"\0" for name in names]
        for number, element in enumerate(values):
            at = self._target(start + number * width, width)
            for name in wanted:
                if self._data.startswith(name, at):
                    if name in found:
                        raise self.damage_error(f"a map that contains the key {name[:-1].decode()!r} twice")
                    found[name] = element
        return [found.get(name) for name in wanted]

    def text(self, value: FlexValue) -> str:
        """Decode a string value."""
        if value.type != STRING:
            raise self.damage_error(f"a value of type {value.type} instead of a string")
        start = self._target(value.position, value.width)
        raw = self._take(start, self._number(start - value.content_width, value.content_width))
        self._spend(len(raw))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._source}: a string is not valid UTF-8 ({error})") from error

    def damage_error(self, found: str) -> FormatError:
        return FormatError(f"{self._source} ({len(self._data):,} bytes) is damaged: found {found}")

    def _map(self, value: FlexValue) -> tuple[int, int]:
        """Return the position of a map's first element, and the number of elements."""
        if value.type != MAP:
            raise self.damage_error(f"a value of type {value.type} instead of a map")
        start = self._target(value.position, value.width)
        count = self._number(start - value.content_width, value.content_width)
        self._spend(count * (value.content_width + 1))
        return start, count

    def _keys(self, value: FlexValue, count: int) -> tuple[int, int]:
        """Return the position of a map's first key, and the size of each key."""
        width = value.content_width
        start = self._target(value.position, value.width)
        keys_width = self._number(start - 2 * width, width)
        if keys_width not in _WIDTHS:
            raise self.damage_error(f"keys with the invalid width {keys_width}")
        keys = self._target(start - 3 * width, width)
        if self._number(keys - keys_width, keys_width) != count:
            raise self.damage_error("a map with different numbers of keys and values")
        return keys, keys_width

    @staticmethod
    def _value(position: int, width: int, packed: int) -> FlexValue:
        return FlexValue(position, width, packed >> 2, 1 << (packed & 3))

    def _target(self, position: int, width: int) -> int:
        """Return the position to which the element at `position` points."""
        target = position - self._number(position, width)
        if target < 0:
            raise self.damage_error(f"the position {target}, which is outside")
        return target

    def _number(self, position: int, width: int) -> int:
        return int.from_bytes(self._take(position, width), "little")

    def _take(self, position: int, length: int) -> bytes:
        if position < 0 or position + length > len(self._data):
            raise self.damage_error(f"the position {position}, which is outside")
        return self._data[position : position + length]

    def _spend(self, size: int) -> None:
        self._unread_bytes -= size
        if self._unread_bytes < 0:
            raise self.damage_error("maps that are larger than the buffer in total")
