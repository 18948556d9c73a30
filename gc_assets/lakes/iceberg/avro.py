"""Columns out of an Avro object container file, as Arrow, fast for large files and cheap for tiny
ones.

Knows Avro (specification 1.11, "Object Container Files") and nothing of manifests. Large files go
through Apache DataFusion's reader, which decodes into Arrow without a Python loop; fastavro reads
the tiny ones and whatever DataFusion refuses.
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

from gc_assets.core.bounded import bound_of, inflated
from gc_assets.core.deadline import within

if TYPE_CHECKING:
    from datafusion import Expr

MAGIC = b"Obj\x01"
# Below this, planning a DataFusion query (2 ms) costs more than fastavro's whole decode (25-60 µs
# an entry).
DATAFUSION_FROM_BYTES = 16 * 1024
# It decodes ten times as much, so only what never ends takes longer.
DATAFUSION_SECONDS = 20.0
DATAFUSION_BYTES_PER_SECOND = 5 * 2**20
# Files that inflate to more than this are not held at the same time.
TOGETHER_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read. It is the first of `paths` that the file's schema has, and null throughout
    where the schema has none of them.
    """

    name: str
    paths: tuple[tuple[str, ...], ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Header:
    """A container file's metadata, its sync marker, and where its first block starts."""

    metadata: dict[bytes, bytes]
    sync: bytes
    blocks_at: int


def read_columns(raw: bytes, columns: Sequence[Column], expected_rows: int | None) -> pa.Table:
    """Returns the columns of every record, in the file's order. Raises `ValueError` or the readers'
    own errors on bytes that are not Avro.

    DataFusion silently drops a truncated last block. Its result therefore stands only where its row
    count is the expected one (where nobody expects one: the sum of the block headers). Otherwise
    fastavro decides, which raises on such a block.
    """
    is_large = len(raw) >= DATAFUSION_FROM_BYTES
    raw, header = _unpacked(raw, read_header(raw))
    if is_large:
        rows = count_rows(raw, header) if expected_rows is None else expected_rows
        try:
            table = _with_datafusion(raw, header, columns)
        except Exception:  # noqa: BLE001 - DataFusion raises plain Exception for any file it refuses; fastavro then decides
            return _with_fastavro(raw, columns)
        if table.num_rows == rows:
            return table
    return _with_fastavro(raw, columns)


@dataclass(frozen=True, slots=True)
class Together:
    """The records of several files of one schema, in order. `counts` tells how many each has, and
    `numbers` which file it is.
    """

    numbers: Sequence[int]
    counts: Sequence[int]
    table: pa.Table


def read_together(raws: Sequence[bytes], columns: Sequence[Column]) -> Iterator[Together]:
    """Yields the columns of every record of many files, those of one schema together: DataFusion
    plans one query for them.

    Raises `ValueError` or DataFusion's own errors where any of the files is damaged, or refused.
    Then nobody knows which one it was, and each has to be read by itself.
    """
    alike: dict[tuple[bytes, bytes], list[tuple[int, bytes, Header]]] = {}
    size_bytes = 0
    for number, packed in enumerate(raws):
        raw, header = _unpacked(packed, read_header(packed))
        size_bytes += len(raw)
        if size_bytes > TOGETHER_BYTES:
            raise ValueError(f"{len(raws):,} files inflate to more than {TOGETHER_BYTES:,} bytes together")
        schema = header.metadata[b"avro.schema"], header.metadata.get(b"avro.codec", b"null")
        alike.setdefault(schema, []).append((number, raw, header))
    for files in alike.values():
        first, parts, counts = files[0][2], list[bytes](), list[int]()
        for _, raw, header in files:
            blocks = list(_blocks(raw, header))
            counts.append(sum(count for count, _, _ in blocks))
            for count, begin, end in blocks:
                parts += [_long(count), _long(end - begin), raw[begin:end], first.sync]
        table = _with_datafusion(b"".join(parts), Header(first.metadata, first.sync, 0), columns)
        if table.num_rows != sum(counts):
            raise ValueError(f"DataFusion read {table.num_rows:,} records of {len(files):,} files, their blocks promise {sum(counts):,}")
        yield Together([number for number, _, _ in files], counts, table)


def read_header(raw: bytes) -> Header:
    """Returns the header of a container file. Raises `ValueError` where the magic is wrong or the
    header is cut off.
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
        raise ValueError("the Avro header is cut off before its sync marker")
    return Header(metadata, raw[at : at + 16], at + 16)


def count_rows(raw: bytes, header: Header) -> int:
    """Returns the number of records by the block headers. Raises `ValueError` where a block is cut
    off or its sync marker is wrong.
    """
    return sum(count for count, _, _ in _blocks(raw, header))


def _blocks(raw: bytes, header: Header) -> Iterator[tuple[int, int, int]]:
    """Yields of each block the number of records, and where its data begin and end."""
    at = header.blocks_at
    while at < len(raw):
        count, at = _read_long(raw, at)
        size, at = _read_long(raw, at)
        if raw[at + size : at + size + 16] != header.sync or size < 0 or count < 0:
            raise ValueError(f"the Avro block ending at byte {at + size:,} of {len(raw):,} is cut off or damaged")
        yield count, at, at + size
        at += size + 16


def _unpacked(raw: bytes, header: Header) -> tuple[bytes, Header]:
    """Returns the file without compression, so that no reader inflates a block beyond any bound.

    A file that is not compressed stays as it is, and one of snappy: that grows by a constant factor
    at most. Raises `ValueError` as `count_rows` does.
    """
    codec = header.metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec in {"null", "snappy"}:
        return raw, header
    metadata = {key: value for key, value in header.metadata.items() if key != b"avro.codec"}
    start = _header(metadata, header.sync)
    parts, total = [start], 0
    for count, begin, end in _blocks(raw, header):
        block = inflated(raw[begin:end], codec)
        total += len(block)
        if total > bound_of(len(raw)):
            raise ValueError(f"its blocks inflate to more than {bound_of(len(raw)):,} bytes, which no manifest of this length does")
        parts += [_long(count), _long(len(block)), block, header.sync]
    return b"".join(parts), Header(metadata, header.sync, len(start))


def _header(metadata: Mapping[bytes, bytes], sync: bytes) -> bytes:
    pairs = b"".join(_long(len(part)) + part for pair in metadata.items() for part in pair)
    return MAGIC + _long(len(metadata)) + pairs + _long(0) + sync


def without_empty_records(schema: Any) -> Any:
    """Returns the schema without fields of an empty record type, which occupy no bytes in the data
    (an unpartitioned table's `partition`).
    """
    if isinstance(schema, list):
        return [without_empty_records(item) for item in schema]
    if isinstance(schema, dict) and schema.get("type") == "record":
        fields = [{**field, "type": without_empty_records(field["type"])} for field in schema["fields"] if not _is_empty_record(field)]
        return {**schema, "fields": fields}
    return schema


def _is_empty_record(field: dict[str, Any]) -> bool:
    kind = field["type"]
    return isinstance(kind, dict) and kind.get("type") == "record" and not kind["fields"]


def _with_datafusion(raw: bytes, header: Header, columns: Sequence[Column]) -> pa.Table:
    """Raises `TimeoutError` where DataFusion comes to no end, as version 55 does over a damaged block
    of a map.
    """
    kept = {key: value for key, value in header.metadata.items() if key == b"avro.codec"}
    kept[b"avro.schema"] = json.dumps(without_empty_records(json.loads(header.metadata[b"avro.schema"]))).encode()
    with tempfile.NamedTemporaryFile(suffix=".avro") as file:  # DataFusion reads from a path only
        file.write(_header(kept, header.sync))
        file.write(memoryview(raw)[header.blocks_at :])
        file.flush()
        seconds = DATAFUSION_SECONDS + len(raw) / DATAFUSION_BYTES_PER_SECOND
        return within(seconds, "DataFusion", lambda: _queried(file.name, columns))


def _queried(path: str, columns: Sequence[Column]) -> pa.Table:
    from datafusion import SessionConfig, SessionContext  # a third of a second that a lake of tiny manifests need not spend

    frame = SessionContext(SessionConfig().with_target_partitions(1)).read_avro(path)
    schema = frame.schema()
    return frame.select(*(_expression(column, schema).alias(column.name) for column in columns)).to_arrow_table().cast(_schema(columns))


def _expression(column: Column, schema: pa.Schema) -> Expr:
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


def _with_fastavro(raw: bytes, columns: Sequence[Column]) -> pa.Table:
    records = list(cast("Iterator[dict[str, Any]]", fastavro.reader(io.BytesIO(raw))))
    arrays = [pa.array(_values(records, column), column.type, size=len(records)) for column in columns]
    return pa.Table.from_arrays(arrays, schema=_schema(columns))


def _values(records: list[dict[str, Any]], column: Column) -> list[Any]:
    for path in column.paths:
        values: list[Any] = records
        for part in path:
            if not values or part not in values[0]:  # every record has every field of the schema
                break
            values = [value[part] for value in values]
        else:
            return values
    return [None] * len(records)


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(raw, at)
    if length < 0 or at + length > len(raw):
        raise ValueError("the Avro header is cut off")
    return raw[at : at + length], at + length


def _read_long(raw: bytes, at: int) -> tuple[int, int]:
    """Returns a zig-zag varint and the position after it."""
    shift = value = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError(f"no Avro integer ends at byte {at:,}: the file is cut off or damaged")


def _long(value: int) -> bytes:
    """Returns a non-negative integer as a zig-zag varint."""
    value <<= 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*encoded, value])
