"""Convert column definitions to Arrow types and schemas."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from gc_assets.state.columns import Column, ColumnType

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STRING: Final = pa.string()
LONG: Final = pa.int64()
BOOL: Final = pa.bool_()
STRINGS: Final = pa.list_(pa.field("element", STRING))
CONTENT_ROOT: Final = pa.struct(
    [
        pa.field("address", STRING, nullable=False),
        pa.field("kind", STRING, nullable=False),
        pa.field("is_container", BOOL, nullable=False),
        pa.field("size_bytes", LONG),
        pa.field("must_exist", BOOL, nullable=False),
        pa.field("storage", STRING),
        pa.field("key", STRING),
    ]
)
_ARROW: Final[dict[ColumnType, pa.DataType]] = {
    ColumnType.STRING: STRING,
    ColumnType.BINARY: pa.binary(),
    ColumnType.LONG: LONG,
    ColumnType.INT: pa.int32(),
    ColumnType.BOOL: BOOL,
    ColumnType.DATE: pa.date32(),
    ColumnType.TIMESTAMP: TIMESTAMP,
    ColumnType.STRINGS: STRINGS,
    ColumnType.PROPERTIES: pa.map_(STRING, STRING),
    ColumnType.CONTENT_ROOTS: pa.list_(pa.field("element", CONTENT_ROOT)),
}
_SINCE: Final = "since"


def schema_of(*columns: Column) -> pa.Schema:
    """Build an Arrow schema. The metadata of a field contains its description and release."""
    return pa.schema([_field(column) for column in columns])


def is_added_column(field: pa.Field) -> bool:
    """Return True if parts written by older releases may lack the column."""
    return _SINCE.encode() in (field.metadata or {})


def _field(column: Column) -> pa.Field:
    since = {_SINCE: column.since} if column.since else {}
    return pa.field(column.name, _ARROW[column.type], metadata={"doc": column.doc} | since)
