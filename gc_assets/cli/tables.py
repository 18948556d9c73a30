"""Layout of tables for a given width, without any I/O.

Text wraps between words. A single word that is too long for its column, such as a key, is shortened
in the middle, while numbers and times are always printed in full. If not all columns fit, the
values of the last ones are printed under their row. A value that all rows share is printed only
once, under the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

from gc_assets.core.printable import ELLIPSIS

_GAP: Final = "  "
_COMMAND: Final = "gc-assets "
_INDENT: Final = "    "
# Narrower prose is hard to read, and shorter keys are hard to tell apart.
_MIN_PROSE: Final = 40
_MIN_WORD: Final = 32


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A table column.

    Attributes:
        name: The heading.
        cells: One string for each row.
        rigid: Never wrap or shorten the cells.
        right: Align the cells to the right.
    """

    name: str
    cells: Sequence[str]
    rigid: bool = False
    right: bool = False

    @property
    def full_width(self) -> int:
        return max(map(cell_len, (self.name, *self.cells)), default=0)

    @property
    def min_width(self) -> int:
        if self.rigid:
            return self.full_width
        is_prose = any(" " in text for text in self.cells)
        return max(cell_len(self.name), min(self.full_width, _MIN_PROSE if is_prose else _MIN_WORD))


Paint = Callable[[str, str], str]


def _plain(_: str, text: str) -> str:
    return text


def lines(columns: Sequence[TextColumn], width: int | None, paint: Paint = _plain) -> Iterator[str]:
    """Render the table, line by line: the headings, a ruler, then the rows.

    Args:
        columns: The columns, most important first.
        width: The maximum width of a line, or None for no limit.
        paint: Called with the column name and one line of a cell to add colours. The visible width
            must not change.
    """
    if not columns:
        return
    visible = _visible_columns(columns, width)
    widths = _widths(visible, width)
    others = columns[len(visible) :]
    shared = [column for column in others if len(column.cells) > 1 and set(column.cells) == {column.cells[0]} and column.cells[0]]
    extra = [column for column in others if column not in shared]
    yield _GAP.join(_pad(column, column.name, wide) for column, wide in zip(visible, widths, strict=True)).rstrip()
    yield _GAP.join("─" * wide for wide in widths)
    for row in range(len(columns[0].cells)):
        yield from _row_lines(visible, widths, row, paint)
        yield from _extra_lines([(column.name, column.cells[row]) for column in extra if column.cells[row]], width or 0)
    if shared:
        yield "In all rows:"
        yield from _extra_lines([(column.name, column.cells[0]) for column in shared], width or 0)


def _row_lines(columns: Sequence[TextColumn], widths: Sequence[int], row: int, paint: Paint) -> Iterator[str]:
    wrapped = [_wrap_cell(column, column.cells[row], wide) for column, wide in zip(columns, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        parts = zip(columns, texts, widths, strict=True)
        yield _GAP.join(_pad(column, text, wide, paint) for column, text, wide in parts).rstrip()


def shorten(word: str, width: int) -> str:
    """Shorten a word that is wider than `width` to its beginning and end."""
    if cell_len(word) <= width:
        return word
    head = set_cell_size(word, width // 2).rstrip()
    tail = word
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return head + ELLIPSIS + tail


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text between words.

    A word that is wider than the line gets a line of its own. Commands are not broken either,
    whether they fill the line or are in backticks, so that they can be copied.

    Args:
        text: The text. Its indentation is repeated on every line.
        width: The maximum width of a line.
        indent: Additional indentation for all lines except the first.
    """
    inside = text.lstrip(" ")
    if cell_len(text) <= width or inside.startswith(_COMMAND):
        return [text]
    margin = text[: len(text) - len(inside)]
    first, *others = _split_text(inside)
    found, line = list[str](), margin + first
    for word in others:
        if cell_len(f"{line} {word}") > width:
            found.append(line.rstrip())
            line = margin + indent + word
        else:
            line = f"{line} {word}"
    return [*found, line.rstrip()]


def _split_text(text: str) -> list[str]:
    """Split a text at spaces, but keep commands in backticks together."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick
        return text.split(" ")
    pieces = [""]
    for number, part in enumerate(parts):
        is_quoted = number % 2 == 1
        first, *others = [part] if is_quoted and part.startswith(_COMMAND) else part.split(" ")
        pieces[-1] += f"`{first}" if is_quoted else first
        pieces += others
        pieces[-1] += "`" if is_quoted else ""
    return pieces


def _visible_columns(columns: Sequence[TextColumn], width: int | None) -> Sequence[TextColumn]:
    if width is None:
        return columns
    used = -len(_GAP)
    for number, column in enumerate(columns):
        used += len(_GAP) + column.min_width
        if used > width and number:
            return columns[:number]
    return columns


def _widths(columns: Sequence[TextColumn], width: int | None) -> list[int]:
    """Compute the column widths.

    Width that remains after the minimum widths is shared equally by the columns that need more.
    """
    if width is None:
        return [column.full_width for column in columns]
    found = [column.min_width for column in columns]
    remaining = width - sum(found) - len(_GAP) * (len(columns) - 1)
    while remaining > 0 and (growing := [index for index, column in enumerate(columns) if found[index] < column.full_width]):
        share = max(1, remaining // len(growing))
        for index in growing:
            more = min(share, columns[index].full_width - found[index], remaining)
            found[index] += more
            remaining -= more
    return found


def _pad(column: TextColumn, text: str, width: int, paint: Paint = _plain) -> str:
    space, painted = " " * (width - cell_len(text)), paint(column.name, text)
    return space + painted if column.right else painted + space


def _wrap_cell(column: TextColumn, text: str, width: int) -> list[str]:
    if column.rigid or cell_len(text) <= width:
        return [text]
    return wrap(" ".join(shorten(word, width) for word in text.split(" ")), width)


def _extra_lines(summary: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Format values that have no column, as `name: value`.

    Short values share a line.
    """
    inner, line = width - len(_INDENT), ""
    for name, text in summary:
        short = (shorten(word, max(inner - len(_GAP), _MIN_WORD)) for word in text.split(" "))
        entry = f"{name}: {' '.join(short)}"
        if line and cell_len(line + _GAP + entry) <= inner:
            line += _GAP + entry
            continue
        if line:
            yield _INDENT + line
        *full, line = wrap(entry, inner, _GAP)
        yield from (_INDENT + part for part in full)
    if line:
        yield _INDENT + line
