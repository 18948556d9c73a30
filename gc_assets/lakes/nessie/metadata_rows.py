"""Decode the metadata file of a table or view into rows of `ENTRY_SCHEMA`.

The result has a row for each file and location in the metadata, and for the table's UUID. All
functions are pure. Nessie never changes a metadata file, so metadata files are containers
(immutable metadata objects), just like manifest lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.metadata import MAIN, Snapshot, TableMetadata, parse_metadata, parse_view
from gc_assets.lakes.protocol import Container

KeepListed = Literal["all", "refs", "none"]


def table_rows(container: Container, raw: bytes, keep_listed: KeepListed) -> pa.RecordBatch:
    """Return the files of a table's retained snapshots, followed by its locations and UUID.

    The current snapshot is always retained, and `keep_listed` selects other snapshots that the
    metadata lists. Only files of the current snapshot must exist, because another collector may
    have removed older ones.

    Raises:
        FormatError: If the metadata is invalid. The message shows the file.
    """
    return _batch(_table_rows(parse_metadata(container.address, raw), keep_listed))


def view_rows(container: Container, raw: bytes) -> pa.RecordBatch:
    """Return the location and UUID of a view, which has no files other than its metadata.

    Raises:
        FormatError: If the metadata is invalid. The message shows the file.
    """
    view = parse_view(container.address, raw)
    return _batch(_identity_rows((view.location,), view.view_uuid))


def _table_rows(table: TableMetadata, keep_listed: KeepListed) -> Iterator[dict[str, Any]]:
    current = next((ref.snapshot_id for ref in table.refs if ref.name == MAIN), None)
    named = {ref.snapshot_id for ref in table.refs}
    for snapshot in table.snapshots:
        if snapshot.snapshot_id == current or keep_listed == "all" or (keep_listed == "refs" and snapshot.snapshot_id in named):
            yield from _snapshot_rows(snapshot, must_exist=snapshot.snapshot_id == current)
    if keep_listed == "all":
        for file in table.unlisted_statistics:
            yield _row(file.address, file.kind, size_bytes=file.size_bytes)
    yield from _identity_rows(table.locations, table.table_uuid)


def _snapshot_rows(snapshot: Snapshot, *, must_exist: bool) -> Iterator[dict[str, Any]]:
    named = {"snapshot_id": snapshot.snapshot_id, "must_exist": must_exist}
    yield _row(snapshot.manifest_list, Kind.MANIFEST_LIST, is_container=True, **named)
    for file in snapshot.files:
        yield _row(file.address, file.kind, size_bytes=file.size_bytes, **{**named, "must_exist": must_exist and file.must_exist})


def _identity_rows(locations: tuple[str, ...], uuid: str) -> Iterator[dict[str, Any]]:
    for location in locations:
        yield _row(location.rstrip("/") + "/", Kind.TABLE_LOCATION)
    yield _row(f"urn:uuid:{uuid}", Kind.TABLE_UUID)


def _row(address: str, kind: str, **values: Any) -> dict[str, Any]:
    return {"address": address, "kind": kind, "is_container": False, "must_exist": False, **values}


def _batch(rows: Iterator[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=ENTRY_SCHEMA)
