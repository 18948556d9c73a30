"""Manifest lists and manifests as rows of `ENTRY_SCHEMA`, lengths and counts verified.

Pure: container and bytes in, rows out. Source: Iceberg's format/spec.md, "Manifests" and "Manifest
Lists", versions 1 to 3.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.lakes.iceberg.avro import Column, read_columns
from gc_assets.lakes.protocol import ENTRY_SCHEMA, Container, Kind

# Position is the format's code: `status` and `content` are these indices.
_STATUS = pa.array(["existing", "added", "deleted"])
_CONTENT = pa.array([Kind.DATA, Kind.POSITION_DELETES, Kind.EQUALITY_DELETES, Kind.DELETION_VECTOR])
_MANIFEST_CONTENTS = 2  # data, deletes

# Java wrote `added_data_files_count` before 1.0; the field id is the same.
_LIST_COLUMNS = (
    Column("address", (("manifest_path",),), pa.string()),
    Column("size_bytes", (("manifest_length",),), pa.int64()),
    Column("snapshot_id", (("added_snapshot_id",),), pa.int64()),
    Column("content", (("content",),), pa.int32()),
    Column("added", (("added_files_count",), ("added_data_files_count",)), pa.int64()),
    Column("existing", (("existing_files_count",), ("existing_data_files_count",)), pa.int64()),
    Column("deleted", (("deleted_files_count",), ("deleted_data_files_count",)), pa.int64()),
)
_MANIFEST_COLUMNS = (
    Column("address", (("data_file", "file_path"),), pa.string()),
    Column("size_bytes", (("data_file", "file_size_in_bytes"),), pa.int64()),
    Column("snapshot_id", (("snapshot_id",),), pa.int64()),
    Column("content", (("data_file", "content"),), pa.int32()),
    Column("file_format", (("data_file", "file_format"),), pa.string()),
    Column("status", (("status",),), pa.int32()),
)


def decode(container: Container, raw: bytes) -> pa.RecordBatch:
    """Returns the children that a manifest list or manifest names, in the file's order.

    Raises `FormatError` naming the container where its length or entry count is not what its parent
    promises, where it does not decode, and where an entry has no address or a code that the format
    does not know.
    """
    decoders = {Kind.MANIFEST_LIST: (_LIST_COLUMNS, _manifests), Kind.MANIFEST: (_MANIFEST_COLUMNS, _files)}
    if container.kind not in decoders:
        raise FormatError(f"{container.address}: kind {container.kind!r} is no Iceberg container; manifest_list and manifest are")
    if container.size_bytes is not None and len(raw) != container.size_bytes:
        raise FormatError(
            f"{_named(container)}: {len(raw):,} bytes, expected {container.size_bytes:,}; it is truncated or was replaced, restore it"
        )
    if not raw:
        raise FormatError(f"{_named(container)}: the file is empty; restore it, or expire the snapshots that need it")
    columns, rows_of = decoders[container.kind]
    try:
        table = read_columns(raw, columns, container.expected_entries)
    except Exception as error:
        raise FormatError(
            f"{_named(container)}: {len(raw):,} bytes that do not decode as Avro ({type(error).__name__}: {error}); restore the file"
        ) from error
    if container.expected_entries is not None and table.num_rows != container.expected_entries:
        raise FormatError(
            f"{_named(container)}: read {table.num_rows:,} entries, its manifest list promises {container.expected_entries:,}; restore it"
        )
    if table["address"].null_count or pc.any(pc.equal(table["address"], "")).as_py():
        raise FormatError(f"{_named(container)}: an entry has no path; it is damaged or not a {container.kind.replace('_', ' ')}")
    return rows_of(container, table)


def _manifests(container: Container, table: pa.Table) -> pa.RecordBatch:
    _known(container, table, "content", _MANIFEST_CONTENTS)
    counts = pc.add(pc.add(table["added"], table["existing"]), table["deleted"])  # null where one is: v1 may leave them out
    return _entries(table, pa.scalar(Kind.MANIFEST), is_container=True, expected=counts, snapshot=table["snapshot_id"])


def _files(container: Container, table: pa.Table) -> pa.RecordBatch:
    content = _known(container, table, "content", 3)
    status = _known(container, table, "status", len(_STATUS), nullable=False)
    puffin = pc.equal(pc.utf8_upper(pc.fill_null(table["file_format"], "")), "PUFFIN")
    if pc.any(pc.and_(puffin, pc.not_equal(content, 1))).as_py():
        raise FormatError(f"{_named(container)}: an entry in Puffin format is not a position delete; such a file is unknown")
    kind = pc.take(_CONTENT, pc.if_else(puffin, 3, content))
    snapshot = table["snapshot_id"].cast(pa.string())
    if container.snapshot_id is not None:
        snapshot = pc.fill_null(snapshot, container.snapshot_id)
    return _entries(table, kind, is_container=False, snapshot=snapshot, status=pc.take(_STATUS, status))


def _known(container: Container, table: pa.Table, name: str, codes: int, *, nullable: bool = True) -> pa.ChunkedArray:
    """Returns the column of codes 0 to `codes - 1`. Null reads as 0 where the format lets a writer
    leave the field out.
    """
    column: pa.ChunkedArray = pc.fill_null(table[name], 0 if nullable else -1)
    unknown = pc.filter(column, pc.or_(pc.less(column, 0), pc.greater_equal(column, codes)))
    if len(unknown):
        found = "none" if unknown[0].as_py() == -1 else unknown[0].as_py()
        raise FormatError(f"{_named(container)}: an entry has {name} {found}, 0 to {codes - 1} are known; gc-assets must learn it first")
    return column


def _entries(
    table: pa.Table,
    kind: pa.Scalar | pa.ChunkedArray,
    *,
    is_container: bool,
    snapshot: pa.ChunkedArray,
    expected: pa.ChunkedArray | None = None,
    status: pa.ChunkedArray | None = None,
) -> pa.RecordBatch:
    rows = table.num_rows
    columns = {
        "address": table["address"],
        "kind": pa.repeat(kind, rows) if isinstance(kind, pa.Scalar) else kind,
        "is_container": pa.repeat(pa.scalar(is_container), rows),
        "size_bytes": table["size_bytes"],
        "expected_entries": pa.nulls(rows, pa.int64()) if expected is None else expected,
        "snapshot_id": snapshot.cast(pa.string()),
        "entry_status": pa.nulls(rows, pa.string()) if status is None else status,
        "must_exist": pa.repeat(pa.scalar(value=True), rows),
    }
    flat = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns.values()]
    return pa.RecordBatch.from_arrays(flat, schema=ENTRY_SCHEMA)


def _named(container: Container) -> str:
    return f"{container.kind.replace('_', ' ')} {container.address}"
