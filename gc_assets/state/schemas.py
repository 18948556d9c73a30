"""Define the published tables that all kinds of lakes and storages share.

Times are UTC timestamps in microseconds, and sizes are in bytes. Column names are a public
contract, because users can read the tables with any Parquet reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gc_assets.state.columns import (
    BINARY,
    BOOL,
    CONTENT_ROOTS,
    DATE,
    INT,
    LONG,
    PROPERTIES,
    STRING,
    STRINGS,
    TIMESTAMP,
    Column,
    column,
)

if TYPE_CHECKING:
    import pyarrow as pa

# The version of the layout, which every receipt contains. In version 2, release 0.4 renamed keys,
# for example `facts` to `summary` in receipts. Version 1, written by releases up to 0.3, can still
# be read. Earlier releases reject a newer version and ask the user to upgrade.
SCHEMA_VERSION: Final = 2


@dataclass(frozen=True)
class Table:
    """The definition of a published table.

    Attributes:
        scope: `lake` or `storage`, depending on what the table belongs to.
        key: The columns that identify a row.
        by_apply: True if only the execution of plans writes the table.
    """

    name: str
    doc: str
    scope: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    by_apply: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, which contains the descriptions of columns as metadata."""
        from gc_assets.state.arrow_types import schema_of  # slow to import, and not needed by commands that show no rows

        return schema_of(*self.columns)

    def column_doc(self, name: str) -> str:
        return next(column.doc for column in self.columns if column.name == name)


TABLE_UUID = column("table_uuid", STRING, "Null in a lake with one repository.")
TABLE_NAME = column("table_name", STRING, "`namespace.table`. Null in a lake with one repository.")


def table(name: str, scope: str, doc: str, key: tuple[str, ...], *columns: Column, by_apply: bool = False) -> Table:
    """Define a table. `scope` is `lake` or `storage`."""
    return Table(name, doc, scope, key, columns, by_apply)


POLICY_TABLE = table(
    "policy_table",
    "lake",
    "The retention policy of each run, by rule and branch pattern.",
    ("run_id", "rule_id"),
    column("run_id", STRING, "Run that read the policy."),
    column("run_date", DATE, "Run date of this run."),
    column("rule_id", STRING, "Path of the rule in the configuration, or its id in a rules file."),
    column("prefix", STRING, "Path prefix. Empty for whole histories."),
    column("branch", STRING, "Pattern for refs. Null for every ref."),
    column("date_to_be_deleted", TIMESTAMP, "Strictly older commits or objects expire. Null if the rule keeps forever or counts commits."),
    column("keep_last", INT, "Number of newest commits to keep, if the rule counts."),
    column("scope", STRING, "`snapshots` for history, `objects` for lifecycle rules by path."),
    column("enabled", BOOL, "False if the rule has no effect."),
    column("glob", STRING, "Pattern for paths under `prefix`. Null for all.", since="0.4"),
)

CURRENT_RULES = table(
    "current_rules",
    "lake",
    "The rules of this run, with the time bound of the newest finished deletion.",
    ("rule_id", "prefix", "branch"),
    column("rule_id", STRING, "As in `policy_table`."),
    column("prefix", STRING, "As in `policy_table`."),
    column("branch", STRING, "As in `policy_table`."),
    column("date_to_be_deleted", TIMESTAMP, "Time bound of this run."),
    column("last_deleted", TIMESTAMP, "Time bound of the newest finished deletion, if any."),
    column("scope", STRING, "As in `policy_table`."),
    column("glob", STRING, "As in `policy_table`.", since="0.4"),
)

LAKE_REFS = table(
    "lake_refs",
    "lake",
    "Every ref and its head, read before anything else.",
    ("table_uuid", "table_name", "ref_type", "ref_name"),
    TABLE_UUID,
    column("ref_name", STRING, "Branch or tag name."),
    column("ref_type", STRING, "`branch` or `tag`."),
    column("head_commit_id", STRING, "Head commit id, if the table has snapshots."),
    TABLE_NAME,
    column("properties", PROPERTIES, "The ref's own retention settings."),
)

COMMIT_GRAPH = table(
    "commit_graph",
    "lake",
    "The commits of the lake with their parents and root metadata objects.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    column("commit_id", STRING, "Commit or snapshot id."),
    column("parents", STRINGS, "Parent ids in order."),
    column("committed_at", TIMESTAMP, "Commit time by the writer's clock."),
    column("generation", LONG, "Topological level, from 0. Null on a cycle."),
    column("content_roots", CONTENT_ROOTS, "Metadata objects that the commit points to."),
    column("message", STRING, "Commit message or operation."),
    TABLE_NAME,
    column("summary", PROPERTIES, "Further properties."),
    column("parents_differ", BOOL, "True if several names of the table list different parents.", since="0.4"),
)

REACHABLE_SNAPSHOTS = table(
    "reachable_snapshots",
    "lake",
    "Every commit with its state under the policy, and the reason.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    column("commit_id", STRING, "Commit or snapshot id."),
    column("state", STRING, "`retained`, `expired`, or `dangling` (not reachable from any ref)."),
    column("refs", STRINGS, "Refs that reach the commit, at most 100."),
    column("refs_count", INT, "Number of refs that reach the commit."),
    column("keep_until", TIMESTAMP, "Time until which the commit is too young to expire, if any."),
    column("reason", STRING, "Policy rule that determined the state or the action."),
    TABLE_NAME,
)

EXPIRY_PLAN = table(
    "expiry_plan",
    "lake",
    "The expiry actions that the policy requires.",
    ("table_uuid", "snapshot_id", "action", "ref_name"),
    TABLE_UUID,
    column(
        "snapshot_id",
        STRING,
        "Edited or removed snapshot, head of the ref, or removed schema or partition spec.",
    ),
    column(
        "action",
        STRING,
        "`edit_parent`, `remove_snapshot`, `delete_ref`, `delete_idle_branch`, `delete_paths`, `remove_schema` or `remove_spec`.",
    ),
    column("ref_name", STRING, "Ref that requires the action or is deleted. Null for removals."),
    column("ref_type", STRING, "`branch` or `tag`. Null for removals."),
    column("old_parent_id", STRING, "Previous parent, or the parent of a removed snapshot if an undo needs it."),
    column("new_parent_id", STRING, "New parent."),
    column("reason", STRING, "Policy rule that determined the state or the action."),
    TABLE_NAME,
    column(
        "details",
        STRING,
        "JSON: what an undo needs. For `delete_paths`: paths, bytes and rules.",
        since="0.4",
    ),
)

EXPIRY_LOG = table(
    "expiry_log",
    "lake",
    "The outcome of each planned expiry action.",
    ("table_uuid", "snapshot_id", "action", "ref_name", "plan_id"),
    TABLE_UUID,
    column("snapshot_id", STRING, "As in `expiry_plan`."),
    column("action", STRING, "As in `expiry_plan`."),
    column("ref_name", STRING, "As in `expiry_plan`."),
    column("ref_type", STRING, "As in `expiry_plan`."),
    column("old_parent_id", STRING, "As in `expiry_plan`."),
    column("new_parent_id", STRING, "As in `expiry_plan`."),
    column("outcome", STRING, "`done`, `absent` (already done), `changed` (no longer required), `denied`, `failed` or `undone`."),
    column("error", STRING, "Error if the outcome is not `done`."),
    column("reason", STRING, "As in `expiry_plan`."),
    column("at", TIMESTAMP, "Time of the outcome."),
    column("plan_id", STRING, "The executed plan."),
    TABLE_NAME,
    column("details", STRING, "As in `expiry_plan`.", since="0.4"),
    by_apply=True,
)

LIVE_CONTENTS = table(
    "live_contents",
    "lake",
    "Contents put by a retained commit, or contained in the last retained commit of a ref.",
    ("content_id", "metadata_location", "snapshot_id"),
    column("content_id", STRING, "Id of a table or view under any key."),
    column("metadata_location", STRING, "Address of the metadata file, as in the content."),
    column("snapshot_id", STRING, "Snapshot of the content, if any."),
    column("content_key", STRING, "Key in the witness commit, joined by dots."),
    column("content_type", STRING, "`ICEBERG_TABLE` or `ICEBERG_VIEW`."),
    column("ref_name", STRING, "A ref that contains the content, if any."),
    column("commit_id", STRING, "A retained commit that put or contains the content."),
    column("at_head", BOOL, "True if the head of a ref contains the content."),
    column("on_branch", BOOL, "True if the head of a branch contains the content."),
)

MANIFEST_ENTRIES = table(
    "manifest_entries",
    "lake",
    "Entries of all decoded containers. Append-only, with each container once.",
    ("container", "address"),
    column("container", STRING, "Address of the container, as in its parent."),
    column("address", STRING, "Address of the child, as in the container."),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("storage", STRING, "Storage of the object. Null for an external address."),
    column("kind", STRING, "File kind."),
    column("is_container", BOOL, "True if the child references further objects."),
    column("size_bytes", LONG, "Size, if known."),
    column("snapshot_id", STRING, "Snapshot that added the entry, if known."),
    column("entry_status", STRING, "`added`, `existing` or `deleted`, if the format has a status."),
    column("container_size_bytes", LONG, "Length of the container when it was decoded."),
    column("expected_entries", LONG, "Number of entries of the child, if known."),
    column("must_exist", BOOL, "False if the object may be absent."),
    column("path", STRING, "Logical path in lakeFS."),
    column("written_at", TIMESTAMP, "Time of the entry in lakeFS."),
)

LIVE_FILES = table(
    "live_files",
    "lake",
    "Files that a retained commit needs, once per storage, with a witness. Rows are computed when read.",
    ("storage", "key"),
    column("storage", STRING, "Storage of the object. Null for an external address."),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("key_hash", LONG, "Spark's `xxhash64(key)` (XXH64 of the UTF-8 bytes, seed 42)."),
    column("kind", STRING, "File kind."),
    column("size_bytes", LONG, "Size, if known."),
    column("lake", STRING, "Lake that needs the file."),
    column("commit_id", STRING, "A retained commit that needs the file. Null for files of the current state."),
    column("container", STRING, "A container that references the file. Null if the commit references it directly."),
    TABLE_UUID,
    column("must_exist", BOOL, "False if the object may be absent."),
    column("container_size_bytes", LONG, "Length of the container when it was decoded."),
)

LIVE_FILTER = table(
    "live_filter",
    "storage",
    "A Bloom filter over the live keys of all lakes in a storage. A false positive only keeps garbage.",
    ("slice",),
    column("slice", INT, "Slice of a key: `pmod(xxhash64(key), slices)`."),
    column("slices", INT, "Number of slices."),
    column("keys", LONG, "Number of keys that the slice was sized for."),
    column("filter", BINARY, "The filter with its header (`core/filter.py`)."),
)

STORAGE_INVENTORY = table(
    "storage_inventory",
    "storage",
    "All objects of a storage. Runs between listings have no rows and refer to an earlier run.",
    ("key",),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("size_bytes", LONG, "Size, if known."),
    column("last_modified", TIMESTAMP, "Last modification by the store's clock."),
    column("etag", STRING, "Identity: `<size>-<mtime in ns>-<inode>` on a disk, `<etag or generation>-<size>-<seconds>` in a bucket."),
    column("version_id", STRING, "Object version."),
    column("storage_class", STRING, "Storage class."),
    column("source", STRING, "`listing`, or a kind of report, such as `s3_inventory`."),
)

ORPHAN_FILES = table(
    "orphan_files",
    "storage",
    "Claimed files that are older than the grace period and not live.",
    ("key",),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("size_bytes", LONG, "Size, if known."),
    column("last_modified", TIMESTAMP, "Last modification by the store's clock."),
    column("etag", STRING, "Identity: `<size>-<mtime in ns>-<inode>` on a disk, `<etag or generation>-<size>-<seconds>` in a bucket."),
    column("version_id", STRING, "Object version."),
    column("reason", STRING, "`expired`, `unreferenced`, `uncommitted`, `lifecycle`, `dropped` or `foreign`."),
    column("lake", STRING, "Lake that claims the file."),
    column("last_commit_id", STRING, "For `expired`: an expired commit that needs the file."),
    column("last_container", STRING, "For `expired`: the container that references the file."),
    column("held_by", STRING, "Lake whose history must be edited first, if any."),
    column("held_by_table", STRING, "Table whose history must be edited first, if any."),
    column("kind", STRING, "File kind."),
    column(
        "dangling_commits",
        LONG,
        "For `lifecycle`: upper bound of the retained commits that reference the file.",
    ),
    column("table_uuid", STRING, "Table that claims the file."),
    column(
        "foreign_rule",
        STRING,
        "For `foreign`: `new_claim`, `unknown_directory`, `hidden_path`, `unknown_path` or `other_format`.",
        since="0.4",
    ),
)

DELETION_PLAN = table(
    "deletion_plan",
    "storage",
    "The actions that one approval executes, one row per key.",
    ("key",),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("action", STRING, "`quarantine`, `purge` or `restore`."),
    column("size_bytes", LONG, "Size, if known."),
    column("etag", STRING, "Identity: `<size>-<mtime in ns>-<inode>` on a disk, `<etag or generation>-<size>-<seconds>` in a bucket."),
    column("version_id", STRING, "Object version."),
    column("reason", STRING, "As in `orphan_files`, or why a quarantined file is restored or purged."),
    column("lake", STRING, "Lake that claims the file."),
    column(
        "dangling_commits",
        LONG,
        "For `lifecycle`: upper bound of the retained commits that reference the file.",
    ),
    column("after_expiry", BOOL, "True if history edits and another check for live files must come first."),
    column("held_by", STRING, "Lake whose history must be edited first, if any."),
    column("held_by_table", STRING, "Table whose history must be edited first, if any."),
    column("source_plan_id", STRING, "Plan that quarantined the file."),
    column("quarantine", STRING, "Quarantine mode: `trash`, `versioned` or `deferred`."),
    column("kind", STRING, "File kind."),
)

DELETION_LOG = table(
    "deletion_log",
    "storage",
    "The outcome of each planned key.",
    ("key", "version_id", "phase", "plan_id", "run_id"),
    column("key", STRING, "Canonical key. Null for an external address."),
    column("version_id", STRING, "Planned object version, or for `abort` the upload id.", since="0.3"),
    column("run_id", STRING, "The `apply` or `restore` run. Null in logs of 0.2.", since="0.3"),
    column("phase", STRING, "`quarantine`, `purge`, `restore`, or `abort` (an unfinished upload)."),
    column("outcome", STRING, "`done`, `absent`, `changed`, `denied` or `failed`."),
    column("error", STRING, "Error if the outcome is not `done`. For a purge, also deleted older versions."),
    column("at", TIMESTAMP, "Time of the outcome."),
    column("plan_id", STRING, "The executed plan."),
    column("size_bytes", LONG, "Size, if known."),
    column("etag", STRING, "Identity: `<size>-<mtime in ns>-<inode>` on a disk, `<etag or generation>-<size>-<seconds>` in a bucket."),
    column("source_plan_id", STRING, "Plan that quarantined the file."),
    column("quarantine", STRING, "Quarantine mode: `trash`, `versioned` or `deferred`."),
    column("kind", STRING, "File kind."),
    column("token", LONG, "Fencing token of the lease.", since="0.4"),
    column("rehearsal", BOOL, "True in a rehearsal.", since="0.4"),
    column("permanent", BOOL, "True if the store refused the action permanently.", since="0.4"),
    column("ends_record", BOOL, "True if a `deferred` record ended because the object changed or is live.", since="0.4"),
    by_apply=True,
)

# In the order in which a run publishes them. If only one kind of lake has a table, the package of
# that kind defines it.
SHARED_TABLES: Final = (
    POLICY_TABLE,
    CURRENT_RULES,
    LAKE_REFS,
    COMMIT_GRAPH,
    REACHABLE_SNAPSHOTS,
    EXPIRY_PLAN,
    EXPIRY_LOG,
    LIVE_CONTENTS,
    MANIFEST_ENTRIES,
    LIVE_FILES,
    LIVE_FILTER,
    STORAGE_INVENTORY,
    ORPHAN_FILES,
    DELETION_PLAN,
    DELETION_LOG,
)
