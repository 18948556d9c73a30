"""The rows that decoders of all kinds of lakes yield, as schemas of Arrow's."""

from __future__ import annotations

import pyarrow as pa

# A decoder yields one row per child of a container. `address` is absolute, as the writer spelled
# it. `size_bytes` and `expected_entries` describe the child where the container says so.
# `entry_status` is `added` | `existing` | `deleted` where the format has it, else null.
# `must_exist` is as in `ContentRoot`.
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

# A lake may name its objects by paths of its own (lakeFS). Its rows also hold the logical path, and
# the time at which the entry was written.
LOGICAL_ENTRY_SCHEMA = pa.schema([*ENTRY_SCHEMA, pa.field("path", pa.string()), pa.field("written_at", pa.timestamp("us", tz="UTC"))])
