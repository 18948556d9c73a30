"""Decode manifest lists and manifests into rows of `ENTRY_SCHEMA`, and verify lengths and counts.

All functions are pure: they turn a container and its bytes into rows. Source: Iceberg's
format/spec.md, "Manifests" and "Manifest Lists", versions 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import DecodingAborted, FormatError
from gc_assets.core.worker_process import is_started
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.avro import (
    AvroColumn,
    ReaderAborted,
    UnexpectedCount,
    count_rows,
    has_datafusion,
    read_columns,
    read_groups,
    read_header,
)
from gc_assets.lakes.protocol import Container, decode_or_error

# In the format, `status` and `content` are indices into these arrays.
_STATUS = pa.array(["existing", "added", "deleted"])
_ADDED = 1
_CONTENT = pa.array([Kind.DATA, Kind.POSITION_DELETES, Kind.EQUALITY_DELETES, Kind.DELETION_VECTOR])
_MANIFEST_CONTENTS = 2  # The codes for data and for deletes.
_SNAPSHOT_ID = b"snapshot-id"

# Iceberg Java wrote `added_data_files_count` before version 1.0, with the same field id.
_LIST_COLUMNS = (
    AvroColumn("address", (("manifest_path",),), pa.string()),
    AvroColumn("size_bytes", (("manifest_length",),), pa.int64()),
    AvroColumn("snapshot_id", (("added_snapshot_id",),), pa.int64()),
    AvroColumn("content", (("content",),), pa.int32()),
    AvroColumn("added", (("added_files_count",), ("added_data_files_count",)), pa.int64()),
    AvroColumn("existing", (("existing_files_count",), ("existing_data_files_count",)), pa.int64()),
    AvroColumn("deleted", (("deleted_files_count",), ("deleted_data_files_count",)), pa.int64()),
)
_SUMMARY_COLUMNS = (AvroColumn("spec_id", (("partition_spec_id",),), pa.int32()), AvroColumn("content", (("content",),), pa.int32()))
_MANIFEST_COLUMNS = (
    AvroColumn("address", (("data_file", "file_path"),), pa.string()),
    AvroColumn("size_bytes", (("data_file", "file_size_in_bytes"),), pa.int64()),
    AvroColumn("snapshot_id", (("snapshot_id",),), pa.int64()),
    AvroColumn("content", (("data_file", "content"),), pa.int32()),
    AvroColumn("file_format", (("data_file", "file_format"),), pa.string()),
    AvroColumn("status", (("status",),), pa.int32()),
)


# With this number of files, decoding them together is faster. With this number of bytes, it is also
# worth importing DataFusion, which takes a third of a second.
MIN_GROUP_FILES = 8
MIN_IMPORT_BYTES = 2**20


def decode(container: Container, raw: bytes) -> pa.RecordBatch:
    """Decode a manifest list or manifest into its children, in file order.

    Raises:
        FormatError: If the number of entries differs from the parent's record. If the parent does
            not record it, the length has to match instead. The error is also raised if the file
            belongs to another snapshot or cannot be decoded, or an entry has no address or an
            unknown code. The message contains the container's address.
    """
    if container.kind not in _DECODERS:
        raise FormatError(f"{container.address}: kind {container.kind!r} is not an Iceberg container, expected manifest_list or manifest")
    if container.size_bytes is not None and len(raw) != container.size_bytes:
        _require_promised_entries(container, raw)
    if not raw:
        raise FormatError(f"{_label(container)}: the file is empty; restore the file, or expire the snapshots that need it")
    if (other := _find_other_snapshot(container, raw)) is not None:
        raise FormatError(
            f"{_label(container)}: its header has snapshot id {other}, but snapshot {container.snapshot_id} needs it; the file "
            f"was replaced; restore the file, or expire snapshot {container.snapshot_id}"
        )
    columns, build_rows = _DECODERS[container.kind]
    try:
        table = read_columns(raw, columns, container.expected_entries)
    except UnexpectedCount as error:
        raise FormatError(
            f"{_label(container)}: read {error.found:,} entries, but its manifest list records {container.expected_entries:,}; restore it"
        ) from error
    except Exception as error:
        kind = DecodingAborted if isinstance(error, ReaderAborted) else FormatError
        raise kind(
            f"{_label(container)}: cannot decode {len(raw):,} bytes as Avro ({type(error).__name__}: {error}); restore the file"
        ) from error
    return build_rows(_label(container), table, pa.scalar(container.snapshot_id, pa.string()))


class ListSummary(NamedTuple):
    """Partition specs of the manifests in a manifest list, and whether one contains delete files."""

    specs: frozenset[int]
    has_deletes: bool


def summarize_list(address: str, raw: bytes) -> ListSummary:
    """Read the partition specs and content types of the manifests in a manifest list.

    Raises:
        FormatError: If the manifest list cannot be decoded, or a manifest in it does not have a
            spec.
    """
    name = f"{Kind.MANIFEST_LIST} {address}"
    try:
        rows = read_columns(raw, _SUMMARY_COLUMNS, None)
    except Exception as error:
        raise FormatError(f"{name}: cannot decode {len(raw):,} bytes as Avro ({type(error).__name__}: {error})") from error
    specs = rows["spec_id"]
    if specs.null_count:
        raise FormatError(f"{name}: a manifest has no partition spec")
    has_deletes = pc.any(pc.not_equal(pc.fill_null(rows["content"], 0), 0), min_count=0).as_py()
    return ListSummary(frozenset(specs.unique().to_pylist()), has_deletes)


def _require_promised_entries(container: Container, raw: bytes) -> None:
    """Verify that a container of unexpected length has all entries, based on its block headers.

    Some writers record the length of an earlier version in manifest lists (apache/iceberg #13719,
    apache/iceberg-go #438). If the manifest list also records the manifest's number of entries, its
    length does not matter.

    Raises:
        FormatError: If the number of entries differs from the recorded one, or none is recorded.
    """
    finding = f"{_label(container)}: the file has {len(raw):,} bytes, expected {container.size_bytes:,}"
    if container.expected_entries is None:
        raise FormatError(f"{finding}; the file is truncated or was replaced; restore the file, or rewrite the table's manifests")
    try:
        entries = count_rows(raw)
    except ValueError as error:
        raise FormatError(f"{finding}; the file is truncated or was replaced ({error}); restore the file") from error
    if entries != container.expected_entries:
        raise FormatError(
            f"{finding}; it has {entries:,} entries, but its manifest list records {container.expected_entries:,}; the file is "
            "truncated or was replaced; restore the file"
        )


def decode_many(items: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
    """Decode each container. Each result is either its rows or the error that `decode` raises.

    Containers of the same kind are decoded together. If one of them is damaged, they are decoded
    again one by one, so that the error identifies it.
    """
    found: dict[int, pa.RecordBatch] = {}
    for kind in _DECODERS:
        indices = [
            number
            for number, (container, raw) in enumerate(items)
            if container.kind == kind and _has_expected_length(container, raw) and _find_other_snapshot(container, raw) is None
        ]
        same_kind = [items[number] for number in indices]
        if _is_worth_grouping(same_kind):
            found |= zip(indices, _decode_group(same_kind, kind), strict=False)
    return [found[number] if number in found else decode_or_error(decode, *item) for number, item in enumerate(items)]


def _is_worth_grouping(items: Sequence[tuple[Container, bytes]]) -> bool:
    return has_datafusion() and len(items) >= MIN_GROUP_FILES and (is_started() or sum(len(raw) for _, raw in items) >= MIN_IMPORT_BYTES)


def _has_expected_length(container: Container, raw: bytes) -> bool:
    return bool(raw) and container.size_bytes in {None, len(raw)}


def _find_other_snapshot(container: Container, raw: bytes) -> str | None:
    """Return the snapshot id in a manifest list's header if it is not the expected one.

    The specification does not require writers to record the snapshot in the file's header, but all
    known writers do. This is the only check for manifest lists, because their length and number of
    entries are not recorded anywhere.
    """
    if container.kind != Kind.MANIFEST_LIST or container.snapshot_id is None:
        return None
    try:
        named = read_header(raw).metadata.get(_SNAPSHOT_ID)
    except ValueError:
        return None  # The decoder will report this error.
    found = None if named is None else named.decode("utf-8", "replace")
    return None if found == container.snapshot_id else found


def _decode_group(items: Sequence[tuple[Container, bytes]], kind: str) -> list[pa.RecordBatch]:
    """Decode containers of the same file kind together. If one is damaged, the result is empty."""
    columns, build_rows = _DECODERS[kind]
    found: dict[int, pa.RecordBatch] = {}
    try:
        for group in read_groups([raw for _, raw in items], columns):
            containers = [items[number][0] for number in group.indices]
            expected = [item.expected_entries for item in containers]
            if any(promised not in {None, count} for promised, count in zip(expected, group.counts, strict=True)):
                return []
            snapshot_ids = pa.array([item.snapshot_id for item in containers], pa.string())
            rows = build_rows(
                f"{len(containers):,} containers",
                group.table,
                snapshot_ids.take(pa.array(np.repeat(np.arange(len(snapshot_ids)), group.counts))),
            )
            ends = np.cumsum(group.counts)
            found |= {
                number: rows.slice(end - count, count)
                for number, count, end in zip(group.indices, group.counts, ends.tolist(), strict=True)
            }
    except Exception:  # noqa: BLE001 - the caller then decodes each container separately, which raises its own error
        return []
    return [found[number] for number in range(len(items))]


def _build_manifest_rows(name: str, table: pa.Table, parent_snapshot: pa.Scalar | pa.Array) -> pa.RecordBatch:  # noqa: ARG001 - as `_build_file_rows`
    _require_addresses(name, table, Kind.MANIFEST_LIST)
    _read_codes(name, table, "content", _MANIFEST_CONTENTS)
    counts = pc.add(pc.add(table["added"], table["existing"]), table["deleted"])  # In v1, a count may be missing, so the Arrow sum is null.
    return _entries(table, pa.scalar(Kind.MANIFEST), is_container=True, expected=counts, snapshot=table["snapshot_id"])


def _build_file_rows(name: str, table: pa.Table, parent_snapshot: pa.Scalar | pa.Array) -> pa.RecordBatch:
    """Build rows for the file entries of manifests.

    An entry without a snapshot id inherits `parent_snapshot`, the snapshot of its manifest.

    Entries with the `added` status must come from the snapshot that added the manifest. This is
    verified, because manifests of two snapshots can have the same length and number of entries.
    """
    _require_addresses(name, table, Kind.MANIFEST)
    content = _read_codes(name, table, "content", 3)
    status = _read_codes(name, table, "status", len(_STATUS), nullable=False)
    puffin = pc.equal(pc.utf8_upper(pc.fill_null(table["file_format"], "")), "PUFFIN")
    if pc.any(pc.and_(puffin, pc.not_equal(content, 1))).as_py():
        raise FormatError(f"{name}: an entry in Puffin format is not a position delete, which gc-assets does not support")
    kind = pc.take(_CONTENT, pc.if_else(puffin, 3, content))
    snapshot = pc.coalesce(table["snapshot_id"].cast(pa.string()), parent_snapshot)
    is_other = pc.and_(pc.equal(status, _ADDED), pc.fill_null(pc.not_equal(snapshot, parent_snapshot), False))
    if pc.any(is_other).as_py():
        raise FormatError(
            f"{name}: snapshot {pc.filter(snapshot, is_other)[0].as_py()} added an entry, but the manifest list records another "
            "snapshot; the file was replaced; restore the file, or rewrite the table's manifests"
        )
    return _entries(table, kind, is_container=False, snapshot=snapshot, status=pc.take(_STATUS, status))


def _require_addresses(name: str, table: pa.Table, kind: str) -> None:
    if table["address"].null_count or pc.any(pc.equal(table["address"], "")).as_py():
        raise FormatError(f"{name}: an entry has no path; the file is damaged or not a {kind.replace('_', ' ')}")


def _read_codes(name: str, table: pa.Table, column_name: str, codes: int, *, nullable: bool = True) -> pa.ChunkedArray:
    """Check that the values of an integer column are below `codes`, and return the column.

    If `nullable`, missing values become 0.
    """
    column: pa.ChunkedArray = pc.fill_null(table[column_name], 0 if nullable else -1)
    unknown = pc.filter(column, pc.or_(pc.less(column, 0), pc.greater_equal(column, codes)))
    if len(unknown):
        found = "null" if unknown[0].as_py() == -1 else unknown[0].as_py()
        raise FormatError(f"{name}: an entry has {column_name} {found}, expected 0 to {codes - 1}; gc-assets does not support this code")
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


_DECODERS: Final = {Kind.MANIFEST_LIST: (_LIST_COLUMNS, _build_manifest_rows), Kind.MANIFEST: (_MANIFEST_COLUMNS, _build_file_rows)}
KINDS: Final = frozenset(_DECODERS)


def _label(container: Container) -> str:
    return f"{container.kind.replace('_', ' ')} {container.address}"
