"""Read the CSV, Parquet and ORC files of inventory reports, and convert their columns.

All columns of a CSV file are read as bytes, and null is an empty string. Columns of the other
formats have types.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import orc

from gc_assets.core.errors import FormatError
from gc_assets.stores.inventories.report import TIMESTAMP, Format

_BATCH_ROWS: Final = 65_536
_BLOCK_BYTES: Final = 4 * 2**20
_GZIP: Final = b"\x1f\x8b"


def read_batches(path: str, file_format: Format, columns: Sequence[str] | None, needed: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Read a file in batches.

    Args:
        path: The path of the local file.
        file_format: The format of the file.
        columns: The names of all columns, if the file is a CSV without a header.
        needed: The columns to read. Those that the file does not have are ignored.

    Raises:
        pa.ArrowException: If the file does not have the expected format.
    """
    if file_format == "csv":
        yield from _read_csv(path, columns, needed)
    elif file_format == "parquet":
        with pq.ParquetFile(path) as source:
            yield from source.iter_batches(_BATCH_ROWS, columns=_select_present(source.schema_arrow.names, needed))
    else:
        source = orc.ORCFile(path)
        for number in range(source.nstripes):
            stripe = source.read_stripe(number, _select_present(source.schema.names, needed))
            yield from (stripe.slice(start, _BATCH_ROWS) for start in range(0, stripe.num_rows, _BATCH_ROWS))


def _select_present(names: Sequence[str], needed: Collection[str]) -> list[str]:
    return [name for name in names if name in needed]


def _read_csv(path: str, columns: Sequence[str] | None, needed: Collection[str]) -> Iterator[pa.RecordBatch]:
    with Path(path).open("rb") as raw:
        compression = "gzip" if raw.read(2) == _GZIP else None
    with pa.input_stream(path, compression=compression) as stream:
        if not stream.read(1):
            return
    names = columns if columns is not None else _read_csv_header(path, compression)
    with pa.input_stream(path, compression=compression) as stream:
        reader = pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(column_names=list(names), skip_rows=0 if columns is not None else 1, block_size=_BLOCK_BYTES),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                include_columns=_select_present(names, needed),
            ),
        )
        yield from reader


def _read_csv_header(path: str, compression: str | None) -> list[str]:
    with pa.input_stream(path, compression=compression) as stream:
        first = stream.read(_BLOCK_BYTES).split(b"\n", 1)[0]
    try:
        names = next(csv.reader([first.decode("utf-8-sig").rstrip("\r")]), [])
    except (csv.Error, UnicodeDecodeError):
        names = []
    if not names:
        raise FormatError(f"the first line is {first[:80]!r}, expected column names")
    return names


def get_column(rows: pa.RecordBatch, *names: str) -> pa.Array:
    """Return the first of several columns that exists in the rows.

    Raises:
        FormatError: If none of the columns exists.
    """
    for name in names:
        if name in rows.schema.names:
            return rows.column(name)
    raise FormatError(f"there is no column {' or '.join(names)}, only {', '.join(rows.schema.names)}; include it in the report")


def get_optional_column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


def to_binary(values: pa.Array) -> pa.Array:
    return values.cast(pa.binary())


def strip_prefix(keys: pa.Array, prefix: bytes) -> pa.Array:
    """Remove a prefix that all keys have."""
    # `binary_slice` without an end raises an error for short arrays in pyarrow 26.
    return pc.binary_replace_slice(keys, 0, len(prefix), b"")


def to_text(values: pa.Array | None, rows: int) -> pa.Array:
    """Convert a column to strings. All rows are null if the column does not exist."""
    return pa.nulls(rows, pa.string()) if values is None else values.cast(pa.string())


def to_sizes(values: pa.Array) -> pa.Array:
    return _bytes_to_text(values).cast(pa.int64())


def to_timestamps(values: pa.Array) -> pa.Array:
    """Convert a column to times in UTC.

    Timestamps without a time zone are assumed to be UTC. Strings must contain a time zone.
    """
    found = _bytes_to_text(values)
    if pa.types.is_timestamp(found.type) and found.type.tz is None:
        found = found.cast(pa.timestamp(found.type.unit, tz="UTC"))
    elif not pa.types.is_timestamp(found.type) and not _is_text_type(found.type):
        raise FormatError(f"times have the type {found.type}, expected timestamps or ISO 8601")
    return found.cast(TIMESTAMP, safe=False)


def to_booleans(values: pa.Array | None, rows: int) -> pa.Array:
    """Convert a column to booleans, either from booleans or from the strings `true` and `false`.

    All rows are null if the column does not exist.
    """
    if values is None:
        return pa.nulls(rows, pa.bool_())
    found = _bytes_to_text(values)
    if not _is_text_type(found.type):
        return found.cast(pa.bool_())
    lowered = pc.utf8_lower(found)
    unknown = pc.filter(lowered, pc.invert(pc.is_in(lowered, pa.array(["true", "false", None], lowered.type))))
    if len(unknown):
        raise FormatError(f"a boolean column contains {unknown[0].as_py()!r}, expected true or false")
    return pc.equal(lowered, "true")


def _bytes_to_text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()) if pa.types.is_binary(values.type) else values


def _is_text_type(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
