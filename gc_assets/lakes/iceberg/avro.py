"""Read columns of Avro object container files as Arrow tables.

Source: Avro specification 1.11, "Object Container Files". Apache DataFusion decodes large files
without a Python loop. fastavro decodes small files, and files that DataFusion rejects.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa

from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.untrusted_input import decompress_block, max_decompressed_bytes

if TYPE_CHECKING:
    from datafusion import Expr

MAGIC = b"Obj\x01"
# For smaller files, planning a DataFusion query (2 ms) takes longer than decoding with fastavro
# (25-60 µs per entry).
MIN_DATAFUSION_BYTES = 16 * 1024
# DataFusion is ten times faster than this, so only an endless decode exceeds the deadline.
DATAFUSION_SECONDS = 20.0
DATAFUSION_BYTES_PER_SECOND = 5 * 2**20
# Maximum total decompressed size per decoded group.
MAX_GROUP_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Column:
    """Column to read, i.e. the first of `paths` in the file's schema.

    The column is null in Arrow if none of them is in the schema.
    """

    name: str
    paths: tuple[tuple[str, ...], ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Header:
    """Container file metadata, sync marker and first block offset."""

    metadata: dict[bytes, bytes]
    sync: bytes
    first_block: int


def read_columns(raw: bytes, columns: Sequence[Column], expected_rows: int | None) -> pa.Table:
    """Return the columns of every record, in file order.

    DataFusion silently drops a truncated last block, so its result is only used if the row count is
    as expected. Otherwise the file is read with fastavro, which raises an error.

    Args:
        raw: The file.
        columns: The columns to read.
        expected_rows: The number of records, or None to use the counts in the block headers.

    Raises:
        ValueError: If the header or a block is invalid. Avro readers may also raise their own
            errors.
    """
    is_large = len(raw) >= MIN_DATAFUSION_BYTES
    raw, header = _decompress(raw, read_header(raw))
    if is_large:
        rows = count_rows(raw, header) if expected_rows is None else expected_rows
        try:
            table = read_with_datafusion(raw, header, columns)
        except Exception:  # noqa: BLE001 - DataFusion raises plain Exception for any file that it rejects
            return read_with_fastavro(raw, columns)
        if table.num_rows == rows:
            return table
    return read_with_fastavro(raw, columns)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Records from several files with the same schema, in order.

    `indices` holds the position of each file in the input, `counts` its number of records.
    """

    indices: Sequence[int]
    counts: Sequence[int]
    table: pa.Table


def read_groups(raws: Sequence[bytes], columns: Sequence[Column]) -> Iterator[FileGroup]:
    """Yield the columns of every record of many files, grouped by schema.

    DataFusion plans one query per group.

    Raises:
        ValueError: If any file is damaged. DataFusion may also raise its own errors. The error does
            not identify the file, so the caller has to read each file separately.
    """
    by_schema: dict[tuple[bytes, bytes], list[tuple[int, bytes, Header]]] = {}
    size_bytes = 0
    for number, packed in enumerate(raws):
        raw, header = _decompress(packed, read_header(packed))
        size_bytes += len(raw)
        if size_bytes > MAX_GROUP_BYTES:
            raise ValueError(f"{len(raws):,} files decompress to more than {MAX_GROUP_BYTES:,} bytes together")
        schema = header.metadata[b"avro.schema"], header.metadata.get(b"avro.codec", b"null")
        by_schema.setdefault(schema, []).append((number, raw, header))
    for files in by_schema.values():
        first, parts, counts = files[0][2], list[bytes](), list[int]()
        for _, raw, header in files:
            blocks = list(_blocks(raw, header))
            counts.append(sum(count for count, _, _ in blocks))
            for count, begin, end in blocks:
                parts += [_encode_long(count), _encode_long(end - begin), raw[begin:end], first.sync]
        table = read_with_datafusion(b"".join(parts), Header(first.metadata, first.sync, 0), columns)
        if table.num_rows != sum(counts):
            raise ValueError(f"DataFusion read {table.num_rows:,} records of {len(files):,} files, expected {sum(counts):,}")
        yield FileGroup([number for number, _, _ in files], counts, table)


def read_header(raw: bytes) -> Header:
    """Return the header of a container file.

    Raises:
        ValueError: If the magic is wrong or the header is truncated.
    """
    if raw[:4] != MAGIC:
        raise ValueError(f"not an Avro object container file: it starts with {raw[:4]!r}, expected {MAGIC!r}")
    metadata: dict[bytes, bytes] = {}
    at = 4
    while True:
        count, at = _read_long(raw, at)
        if count == 0:
            break
        if count < 0:  # a negative count is followed by the block's size in bytes
            _, at = _read_long(raw, at)
        for _ in range(abs(count)):
            key, at = _read_bytes(raw, at)
            metadata[key], at = _read_bytes(raw, at)
    if len(raw) < at + 16:
        raise ValueError("the Avro header is truncated before its sync marker")
    return Header(metadata, raw[at : at + 16], at + 16)


def count_rows(raw: bytes, header: Header) -> int:
    """Return the number of records according to the block headers.

    Raises:
        ValueError: If a block is truncated or its sync marker is wrong.
    """
    return sum(count for count, _, _ in _blocks(raw, header))


def _blocks(raw: bytes, header: Header) -> Iterator[tuple[int, int, int]]:
    """Yield the number of records of each block, and the start and end offsets of its data."""
    at = header.first_block
    while at < len(raw):
        count, at = _read_long(raw, at)
        size, at = _read_long(raw, at)
        if raw[at + size : at + size + 16] != header.sync or size < 0 or count < 0:
            raise ValueError(f"the Avro block that ends at byte {at + size:,} of {len(raw):,} is truncated or damaged")
        yield count, at, at + size
        at += size + 16


def _decompress(raw: bytes, header: Header) -> tuple[bytes, Header]:
    """Decompress the file within limits, before passing it to an Avro reader.

    Uncompressed and snappy files are returned unchanged, because snappy data grows by a constant
    factor at most. Raises `ValueError` like `count_rows`.
    """
    codec = header.metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec in {"null", "snappy"}:
        return raw, header
    metadata = {key: value for key, value in header.metadata.items() if key != b"avro.codec"}
    start = _encode_header(metadata, header.sync)
    parts, total = [start], 0
    for count, begin, end in _blocks(raw, header):
        block = decompress_block(raw[begin:end], codec)
        total += len(block)
        if total > max_decompressed_bytes(len(raw)):
            raise ValueError(
                f"its blocks decompress to more than {max_decompressed_bytes(len(raw)):,} bytes, too many for a manifest of this length"
            )
        parts += [_encode_long(count), _encode_long(len(block)), block, header.sync]
    return b"".join(parts), Header(metadata, header.sync, len(start))


def _encode_header(metadata: Mapping[bytes, bytes], sync: bytes) -> bytes:
    pairs = b"".join(_encode_long(len(part)) + part for pair in metadata.items() for part in pair)
    return MAGIC + _encode_long(len(metadata)) + pairs + _encode_long(0) + sync


def drop_empty_records(schema: Any) -> Any:
    """Remove fields with an empty record type from the schema, as they have no bytes.

    The `partition` of an unpartitioned table is such a field.
    """
    if isinstance(schema, list):
        return [drop_empty_records(item) for item in schema]
    if isinstance(schema, dict) and schema.get("type") == "record":
        fields = [{**field, "type": drop_empty_records(field["type"])} for field in schema["fields"] if not _is_empty_record(field)]
        return {**schema, "fields": fields}
    return schema


def _is_empty_record(field: dict[str, Any]) -> bool:
    kind = field["type"]
    return isinstance(kind, dict) and kind.get("type") == "record" and not kind["fields"]


def read_with_datafusion(raw: bytes, header: Header, columns: Sequence[Column]) -> pa.Table:
    """Read with DataFusion, or raise `TimeoutError` if it hangs, e.g. 55 on a damaged map block."""
    reader_metadata = {key: value for key, value in header.metadata.items() if key == b"avro.codec"}
    reader_metadata[b"avro.schema"] = json.dumps(drop_empty_records(json.loads(header.metadata[b"avro.schema"]))).encode()
    with tempfile.NamedTemporaryFile(suffix=".avro") as file:  # DataFusion reads from a path only
        file.write(_encode_header(reader_metadata, header.sync))
        file.write(memoryview(raw)[header.first_block :])
        file.flush()
        seconds = DATAFUSION_SECONDS + len(raw) / DATAFUSION_BYTES_PER_SECOND
        return run_with_deadline(seconds, "DataFusion", lambda: _query(file.name, columns))


def _query(path: str, columns: Sequence[Column]) -> pa.Table:
    from datafusion import SessionConfig, SessionContext  # the import takes a third of a second

    frame = SessionContext(SessionConfig().with_target_partitions(1)).read_avro(path)
    schema = frame.schema()
    return (
        frame.select(*(_build_expression(column, schema).alias(column.name) for column in columns))
        .to_arrow_table()
        .cast(_build_schema(columns))
    )


def _build_expression(column: Column, schema: pa.Schema) -> Expr:
    from datafusion import col, lit

    for path in column.paths:
        fields: Any = schema
        for part in path:
            if isinstance(fields, pa.Schema | pa.StructType) and fields.get_field_index(part) >= 0:
                fields = fields.field(part).type
            else:
                break
        else:
            expression = col(f'"{path[0]}"')
            for part in path[1:]:
                expression = expression[part]
            return expression
    return lit(pa.scalar(None, column.type))


def read_with_fastavro(raw: bytes, columns: Sequence[Column]) -> pa.Table:
    records = list(cast("Iterator[dict[str, Any]]", fastavro.reader(io.BytesIO(raw))))
    arrays = [pa.array(_column_values(records, column), column.type, size=len(records)) for column in columns]
    return pa.Table.from_arrays(arrays, schema=_build_schema(columns))


def _column_values(records: list[dict[str, Any]], column: Column) -> list[Any]:
    for path in column.paths:
        values: list[Any] = records
        for part in path:
            if not values or part not in values[0]:  # every record has every field of the schema
                break
            values = [value[part] for value in values]
        else:
            return values
    return [None] * len(records)


def _build_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(raw, at)
    if length < 0 or at + length > len(raw):
        raise ValueError("the Avro header is truncated")
    return raw[at : at + length], at + length


def _read_long(raw: bytes, at: int) -> tuple[int, int]:
    """Return a zig-zag varint and the position after it."""
    shift = value = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError(f"no Avro integer ends at byte {at:,}: the file is truncated or damaged")


def _encode_long(value: int) -> bytes:
    """Return a non-negative integer as a zig-zag varint."""
    value <<= 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*encoded, value])
