"""Arrow schemas for the rows returned by decoders."""

from __future__ import annotations

import pyarrow as pa

# A decoder returns one row per child of a container. `address` is absolute and spelled as in the
# container. The columns `size_bytes` and `expected_entries` describe the child, and are null if the
# container does not record them. The column `entry_status` is `added`, `existing` or `deleted`, or
# null if the format has no status. `must_exist` has the meaning of `ContentRoot.must_exist`.
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

# For lakes with logical paths (lakeFS), the rows also contain the path and the time at which the
# entry was written.
LOGICAL_ENTRY_SCHEMA = pa.schema([*ENTRY_SCHEMA, pa.field("path", pa.string()), pa.field("written_at", pa.timestamp("us", tz="UTC"))])
