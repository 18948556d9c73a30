"""Lays rows out in columns of a given width. Pure: takes texts, returns lines.

A word is never broken. A column of texts wraps between words, and a word that is longer than its
column, such as a key, is shortened in the middle. Numbers and times stay whole. Columns that do not
fit beside the others stand below their row, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

ELLIPSIS: Final = "…"
_GAP: Final = "  "
_INDENT: Final = "    "
# A column of prose that is narrower is hard to read; a shortened key needs so much to be told apart.
_MIN_PROSE: Final = 40
_MIN_WORD: Final = 32


@dataclass(frozen=True, slots=True)
class Column:
    """The texts of a column. A `rigid` one is never wrapped nor shortened. Numbers are rigid, and
    stand to the `right`.
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


def lines(columns: Sequence[Column], width: int | None, paint: Paint = _plain) -> Iterator[str]:
    """Yields the header, a rule and the rows, none wider than `width` where one is given.

    `paint` is given a column's name and each line of its cells, and returns what to write. It adds no
    width.
    """
    if not columns:
        return
    beside = _visible_columns(columns, width)
    widths = _widths(beside, width)
    below = columns[len(beside) :]
    yield _GAP.join(_pad(column, column.name, wide) for column, wide in zip(beside, widths, strict=True)).rstrip()
    yield _GAP.join("─" * wide for wide in widths)
    for row in range(len(columns[0].cells)):
        wrapped = [_wrap_cell(column, column.cells[row], wide) for column, wide in zip(beside, widths, strict=True)]
        for number in range(max(map(len, wrapped))):
            texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
            parts = zip(beside, texts, widths, strict=True)
            yield _GAP.join(_pad(column, text, wide, paint) for column, text, wide in parts).rstrip()
        yield from _extra_lines([(column.name, column.cells[row]) for column in below if column.cells[row]], width or 0)


def shorten(word: str, width: int) -> str:
    """Returns the word, or its beginning and its end where it is wider than `width`."""
    if cell_len(word) <= width:
        return word
    head = set_cell_size(word, width // 2).rstrip()
    tail = word
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return head + ELLIPSIS + tail


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Returns the text in lines that break between words only. Lines behind the first are indented
    as the text is, and by `indent` more. A word wider than the line has one of its own.
    """
    if cell_len(text) <= width:
        return [text]
    inside = text.lstrip(" ")
    margin = text[: len(text) - len(inside)]
    first, *others = inside.split(" ")
    found, line = list[str](), margin + first
    for word in others:
        if cell_len(f"{line} {word}") > width:
            found.append(line.rstrip())
            line = margin + indent + word
        else:
            line = f"{line} {word}"
    return [*found, line.rstrip()]


def _visible_columns(columns: Sequence[Column], width: int | None) -> Sequence[Column]:
    if width is None:
        return columns
    used = -len(_GAP)
    for number, column in enumerate(columns):
        used += len(_GAP) + column.min_width
        if used > width and number:
            return columns[:number]
    return columns


def _widths(columns: Sequence[Column], width: int | None) -> list[int]:
    """Returns the columns' widths: what each needs, and of what is left each that wants more gets an
    equal part.
    """
    if width is None:
        return [column.full_width for column in columns]
    found = [column.min_width for column in columns]
    left = width - sum(found) - len(_GAP) * (len(columns) - 1)
    while left > 0 and (wanting := [place for place, column in enumerate(columns) if found[place] < column.full_width]):
        share = max(1, left // len(wanting))
        for place in wanting:
            more = min(share, columns[place].full_width - found[place], left)
            found[place] += more
            left -= more
    return found


def _pad(column: Column, text: str, width: int, paint: Paint = _plain) -> str:
    space, painted = " " * (width - cell_len(text)), paint(column.name, text)
    return space + painted if column.right else painted + space


def _wrap_cell(column: Column, text: str, width: int) -> list[str]:
    if column.rigid or cell_len(text) <= width:
        return [text]
    return wrap(" ".join(shorten(word, width) for word in text.split(" ")), width)


def _extra_lines(summary: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yields the facts by name, as many on a line as fit, and a long one on lines of its own."""
    inner, line = width - len(_INDENT), ""
    for name, text in summary:
        words = (shorten(word, max(inner - len(_GAP), _MIN_WORD)) for word in text.split(" "))
        fact = f"{name}: {' '.join(words)}"
        if line and cell_len(line + _GAP + fact) <= inner:
            line += _GAP + fact
            continue
        if line:
            yield _INDENT + line
        *whole, line = wrap(fact, inner, _GAP)
        yield from (_INDENT + part for part in whole)
    if line:
        yield _INDENT + line
