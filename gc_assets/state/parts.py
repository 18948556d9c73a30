"""Read and write the Parquet parts of tables, in the driver or on executors.

A part is built in memory and written with a single put, so that readers never see an incomplete
file. Its size and SHA-256 are recorded in the receipt.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.errors import FormatError, StateError
from gc_assets.state.arrow_types import is_added_column
from gc_assets.state.backend import COMPACTED_SEGMENTS
from gc_assets.state.damage import describe_next_step
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile

# Maximum rows and bytes of a part.
PART_ROWS = 1_000_000
PART_BYTES = 128 * 2**20
# Maximum rows and bytes of a row group. An open row group is not compressed yet, so this limits the
# memory of a task.
GROUP_ROWS = 131_072
GROUP_BYTES = 16 * 2**20

_T = TypeVar("_T")


@dataclass
class PartWriter:
    """Collects batches of a table and writes them as parts (Parquet files).

    Each writer uses unique names, so a task that is retried never overwrites its first attempt.

    Attributes:
        directory: The directory of the run, relative to the state.
        schema: The schema of all batches.
        prefix: The name of the side table, or "" for the main table.
        parts: The parts that have been written.
    """

    files: Files
    directory: str
    schema: pa.Schema
    prefix: str = ""
    parts: list[PartFile] = field(default_factory=list[PartFile])
    _part: _OpenPart | None = None
    _attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Its columns are selected by name and cast to the schema."""
        if batch.num_rows == 0:
            return
        if self._part is None:
            self._part = _OpenPart(self.schema)
        self._part.write(batch)
        if self._part.is_full:
            self._put(self._part)

    def close(self) -> list[PartFile]:
        """Write the last part and return all parts. Without rows, the list is empty."""
        if self._part is not None:
            self._put(self._part)
        return self.parts

    def _put(self, part: _OpenPart) -> None:
        content = part.close()
        name = f"{self.prefix}/" if self.prefix else ""
        name += f"part-{len(self.parts):05d}-{self._attempt}.parquet"
        self.files.replace(f"{self.directory}/{name}", content)
        digest = hashlib.sha256(content).hexdigest()
        self.parts.append(PartFile(name=name, rows=part.rows, size_bytes=len(content), sha256=digest))
        self._part = None


class _OpenPart:
    """A part that is still being written, one row group at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._bytes = 0
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", compression_level=1, use_dictionary=_repeating(schema), write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.rows >= PART_ROWS or self._bytes >= PART_BYTES

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._end_group()

    def close(self) -> pa.Buffer:
        """Complete the part and return its content."""
        self._end_group()
        self._writer.close()
        return self._sink.getvalue()

    def _end_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting).select(self._schema.names).cast(self._schema)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _repeating(schema: pa.Schema) -> bool | list[str]:
    """Return the columns to dictionary-encode. Hashes are left out, because they do not repeat.

    Columns cannot be selected if some of them are nested, because Parquet then uses other names. In
    this case, True selects all columns.
    """
    names = [field.name for field in schema if not field.name.endswith("_hash")]
    is_flat = not any(pa.types.is_nested(field.type) for field in schema)
    return names if is_flat and len(names) < len(schema) else True


def read_parts(files: Files, paths: list[str], schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """Read Parquet parts into memory. The caller has to make sure that they are small.

    If a part was written before a column was added, the column is null.

    Args:
        paths: Paths of the parts, relative to the state.
        schema: The schema of the table.
        columns: Names of the columns to read. None reads all.

    Raises:
        StateError: If a part is missing or damaged.
    """
    names = columns or schema.names
    wanted = pa.schema([schema.field(name) for name in names])
    tables = list(decode_each(files, paths, lambda content: iter((_read_part(content, wanted),))))
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def open_part(content: bytes, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open the bytes of a part.

    Page checksums are verified, so reading damaged rows raises `OSError`. Without them, a single
    flipped bit could turn a hash into another one, and a live file would be treated as garbage.
    Parts written by release 0.3 and earlier do not have checksums.
    """
    return pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(read_dictionary), page_checksum_verification=True)


def read_filtered(content: bytes, columns: Sequence[str], is_wanted: pc.Expression) -> pa.Table:
    """Read the rows of a part for which a condition is true, with page checksums (`open_part`)."""
    return pq.read_table(pa.BufferReader(content), columns=list(columns), filters=is_wanted, page_checksum_verification=True)


def describe_damage(path: str, error: Exception) -> str:
    """Explain that a part cannot be decoded, and suggest the next step."""
    finding = " ".join(str(error).split())
    if f"/{COMPACTED_SEGMENTS}/" in path:
        return f"{path} is damaged ({finding}). Run `gc-assets doctor --repair`, which discards this copy, and start the run again."
    return f"{path} is damaged ({finding}); {describe_next_step(path)}"


@contextmanager
def read_errors(path: str) -> Generator[None]:
    """Convert errors that occur while a part is read to a `StateError` with its path."""
    try:
        yield
    except FileNotFoundError as error:
        missing = error.filename or path
        raise StateError(f"{missing} is missing, so the table is incomplete; {describe_next_step(missing)}") from None
    except (pa.ArrowException, UnicodeDecodeError, KeyError, FormatError) as error:  # the name of a column may be damaged
        raise StateError(describe_damage(path, error)) from error
    except OSError as error:
        raise StateError(describe_damage(path, error) if error.errno is None else f"{path} cannot be read: {error}") from error


def decode_each(files: Files, paths: Sequence[str], decode: Callable[[bytes], Iterator[_T]]) -> Iterator[_T]:
    """Download files and yield their decoded content. Errors contain the path (`read_errors`)."""
    contents, number = files.contents(paths), 0
    while number < len(paths):
        with read_errors(f"{files.root}/{paths[number]}"):
            yield from decode(next(contents))
        number += 1


def _read_part(content: bytes, wanted: pa.Schema) -> pa.Table:
    source = open_part(content)
    missing = missing_columns(source.schema_arrow, wanted)
    # Small parts have few rows, for which threads would cost more time than they save.
    rows = source.read([name for name in wanted.names if name not in missing], use_threads=False)
    return add_missing_columns(rows, wanted)


def missing_columns(found: pa.Schema, wanted: pa.Schema) -> set[str]:
    """Return columns that a part lacks because it was written by an older release."""
    return {field.name for field in wanted if is_added_column(field)} - set(found.names)


def add_missing_columns(rows: pa.Table | pa.RecordBatch, wanted: pa.Schema) -> pa.Table | pa.RecordBatch:
    """Convert rows to a schema. Columns that were added in a later release are filled with null."""
    if rows.schema.equals(wanted):
        return rows
    arrays = [
        pa.nulls(rows.num_rows, field.type) if is_added_column(field) and field.name not in rows.schema.names else rows.column(field.name)
        for field in wanted
    ]
    return type(rows).from_arrays(arrays, names=wanted.names).cast(wanted)
