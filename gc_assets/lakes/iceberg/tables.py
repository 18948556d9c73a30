"""The table that only lakes of kind iceberg have."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, PROPERTIES, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import TABLE_NAME, TABLE_UUID, table

SNAPSHOT_HISTORY = table(
    "snapshot_history",
    "lake",
    "Every snapshot that Iceberg metadata lists, and every expired one for as long as `history.keep` says.",
    ("table_uuid", "snapshot_id"),
    TABLE_UUID,
    column("snapshot_id", STRING, "Snapshot id in decimal."),
    TABLE_NAME,
    column("parent_id", STRING, "Parent snapshot; null for the first."),
    column("committed_at", TIMESTAMP, "When the writer says the snapshot was committed."),
    column("operation", STRING, "`append`, `overwrite`, `replace` or `delete`."),
    column("summary", PROPERTIES, "Iceberg's snapshot summary, with `sequence-number` and `schema-id`."),
    column("manifest_list", STRING, "Address of the manifest list; of an expired snapshot it may be gone."),
    column("refs", STRINGS, "Refs that reached it when it was last seen, 100 at most."),
    column("expired", BOOL, "True once the table's metadata no longer lists it."),
    column("expired_at", TIMESTAMP, "When it was removed, by the plan named beside; null while it is listed."),
    column("reason", STRING, "The rule by which it was removed; null while it is listed."),
    column("plan_id", STRING, "The plan that removed it; null while it is listed, or where another tool removed it."),
)
