"""Arrow schemas of the rows that lakes decode from containers, such as manifests."""

from __future__ import annotations

import pyarrow as pa

# Decoding a container gives one row for each child, i.e. each object that it references. `address`
# is absolute, with the spelling used in the container. The columns `size_bytes` and
# `expected_entries` describe the child and are null if the container does not record them. The
# column `entry_status` contains `added`, `existing` or `deleted`, or null if the format does not
# have a status. See `ContentRoot` for `must_exist`.
ENTRY_SCHEMA = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("is_container", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("expected_entries", pa.int64()),
        pa.field("snapshot_id", pa.string()),
        pa.field("entry_status", pa.string()),
        pa.field("must_exist", pa.bool_(), nullable=False),
    ]
)

# Formats with logical paths (lakeFS) add the path and the time at which the entry was written.
LOGICAL_ENTRY_SCHEMA = pa.schema([*ENTRY_SCHEMA, pa.field("path", pa.string()), pa.field("written_at", pa.timestamp("us", tz="UTC"))])
