"""Schema of `snapshot_history`, the table that only Iceberg lakes have."""

from __future__ import annotations

from gc_assets.state.columns import BOOL, PROPERTIES, STRING, STRINGS, TIMESTAMP, column
from gc_assets.state.schemas import TABLE_NAME, TABLE_UUID, table

SNAPSHOT_HISTORY = table(
    "snapshot_history",
    "lake",
    "All snapshots in Iceberg metadata, and expired ones during `history.keep`.",
    ("table_uuid", "snapshot_id"),
    TABLE_UUID,
    column("snapshot_id", STRING, "Snapshot id in decimal."),
    TABLE_NAME,
    column("parent_id", STRING, "Parent snapshot id, if any."),
    column("committed_at", TIMESTAMP, "Commit time by the writer's clock."),
    column("operation", STRING, "`append`, `overwrite`, `replace` or `delete`."),
    column("summary", PROPERTIES, "Iceberg's summary, with `sequence-number` and `schema-id`."),
    column("manifest_list", STRING, "Address of the manifest list, which may be deleted."),
    column("refs", STRINGS, "Refs that reached the snapshot when a run last saw it, at most 100."),
    column("expired", BOOL, "True if the table's metadata no longer lists the snapshot."),
    column("expired_at", TIMESTAMP, "Time at which the snapshot was removed, if any."),
    column("reason", STRING, "Rule that removed the snapshot, if any."),
    column("plan_id", STRING, "Plan that removed the snapshot. Null if another tool did."),
)
