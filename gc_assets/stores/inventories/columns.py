"""Reads files of reports batch by batch, and their columns in whatever types they come.

CSV comes with every column as bytes, Parquet and ORC with types of their own. Empty text in a CSV
is null.
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


def batches(path: str, file_format: Format, columns: Sequence[str] | None, wanted: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file, with those of its columns that are wanted. `columns` names all
    columns of a CSV without header.

    Raises `pa.ArrowException` where the file is not of its format.
    """
    if file_format == "csv":
        yield from _csv(path, columns, wanted)
    elif file_format == "parquet":
        with pq.ParquetFile(path) as source:
            yield from source.iter_batches(_BATCH_ROWS, columns=_present(source.schema_arrow.names, wanted))
    else:
        source = orc.ORCFile(path)
        for number in range(source.nstripes):
            stripe = source.read_stripe(number, _present(source.schema.names, wanted))
            yield from (stripe.slice(start, _BATCH_ROWS) for start in range(0, stripe.num_rows, _BATCH_ROWS))


def _present(names: Sequence[str], wanted: Collection[str]) -> list[str]:
    return [name for name in names if name in wanted]


def _csv(path: str, columns: Sequence[str] | None, wanted: Collection[str]) -> Iterator[pa.RecordBatch]:
    with Path(path).open("rb") as raw:
        compression = "gzip" if raw.read(2) == _GZIP else None
    with pa.input_stream(path, compression=compression) as stream:
        if not stream.read(1):
            return
    names = columns if columns is not None else _header(path, compression)
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
                include_columns=_present(names, wanted),
            ),
        )
        yield from reader


def _header(path: str, compression: str | None) -> list[str]:
    with pa.input_stream(path, compression=compression) as stream:
        first = stream.read(_BLOCK_BYTES).split(b"\n", 1)[0]
    try:
        names = next(csv.reader([first.decode("utf-8-sig").rstrip("\r")]), [])
    except (csv.Error, UnicodeDecodeError):
        names = []
    if not names:
        raise FormatError(f"its first line is {first[:80]!r}, expected the names of its columns")
    return names


def column(rows: pa.RecordBatch, *names: str) -> pa.Array:
    """Returns the first of these columns that there is. Raises `FormatError` where there is none."""
    for name in names:
        if name in rows.schema.names:
            return rows.column(name)
    raise FormatError(f"it has no column {' or '.join(names)}, only {', '.join(rows.schema.names)}; let the report include it")


def optional(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


def binary(values: pa.Array) -> pa.Array:
    return values.cast(pa.binary())


def without(keys: pa.Array, prefix: bytes) -> pa.Array:
    """Returns keys without the prefix that all of them have."""
    # pyarrow 26 raises where `binary_slice` is to go to the end of a short array.
    return pc.binary_replace_slice(keys, 0, len(prefix), b"")


def text(values: pa.Array | None, rows: int) -> pa.Array:
    """Returns text; nulls for a column that is not there."""
    return pa.nulls(rows, pa.string()) if values is None else values.cast(pa.string())


def sizes(values: pa.Array) -> pa.Array:
    return _words(values).cast(pa.int64())


def moments(values: pa.Array) -> pa.Array:
    """Returns UTC times. Times without a zone are UTC; text must name its zone."""
    found = _words(values)
    if pa.types.is_timestamp(found.type) and found.type.tz is None:
        found = found.cast(pa.timestamp(found.type.unit, tz="UTC"))
    elif not pa.types.is_timestamp(found.type) and not _is_text(found.type):
        raise FormatError(f"its times are of type {found.type}, expected timestamps or ISO 8601")
    return found.cast(TIMESTAMP, safe=False)


def flags(values: pa.Array | None, rows: int) -> pa.Array:
    """Returns yes or no, from booleans or the words `true` and `false`; nulls for a column that is
    not there.
    """
    if values is None:
        return pa.nulls(rows, pa.bool_())
    found = _words(values)
    if not _is_text(found.type):
        return found.cast(pa.bool_())
    word = pc.utf8_lower(found)
    unknown = pc.filter(word, pc.invert(pc.is_in(word, pa.array(["true", "false", None], word.type))))
    if len(unknown):
        raise FormatError(f"a column of yes and no says {unknown[0].as_py()!r}, expected true or false")
    return pc.equal(word, "true")


def _words(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()) if pa.types.is_binary(values.type) else values


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
