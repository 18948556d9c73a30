"""Parse ranges, which list the objects of a lakeFS commit.

Format: lakeFS `catalog.proto`, Entry.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import LOGICAL_ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.addresses import BY_PREFIX, FULL, Roots, absolute_addresses, is_full, possible_names
from gc_assets.lakes.lakefs.exact_paths import to_text
from gc_assets.lakes.lakefs.records import RANGES, Records, read_records
from gc_assets.lakes.lakefs.wire import Buffer, Positions, scan_messages

_ADDRESS, _LAST_MODIFIED, _SIZE, _ADDRESS_TYPE = 1, 2, 3, 6
_FIELDS: Final = {_ADDRESS: "address:bytes", _LAST_MODIFIED: "last_modified:bytes", _SIZE: "size", _ADDRESS_TYPE: "address_type"}
_SECONDS, _NANOS = 1, 2
# Users can set any time, but `datetime` and Spark only support these.
_LATEST_SECOND: Final = 253_402_300_799
_EARLIEST_SECOND: Final = -62_135_596_800
OBJECTS: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("is_full", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("written_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


def read_range(source: str, object_id: str, raw: bytes) -> pa.RecordBatch:
    """Read the objects of a range.

    Args:
        source: Name of the range for error messages.
        object_id: Id of the range.
        raw: Content of the range.

    Returns:
        One row per entry, with the columns of `OBJECTS`. Addresses are not converted.

    Raises:
        FormatError: If the range is damaged or has an unknown format.
    """
    records = read_records(source, object_id, raw, RANGES)
    count, buffer = len(records), records.buffer
    fields = scan_messages(buffer, records.data_starts, records.data_sizes, _FIELDS)
    address_starts, address_sizes = fields[_ADDRESS].spans(count)
    if np.any(address_sizes == 0):
        raise buffer.damage_error("an entry without an address")
    types = fields[_ADDRESS_TYPE].numbers(count)
    if np.any((types < BY_PREFIX) | (types > FULL)):
        raise FormatError(f"{source}: an entry has address type {int(types.max())}; this release supports {BY_PREFIX} to {FULL}")
    addresses = buffer.strings(address_starts, address_sizes, "an address")
    columns = [
        _paths(records),
        addresses,
        is_full(addresses, pa.array(types)),
        pa.array(fields[_SIZE].numbers(count)),
        timestamps(buffer, *fields[_LAST_MODIFIED].spans(count)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=OBJECTS)


def timestamps(buffer: Buffer, starts: Positions, sizes: Positions) -> pa.Array:
    """Read `google.protobuf.Timestamp` messages. Times are clipped to the years 1 to 9999."""
    count = len(starts)
    fields = scan_messages(buffer, starts, sizes, {_SECONDS: "seconds", _NANOS: "nanos"})
    seconds = np.clip(fields[_SECONDS].numbers(count), _EARLIEST_SECOND, _LATEST_SECOND)
    micros = np.clip(fields[_NANOS].numbers(count), 0, 999_999_999) // 1_000
    return pa.array(seconds * 1_000_000 + micros).cast(pa.timestamp("us", tz="UTC"))


def read_cached_entries(roots: Roots, objects: pa.RecordBatch) -> pa.RecordBatch:
    """Convert objects to rows of `LOGICAL_ENTRY_SCHEMA`.

    An object with a relative address becomes one row. One with a full address becomes a row for
    each name that it may have. The first name gets the kind `object`. The others get the kind
    `possible_object`, because they do not have to exist.
    """
    relative = objects.filter(pc.invert(objects.column("is_full")))
    certain = _rows(relative, absolute_addresses(roots.location, relative.column("address")), must_exist=True)
    full = objects.filter(objects.column("is_full"))
    if not full.num_rows:
        return certain
    names = [list(possible_names(roots, address)) for address in full.column("address").to_pylist()]
    owners = np.repeat(np.arange(full.num_rows), [len(of_one) for of_one in names])
    spelled = pa.array([name for of_one in names for name in of_one], pa.string())
    possible = _rows(full.take(pa.array(owners)), spelled, must_exist=False)
    kinds = pa.array([Kind.POSSIBLE_OBJECT if position else Kind.OBJECT for of_one in names for position in range(len(of_one))])
    possible = possible.set_column(possible.schema.get_field_index("kind"), possible.schema.field("kind"), kinds)
    return pa.Table.from_batches([certain, possible]).combine_chunks().to_batches()[0]


def _rows(objects: pa.RecordBatch, addresses: pa.Array, *, must_exist: bool) -> pa.RecordBatch:
    count = objects.num_rows
    columns = {
        "address": addresses,
        "kind": pa.repeat(Kind.OBJECT, count),
        "is_container": pa.repeat(pa.scalar(value=False), count),
        "size_bytes": objects.column("size_bytes"),
        "must_exist": pa.repeat(pa.scalar(must_exist), count),
        "path": objects.column("path"),
        "written_at": objects.column("written_at"),
    }
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in LOGICAL_ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=LOGICAL_ENTRY_SCHEMA)


def _paths(records: Records) -> pa.Array:
    """Convert record keys, which are paths, to strings.

    lakeFS does not require UTF-8, so the strings of some keys are not exact.
    """
    try:
        return records.keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([to_text(key) for key in records.keys.to_pylist()], pa.string())
