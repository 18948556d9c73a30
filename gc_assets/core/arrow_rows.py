"""Build rows of Arrow tables, replace columns, and exclude or aggregate rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_row(item: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass as a row.

    Values are not copied, so this takes a tenth of the time of `dataclasses.asdict`.
    """
    return {field.name: getattr(item, field.name) for field in fields(item)}


def replace_columns(rows: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Replace columns of a table, but keep their positions and types."""
    for name, column in columns.items():
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column.cast(field.type))
    return rows


def exclude_rows(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return a table without the rows that a mask selects. If it selects none, nothing is copied."""
    return rows.filter(pc.invert(mask)) if pc.any(mask).as_py() else rows


def aggregate_rows(rows: pa.Table, by: str | Sequence[str], how: Mapping[str, str]) -> pa.Table:
    """Group the rows of a table and aggregate columns, which keep their names.

    Args:
        by: The columns to group by.
        how: The Arrow aggregation function for each column, such as `max`.
    """
    grouped = rows.group_by(by if isinstance(by, str) else list(by)).aggregate(list(how.items()))
    names = {f"{name}_{function}": name for name, function in how.items()}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
