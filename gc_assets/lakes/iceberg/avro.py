"""Read columns of Avro object container files as Arrow tables.

Source: Avro specification 1.11, "Object Container Files". Large files are decoded by Apache
DataFusion if it is installed (extra `iceberg-fast`), which avoids a Python loop. fastavro decodes
small files and any file that DataFusion rejects. Both return the same rows.

A file of a few bytes can declare any number of records. Record counts are therefore checked against
the file length before decoding, and large files are decoded in a worker process with limited time
and memory.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import fastavro
import pyarrow as pa

from gc_assets.core.untrusted_input import decompress_block, max_decompressed_bytes
from gc_assets.core.worker_process import WorkerDied, run_in_worker

if TYPE_CHECKING:
    from datafusion import Expr

MAGIC = b"Obj\x01"
# Below this size, fastavro (25-60 µs per entry) finishes before DataFusion has planned a query
# (2 ms).
MIN_DATAFUSION_BYTES = 16 * 1024
# Larger files, measured in decompressed bytes, are passed to a worker process instead.
MAX_IN_PROCESS_BYTES = 2**20
# Both readers are ten times faster than this, so only a decode that never ends hits the deadline.
DATAFUSION_SECONDS = 20.0
DATAFUSION_BYTES_PER_SECOND = 5 * 2**20
FASTAVRO_BYTES_PER_SECOND = 2**19
# An entry takes at least 100 bytes, so a manifest with more entries would already exceed the limit
# of decompressed bytes.
MAX_RECORDS = 10_000_000
# Maximum number of records that fastavro holds as Python objects at a time.
_RECORD_BATCH = 4096
# Minimum encoded size of each type. Strings, arrays and maps start with a length byte.
_MIN_BYTES: Final = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1, "array": 1, "map": 1,
}  # fmt: skip
# Maximum total decompressed size of files that are decoded as one group.
MAX_GROUP_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """Arrow column to read from the first field path in `paths` that the file's Avro schema has.

    If the schema has none of these paths, the Arrow column is null.
    """

    name: str
    paths: tuple[tuple[str, ...], ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata of an Avro container file, its sync marker, and the offset of its first block."""

    metadata: dict[bytes, bytes]
    sync: bytes
    first_block: int


class UnexpectedCount(ValueError):
    """Raised if the blocks of an Avro file do not contain the expected number of records.

    Attributes:
        found: Number of records declared by the block headers.
    """

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"its blocks contain {found:,} records, expected {expected:,}")
        self.found = found


class ReaderAborted(ValueError):
    """Raised if one Avro reader exceeded its time or memory limit and the other one failed too."""


@cache
def has_datafusion() -> bool:
    """Check if DataFusion is installed, without importing it."""
    return importlib.util.find_spec("datafusion") is not None


def describe_decoder() -> str:
    """Describe which library decodes large manifests on this machine."""
    if has_datafusion():
        return "DataFusion decodes large manifests"
    return "fastavro decodes manifests. Install a much faster decoder for large ones: pip install 'gc-assets[iceberg-fast]'"


def read_columns(raw: bytes, columns: Sequence[AvroColumn], expected_rows: int | None) -> pa.Table:
    """Read columns of every record in an Avro file, in file order.

    DataFusion silently drops a truncated last block. Its result is only used if it contains the
    expected number of rows. Otherwise fastavro reads the file, and raises an error if it is
    damaged.

    Args:
        raw: Content of the Avro file.
        columns: Columns to read.
        expected_rows: Expected number of records, or None to trust the block headers.

    Raises:
        UnexpectedCount: If the block headers declare another number than `expected_rows`.
        ReaderAborted: If a reader exceeds its limits and no other reader can read the file.
        ValueError: If the header or a block is invalid. Avro libraries may also raise errors of
            their own.
    """
    uses_datafusion, aborted = has_datafusion() and len(raw) >= MIN_DATAFUSION_BYTES, None
    raw, header = _decompress(raw, read_header(raw))
    rows = _count_rows(raw, header)
    if expected_rows is not None and rows != expected_rows:
        raise UnexpectedCount(rows, expected_rows)
    if uses_datafusion:
        try:
            table = read_with_datafusion(raw, header, columns)
        except (TimeoutError, WorkerDied) as error:
            aborted = error
        except Exception as error:  # noqa: BLE001 - DataFusion raises a plain Exception for any file that it rejects
            logging.getLogger(__name__).debug("DataFusion rejects a file, fastavro reads it: %s", error)
        else:
            if table.num_rows == rows:
                return table
    try:
        table = read_with_fastavro(raw, columns)
    except Exception as error:
        is_limit = isinstance(error, MemoryError) or (isinstance(error, WorkerDied) and error.is_limit)
        if is_limit or (aborted and not isinstance(error, TimeoutError | WorkerDied)):
            raise ReaderAborted(f"a reader exceeded its time or memory limit: {error}") from error
        raise  # The file is not at fault: the system killed the worker, or the machine is busy.
    if table.num_rows != rows:
        raise UnexpectedCount(table.num_rows, rows)
    return table


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Records from several Avro files that share a schema, in the order of the files.

    `indices` are the positions of these files in the input. `counts` are their numbers of records.
    """

    indices: Sequence[int]
    counts: Sequence[int]
    table: pa.Table


def read_groups(raws: Sequence[bytes], columns: Sequence[AvroColumn]) -> Iterator[FileGroup]:
    """Read columns of every record of many Avro files, and yield them grouped by schema.

    Each group is read by a single DataFusion query, so DataFusion must be installed.

    Raises:
        ValueError: If any file is damaged. DataFusion may also raise errors of its own. They do not
            identify the damaged file, so the caller has to read each file separately to find it.
    """
    by_schema: dict[tuple[bytes, bytes], list[tuple[int, bytes, Header]]] = {}
    size_bytes = 0
    for number, packed in enumerate(raws):
        raw, header = _decompress(packed, read_header(packed))
        size_bytes += len(raw)
        if size_bytes > MAX_GROUP_BYTES:
            raise ValueError(f"{len(raws):,} files decompress to more than {MAX_GROUP_BYTES:,} bytes in total")
        schema = header.metadata[b"avro.schema"], header.metadata.get(b"avro.codec", b"null")
        by_schema.setdefault(schema, []).append((number, raw, header))
    for files in by_schema.values():
        first, parts, counts = files[0][2], list[bytes](), list[int]()
        for _, raw, header in files:
            blocks = list(_checked_blocks(raw, header))
            counts.append(sum(count for count, _, _ in blocks))
            for count, begin, end in blocks:
                parts += [_encode_long(count), _encode_long(end - begin), raw[begin:end], first.sync]
        table = read_with_datafusion(b"".join(parts), Header(first.metadata, first.sync, 0), columns)
        if table.num_rows != sum(counts):
            raise ValueError(f"DataFusion read {table.num_rows:,} records of {len(files):,} files, expected {sum(counts):,}")
        yield FileGroup([number for number, _, _ in files], counts, table)


def read_header(raw: bytes) -> Header:
    """Parse the header of an Avro container file.

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
        if count < 0:  # A negative count is followed by the block's size in bytes.
            _, at = _read_long(raw, at)
        for _ in range(abs(count)):
            key, at = _read_bytes(raw, at)
            metadata[key], at = _read_bytes(raw, at)
    if len(raw) < at + 16:
        raise ValueError("the Avro header is truncated before its sync marker")
    return Header(metadata, raw[at : at + 16], at + 16)


def count_rows(raw: bytes) -> int:
    """Count the records declared by the block headers of an Avro file.

    Raises:
        ValueError: If a block is truncated, does not end with the sync marker, or is too short for
            its number of records.
    """
    return _count_rows(*_decompress(raw, read_header(raw)))


def _count_rows(raw: bytes, header: Header) -> int:
    return sum(count for count, _, _ in _checked_blocks(raw, header))


def _checked_blocks(raw: bytes, header: Header) -> Iterator[tuple[int, int, int]]:
    smallest, total = _smallest_record(header.metadata.get(b"avro.schema", b"")), 0
    for count, begin, end in _blocks(raw, header):
        if count * max(1, smallest) > end - begin:
            raise ValueError(f"an Avro block of {end - begin:,} bytes cannot contain {count:,} records of at least {smallest:,} bytes")
        total += count
        if total > MAX_RECORDS:
            raise ValueError(f"its blocks declare more than {MAX_RECORDS:,} records, too many for a manifest")
        yield count, begin, end


@lru_cache(maxsize=256)
def _smallest_record(schema: bytes) -> int:
    """Return the smallest size in bytes that a record of this Avro schema can have.

    Raises:
        ValueError: If the schema is invalid or recursive, or if array items take no bytes. In the
            last two cases, a few bytes could declare any number of levels or items. Iceberg does
            not use such schemas.
    """
    try:
        return _smallest_value(json.loads(schema), {})
    except (RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the Avro schema is invalid ({type(error).__name__}: {error})") from error


def _smallest_value(schema: Any, named: dict[str, int | None]) -> int:
    """Return the smallest size in bytes that a value of an Avro schema can have.

    `named` maps type names to sizes. A type that is still being defined has the size None.
    """
    if isinstance(schema, list):
        return 1 + min(_smallest_value(item, named) for item in schema)
    if isinstance(schema, str):
        smallest = _MIN_BYTES[schema] if schema in _MIN_BYTES else named[schema]
        if smallest is None:
            raise ValueError(f"the Avro type {schema!r} contains itself")
        return smallest
    kind, name = schema["type"], schema.get("name")
    if kind == "array" and _smallest_value(schema["items"], named) == 0:
        raise ValueError("the Avro schema has an array whose items take no bytes")
    if kind == "map":
        _smallest_value(schema["values"], named)
    if kind not in {"record", "error", "fixed", "enum"}:
        return _smallest_value(kind, named)
    full_name = name if "." in name or not schema.get("namespace") else f"{schema['namespace']}.{name}"
    named |= {name: None, full_name: None}
    smallest = _smallest_fields(kind, schema, named)
    named |= {name: smallest, full_name: smallest}
    return smallest


def _smallest_fields(kind: str, schema: dict[str, Any], named: dict[str, int | None]) -> int:
    if kind == "fixed":
        return int(schema["size"])
    return _MIN_BYTES["enum"] if kind == "enum" else sum(_smallest_value(field["type"], named) for field in schema["fields"])


def _blocks(raw: bytes, header: Header) -> Iterator[tuple[int, int, int]]:
    """Yield the record count, start offset and end offset of each block of an Avro file."""
    at = header.first_block
    while at < len(raw):
        count, at = _read_long(raw, at)
        size, at = _read_long(raw, at)
        if raw[at + size : at + size + 16] != header.sync or size < 0 or count < 0:
            raise ValueError(f"the Avro block that ends at byte {at + size:,} of {len(raw):,} is truncated or damaged")
        yield count, at, at + size
        at += size + 16


def _decompress(raw: bytes, header: Header) -> tuple[bytes, Header]:
    """Decompress an Avro file within limits, and drop its codec so that any reader can read it.

    Raises:
        ValueError: If a block is damaged, or the blocks decompress to too many bytes.
    """
    codec = header.metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec == "null":
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
    """Remove fields whose type is an empty record from an Avro schema. They do not take any bytes.

    An example is the `partition` field of an unpartitioned table.
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


def read_with_datafusion(raw: bytes, header: Header, columns: Sequence[AvroColumn]) -> pa.Table:
    """Read an uncompressed Avro file with DataFusion in a worker process.

    Raises:
        TimeoutError: If DataFusion hangs, as version 55 does on a map with a negative item count.
    """
    reader_metadata = {b"avro.schema": json.dumps(drop_empty_records(json.loads(header.metadata[b"avro.schema"]))).encode()}
    content = (_encode_header(reader_metadata, header.sync), memoryview(raw)[header.first_block :])
    return _read_file(_query, DATAFUSION_SECONDS + len(raw) / DATAFUSION_BYTES_PER_SECOND, content, columns)


def _read_file(
    read: Callable[[str, Sequence[AvroColumn]], pa.Table],
    seconds: float,
    content: Sequence[bytes | memoryview],
    columns: Sequence[AvroColumn],
) -> pa.Table:
    """Write the content to a temporary file, and read that file in a worker process."""
    with tempfile.NamedTemporaryFile(suffix=".avro") as file:
        for part in content:
            file.write(part)
        file.flush()
        return run_in_worker(seconds, read, file.name, columns)


def _query(path: str, columns: Sequence[AvroColumn]) -> pa.Table:
    from datafusion import SessionConfig, SessionContext  # The import takes a third of a second.

    frame = SessionContext(SessionConfig().with_target_partitions(1)).read_avro(path)
    schema = frame.schema()
    return (
        frame.select(*(_build_expression(column, schema).alias(column.name) for column in columns))
        .to_arrow_table()
        .cast(_build_schema(columns))
    )


def _build_expression(column: AvroColumn, schema: pa.Schema) -> Expr:
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


def read_with_fastavro(raw: bytes, columns: Sequence[AvroColumn]) -> pa.Table:
    """Read an uncompressed Avro file with fastavro, in a worker process if the file is large."""
    if len(raw) <= MAX_IN_PROCESS_BYTES:
        return _read_records(io.BytesIO(raw), columns)
    return _read_file(_read_path, DATAFUSION_SECONDS + len(raw) / FASTAVRO_BYTES_PER_SECOND, [raw], columns)


def _read_path(path: str, columns: Sequence[AvroColumn]) -> pa.Table:
    with Path(path).open("rb") as file:
        return _read_records(file, columns)


def _read_records(file: IO[bytes], columns: Sequence[AvroColumn]) -> pa.Table:
    records = cast("Iterator[dict[str, Any]]", fastavro.reader(file))
    schema, batches = _build_schema(columns), list[pa.RecordBatch]()
    while batch := list(islice(records, _RECORD_BATCH)):
        arrays = [pa.array(_column_values(batch, column), column.type, size=len(batch)) for column in columns]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema)


def _column_values(records: list[dict[str, Any]], column: AvroColumn) -> list[Any]:
    for path in column.paths:
        values: list[Any] = records
        for part in path:
            if not values or part not in values[0]:  # Every record has all fields of the schema.
                break
            values = [value[part] for value in values]
        else:
            return values
    return [None] * len(records)


def _build_schema(columns: Sequence[AvroColumn]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(raw, at)
    if length < 0 or at + length > len(raw):
        raise ValueError("the Avro header is truncated")
    return raw[at : at + length], at + length


def _read_long(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a zig-zag varint. Returns the value and the position after it."""
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
    """Encode a non-negative integer as a zig-zag varint."""
    value <<= 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*encoded, value])
