"""Decode metaranges and ranges into the objects that they reference.

The number of entries is compared with the number that the parent container records.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import LOGICAL_ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.addresses import METADATA, Roots
from gc_assets.lakes.lakefs.metaranges import read_metarange
from gc_assets.lakes.lakefs.object_ids import is_object_id
from gc_assets.lakes.lakefs.ranges import read_cached_entries, read_range
from gc_assets.lakes.protocol import Container

CONTAINER_KINDS = (Kind.METARANGE, Kind.RANGE)


def decode(container: Container, raw: bytes, storages: Sequence[str] = (), *, is_renamed: bool = False) -> pa.RecordBatch:
    """Decode a metarange into its ranges, or a range into its objects.

    Args:
        container: The container.
        raw: Content of the container.
        storages: Locations of configured storages. They are needed for addresses with the mount
            point of another machine.
        is_renamed: True if the server may use another address for the namespace than its location.

    Returns:
        One row per child, with the columns of `LOGICAL_ENTRY_SCHEMA`.

    Raises:
        FormatError: If the container is damaged, or does not have the expected number of entries.
    """
    source = f"{container.kind} {container.address}"
    location, _, object_id = container.address.rpartition(METADATA)
    if container.kind not in CONTAINER_KINDS or not location.endswith("/") or not is_object_id(object_id):
        raise FormatError(f"{source}: expected a {' or '.join(CONTAINER_KINDS)} at <namespace>/{METADATA}<64 hexadecimal digits>")
    if container.kind == Kind.METARANGE:
        return _range_rows(location, source, object_id, raw)
    objects = read_range(source, object_id, raw)
    if container.expected_entries is not None and container.expected_entries != objects.num_rows:
        raise FormatError(
            f"{source}: its metarange records {container.expected_entries:,} objects, read {objects.num_rows:,}; "
            "restore the object from a backup"
        )
    return read_cached_entries(Roots.of(location, storages, is_renamed=is_renamed), objects)


def _range_rows(location: str, source: str, object_id: str, raw: bytes) -> pa.RecordBatch:
    rows = [
        {
            "address": f"{location}{METADATA}{item.range_id}",
            "kind": Kind.RANGE,
            "is_container": True,
            "expected_entries": item.records,
            "must_exist": True,
        }
        for item in read_metarange(source, object_id, raw)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=LOGICAL_ENTRY_SCHEMA)
