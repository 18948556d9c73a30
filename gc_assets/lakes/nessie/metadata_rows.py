"""The metadata file of a table or view as rows of `ENTRY_SCHEMA`: the files it lists, the locations
of the table, and the table's uuid.

Pure: container and bytes in, rows out. A metadata file under Nessie is a container like a manifest
list: it never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from gc_assets.core.documents import parsed_json
from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.metadata import MAIN, Snapshot, TableMetadata, parse_metadata
from gc_assets.lakes.protocol import Container

KeepListed = Literal["all", "refs", "none"]


def table_rows(container: Container, raw: bytes, keep_listed: KeepListed) -> pa.RecordBatch:
    """Returns manifest lists and statistics of the current snapshot and of the snapshots that
    `keep_listed` adds, then locations and uuid.

    Only the current snapshot's files must exist: collectors before us removed what metadata merely
    lists. Raises `FormatError` naming the file.
    """
    return _batch(_table_rows(parse_metadata(container.address, raw), keep_listed))


def view_rows(container: Container, raw: bytes) -> pa.RecordBatch:
    """Returns the location and uuid of a view, which has no file but its metadata file. Raises
    `FormatError` naming the file.
    """
    try:
        document = parsed_json(raw)
        location, uuid = document["location"], document["view-uuid"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{container.address}: {len(raw):,} bytes that are no view metadata with `location` and `view-uuid` "
            f"({type(error).__name__}: {error}); restore the file"
        ) from error
    if not isinstance(location, str) or not isinstance(uuid, str):
        raise FormatError(f"{container.address}: `location` and `view-uuid` must be texts, found {location!r:.80} and {uuid!r:.80}")
    return _batch(_about((location,), uuid))


def _table_rows(table: TableMetadata, keep_listed: KeepListed) -> Iterator[dict[str, Any]]:
    current = next((ref.snapshot_id for ref in table.refs if ref.name == MAIN), None)
    named = {ref.snapshot_id for ref in table.refs}
    for snapshot in table.snapshots:
        if snapshot.snapshot_id == current or keep_listed == "all" or (keep_listed == "refs" and snapshot.snapshot_id in named):
            yield from _snapshot_rows(snapshot, must_exist=snapshot.snapshot_id == current)
    if keep_listed == "all":
        for file in table.loose_files:
            yield _row(file.address, file.kind, size_bytes=file.size_bytes)
    yield from _about(table.locations, table.table_uuid)


def _snapshot_rows(snapshot: Snapshot, *, must_exist: bool) -> Iterator[dict[str, Any]]:
    named = {"snapshot_id": snapshot.snapshot_id, "must_exist": must_exist}
    yield _row(snapshot.manifest_list, Kind.MANIFEST_LIST, is_container=True, **named)
    for file in snapshot.files:
        yield _row(file.address, file.kind, size_bytes=file.size_bytes, **named)


def _about(locations: tuple[str, ...], uuid: str) -> Iterator[dict[str, Any]]:
    for location in locations:
        yield _row(location.rstrip("/") + "/", Kind.TABLE_LOCATION)
    yield _row(f"urn:uuid:{uuid}", Kind.TABLE_UUID)


def _row(address: str, kind: str, **values: Any) -> dict[str, Any]:
    return {"address": address, "kind": kind, "is_container": False, "must_exist": False, **values}


def _batch(rows: Iterator[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=ENTRY_SCHEMA)
