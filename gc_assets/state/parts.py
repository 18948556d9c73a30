"""Write Arrow batches as Parquet parts, with size and SHA-256, in the driver or in executors.

Each part is built in memory and written in a single put, so readers never see a partial file.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from gc_assets.core.errors import StateError
from gc_assets.state.arrow_types import is_added_column
from gc_assets.state.backend import COMPACTED_SEGMENTS
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile
from gc_assets.state.summaries import ManifestEntriesSummary

# Maximum rows and bytes of a part.
PART_ROWS = 1_000_000
PART_BYTES = 128 * 2**20
# Maximum rows and bytes of a row group. Open row groups are uncompressed, so this bounds task
# memory.
GROUP_ROWS = 131_072
GROUP_BYTES = 16 * 2**20


@dataclass
class PartWriter:
    """Writer that collects batches of one schema and writes them as parts under `directory`.

    `prefix` is the side table name, or empty, and starts each part name. Part names are unique per
    writer, so a retried task never overwrites the first attempt.
    """

    files: Files
    directory: str
    schema: pa.Schema
    prefix: str = ""
    parts: list[PartFile] = field(default_factory=list[PartFile])
    _part: _OpenPart | None = None
    _attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch, casting its columns to the schema by name."""
        if batch.num_rows == 0:
            return
        if self._part is None:
            self._part = _OpenPart(self.schema)
        self._part.write(batch)
        if self._part.is_full:
            self._put(self._part)

    def close(self) -> list[PartFile]:
        """Write the last part and return all parts, or an empty list if there were no rows."""
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
    """Part under construction, written row group by row group."""

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
        """Complete the part and return it."""
        self._end_group()
        self._writer.close()
        return self._sink.getvalue()

    def _end_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting).select(self._schema.names).cast(self._schema)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _repeating(schema: pa.Schema) -> bool | list[str]:
    """Return the columns for dictionary encoding: all except hashes, which do not repeat.

    Nested columns have different names in Parquet, so a schema with nested columns returns True
    (all).
    """
    names = [field.name for field in schema if not field.name.endswith("_hash")]
    is_flat = not any(pa.types.is_nested(field.type) for field in schema)
    return names if is_flat and len(names) < len(schema) else True


def read_parts(files: Files, paths: list[str], schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """Read Parquet parts into memory. The caller ensures that they are small.

    Columns that are missing from older parts are filled with null.

    Raises:
        StateError: If the checksum of a part is wrong.
    """
    names = columns or schema.names
    wanted = pa.schema([schema.field(name) for name in names])
    tables = [_read_part(f"{files.root}/{path}", content, wanted) for path, content in zip(paths, files.contents(paths), strict=True)]
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def read_verified(files: Files, directory: str, part: PartFile) -> bytes:
    """Read the bytes of a part.

    Raises:
        StateError: If the bytes differ from the published ones.
    """
    content = files.read(f"{directory}/{part.name}")
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise StateError(f"{directory}/{part.name} differs from the published bytes")
    return content


def open_part(content: bytes, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    """Open the bytes of a part.

    Reading its rows raises `OSError` if the checksum of a page is wrong. Without this check, one
    flipped bit in an uncompressed hash would result in another hash, and a live file would be
    treated as garbage. Parts of gc-assets 0.3 and older have no checksums.
    """
    return pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(read_dictionary), page_checksum_verification=True)


def describe_damage(path: str, error: Exception) -> str:
    """Return a message for a part that cannot be decoded."""
    if f"/{COMPACTED_SEGMENTS}/" in path:
        return f"{path} is damaged ({error}). Run `gc-assets doctor --repair`, which discards this copy, and start the run again."
    if f"/{ManifestEntriesSummary.TABLE}/" not in path:
        return f"{path} is damaged ({error}); run its asset again"
    directory = re.sub(r"/(_[a-z_]+/)?[^/]+$", "", path)  # all later runs also read it
    return (
        f"{path} is damaged ({error}). Remove {directory}, run `gc-assets doctor --repair` and start the run again. It decodes the "
        "containers of that run again."
    )


def _read_part(path: str, content: bytes, wanted: pa.Schema) -> pa.Table:
    source = open_part(content)
    missing = missing_columns(source.schema_arrow, wanted)
    try:
        # Threads cost more than they save for the few rows of a small part.
        rows = source.read([name for name in wanted.names if name not in missing], use_threads=False)
    except OSError as error:
        raise StateError(describe_damage(path, error)) from error
    return add_missing_columns(rows, wanted)


def missing_columns(found: pa.Schema, wanted: pa.Schema) -> set[str]:
    """Return the added columns missing from a part written by an older release."""
    return {field.name for field in wanted if is_added_column(field)} - set(found.names)


def add_missing_columns(rows: pa.Table | pa.RecordBatch, wanted: pa.Schema) -> pa.Table | pa.RecordBatch:
    """Return the rows with the columns of a schema, in schema order. Missing added columns are
    null.
    """
    if rows.schema.equals(wanted):
        return rows
    arrays = [
        pa.nulls(rows.num_rows, field.type) if is_added_column(field) and field.name not in rows.schema.names else rows.column(field.name)
        for field in wanted
    ]
    return type(rows).from_arrays(arrays, names=wanted.names).cast(wanted)
