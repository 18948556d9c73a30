"""Column definitions of published tables, without Arrow, for commands that only need names.

Times are UTC timestamps in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ColumnType(Enum):
    """Column type, mapped to an Arrow type by `arrow_types.py`."""

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
    """Column with its description.

    `since` is the release that added the column. In parts of older releases the column is missing,
    and readers fill it with null.
    """

    name: str
    type: ColumnType
    doc: str
    since: str | None = None


def column(name: str, type_: ColumnType, doc: str, *, since: str | None = None) -> Column:
    """Define a column of a table."""
    return Column(name, type_, doc, since)
