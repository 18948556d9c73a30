"""Columns of the published tables, as values that need no Arrow: a command that only asks for names
and receipts does not load it.

Times are UTC timestamps in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ColumnType(Enum):
    """The type of a column. `arrow_types.py` says which type of Arrow's each one is."""

    STRING = "string"
    BINARY = "binary"
    LONG = "long"
    INT = "int"
    BOOL = "bool"
    DATE = "date"
    TIMESTAMP = "timestamp"
    STRINGS = "strings"
    PROPERTIES = "properties"
    CONTENT_ROOTS = "content_roots"


STRING: Final = ColumnType.STRING
BINARY: Final = ColumnType.BINARY
LONG: Final = ColumnType.LONG
INT: Final = ColumnType.INT
BOOL: Final = ColumnType.BOOL
DATE: Final = ColumnType.DATE
TIMESTAMP: Final = ColumnType.TIMESTAMP
STRINGS: Final = ColumnType.STRINGS
PROPERTIES: Final = ColumnType.PROPERTIES
CONTENT_ROOTS: Final = ColumnType.CONTENT_ROOTS


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its sentence.

    `since` is the release that added the column. In parts of older releases the column is null.
    """

    name: str
    type: ColumnType
    doc: str
    since: str | None = None


def column(name: str, type_: ColumnType, doc: str, *, since: str | None = None) -> Column:
    """Return a column with its sentence."""
    return Column(name, type_, doc, since)
