"""Define columns of published tables without importing Arrow.

This keeps commands that only need the names of columns fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ColumnType(Enum):
    """The type of a column. `arrow_types.py` maps it to an Arrow type."""

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

    Attributes:
        since: The release that added the column, or None if it has always existed. Parts written by
            earlier releases lack the column, and readers fill it with null.
    """

    name: str
    type: ColumnType
    doc: str
    since: str | None = None


def column(name: str, type_: ColumnType, doc: str, *, since: str | None = None) -> Column:
    """Define a column of a table."""
    return Column(name, type_, doc, since)
