"""Columns of the published tables, without Arrow, for commands that only need names and receipts.

Times are UTC timestamps in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ColumnType(Enum):
    """Type of a column. `arrow_types.py` maps it to an Arrow type."""

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
    """A column and its description.

    `since` is the release that added it. In parts of older releases the column is null.
    """

    name: str
    type: ColumnType
    doc: str
    since: str | None = None


def column(name: str, type_: ColumnType, doc: str, *, since: str | None = None) -> Column:
    """Return a column with its description."""
    return Column(name, type_, doc, since)
