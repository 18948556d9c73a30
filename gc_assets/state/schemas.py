"""The published tables that all kinds of lakes and storages share: columns with a sentence each,
the key, and the version of the layout (design 4).

Times are UTC timestamps in microseconds. Sizes are bytes. Column names are the public contract:
stages take them from this module's schemas, and readers need nothing but Parquet.
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

# Version of the layout of the state, in every receipt. 2: the keys that release 0.4 renamed, such as
# `facts` -> `summary` in receipts. Version 1 (releases up to 0.3) is still read. An earlier release
# refuses a newer version and asks for an upgrade.
SCHEMA_VERSION: Final = 2


@dataclass(frozen=True)
class Table:
    """A published table.

    `key` names the columns that identify a row. `scope` says whether a lake or a storage owns the
    table. `by_apply` is true for tables that only the execution of a plan writes.
    """

    name: str
    doc: str
    scope: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    by_apply: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns as a schema of Arrow's, with their sentences as metadata."""
        from gc_assets.state.arrow_types import schema_of  # Arrow is slow to load, and of no use to a command that shows no rows

        return schema_of(*self.columns)

    def column_doc(self, name: str) -> str:
        return next(column.doc for column in self.columns if column.name == name)


TABLE_UUID = column("table_uuid", STRING, "The table's uuid; null where the lake is one repository.")
TABLE_NAME = column("table_name", STRING, "The table's identifier `namespace.table`; null where the lake is one repository.")


def table(name: str, scope: str, doc: str, key: tuple[str, ...], *columns: Column, by_apply: bool = False) -> Table:
    """Return a table of these columns. `scope` is `lake` or `storage`."""
    return Table(name, doc, scope, key, columns, by_apply)


POLICY_TABLE = table(
    "policy_table",
    "lake",
    "What every run so far understood the policy to be, one row per rule and branch pattern.",
    ("run_id", "rule_id"),
    column("run_id", STRING, "The run that read the policy."),
    column("run_date", DATE, "The run date of that run."),
    column("rule_id", STRING, "Path of the rule in the configuration, or the rule's id in a rules file."),
    column("prefix", STRING, "Path prefix the rule is about; empty for rules over whole histories."),
    column("branch", STRING, "Branch or ref pattern; null means every ref."),
    column("date_to_be_deleted", TIMESTAMP, "Strictly older than this goes; null where the rule keeps for ever or counts commits."),
    column("keep_last", INT, "Number of newest commits kept whatever their age; null where the rule does not count."),
    column("scope", STRING, "`snapshots` for history, `objects` for lifecycle rules over paths."),
    column("enabled", BOOL, "A disabled rule is recorded and does nothing."),
)

CURRENT_RULES = table(
    "current_rules",
    "lake",
    "This run's rules with the bound that the newest finished deletion used.",
    ("rule_id", "prefix", "branch"),
    column("rule_id", STRING, "As in `policy_table`."),
    column("prefix", STRING, "As in `policy_table`."),
    column("branch", STRING, "As in `policy_table`."),
    column("date_to_be_deleted", TIMESTAMP, "This run's bound."),
    column("last_deleted", TIMESTAMP, "The bound of the newest run whose deletion finished in full; null = never."),
    column("scope", STRING, "As in `policy_table`."),
)

LAKE_REFS = table(
    "lake_refs",
    "lake",
    "Every ref and its head as frozen before anything else was read.",
    ("table_uuid", "table_name", "ref_type", "ref_name"),
    TABLE_UUID,
    column("ref_name", STRING, "Branch or tag name."),
    column("ref_type", STRING, "`branch` or `tag`."),
    column("head_commit_id", STRING, "Commit the ref points at; null for a table without snapshots."),
    TABLE_NAME,
    column("properties", PROPERTIES, "The ref's own retention settings."),
)

COMMIT_GRAPH = table(
    "commit_graph",
    "lake",
    "The nodes of the commit graph with their parents and content roots.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    column("commit_id", STRING, "Commit or snapshot id."),
    column("parents", STRINGS, "Parent ids, first parent first."),
    column("committed_at", TIMESTAMP, "When the writer says the commit was made."),
    column("generation", LONG, "Topological level: 0 without known parents, else one more than the highest parent; null on a cycle."),
    column("content_roots", CONTENT_ROOTS, "The metadata objects the commit points at."),
    column("message", STRING, "Commit message or operation."),
    TABLE_NAME,
    column("summary", PROPERTIES, "What else the format says of the commit."),
)

REACHABLE_SNAPSHOTS = table(
    "reachable_snapshots",
    "lake",
    "Every commit with what the policy makes of it and why.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    column("commit_id", STRING, "Commit or snapshot id."),
    column("state", STRING, "`retained`, `expired` (a ref reaches it, the policy does not keep it) or `dangling` (no ref reaches it)."),
    column("refs", STRINGS, "Refs that reach it, 100 at most, in alphabetical order."),
    column("refs_count", INT, "How many refs reach it."),
    column("keep_until", TIMESTAMP, "First moment at which age no longer keeps it; null where something else keeps it or nothing does."),
    column("reason", STRING, "One sentence: the rule that decided."),
    TABLE_NAME,
)

EXPIRY_PLAN = table(
    "expiry_plan",
    "lake",
    "The edits of history that the policy asks for.",
    ("table_uuid", "snapshot_id", "action", "ref_name"),
    TABLE_UUID,
    column("snapshot_id", STRING, "Snapshot that is edited or removed, or the head of the deleted ref."),
    column("action", STRING, "`edit_parent`, `remove_snapshot` or `delete_ref`."),
    column("ref_name", STRING, "Ref whose walk led to the action, or the ref that is deleted; null for removals."),
    column("ref_type", STRING, "`branch` or `tag`; null for removals."),
    column("old_parent_id", STRING, "For `edit_parent`: the parent before, for the same-object check and for undoing."),
    column("new_parent_id", STRING, "For `edit_parent`: the parent afterwards."),
    column("reason", STRING, "One sentence: the rule that decided."),
    TABLE_NAME,
)

EXPIRY_LOG = table(
    "expiry_log",
    "lake",
    "What happened to each planned edit of history.",
    ("table_uuid", "snapshot_id", "action", "ref_name", "plan_id"),
    TABLE_UUID,
    column("snapshot_id", STRING, "As in `expiry_plan`."),
    column("action", STRING, "As in `expiry_plan`."),
    column("ref_name", STRING, "As in `expiry_plan`."),
    column("ref_type", STRING, "As in `expiry_plan`."),
    column("old_parent_id", STRING, "As in `expiry_plan`."),
    column("new_parent_id", STRING, "As in `expiry_plan`."),
    column(
        "outcome", STRING, "`done`, `absent` (the lake was so already), `changed` (the lake no longer asks for it), `failed`, or `undone`."
    ),
    column("error", STRING, "Why the outcome is not `done`."),
    column("reason", STRING, "As in `expiry_plan`."),
    column("at", TIMESTAMP, "When the outcome was known."),
    column("plan_id", STRING, "Plan that was executed."),
    TABLE_NAME,
    by_apply=True,
)

LIVE_CONTENTS = table(
    "live_contents",
    "lake",
    "Every content that a kept commit put, or that is in the whole state of the last kept commit of a ref.",
    ("content_id", "metadata_location", "snapshot_id"),
    column("content_id", STRING, "Content id: one table or view, under whatever key."),
    column("metadata_location", STRING, "Metadata file as the content spells it."),
    column("snapshot_id", STRING, "Snapshot that the content names; null for views and tables without one."),
    column("content_key", STRING, "Key under which the witness shows it, elements joined by dots."),
    column("content_type", STRING, "`ICEBERG_TABLE` or `ICEBERG_VIEW`."),
    column("ref_name", STRING, "One ref that shows it; null for a commit that no ref reaches."),
    column("commit_id", STRING, "One kept commit that put it, or in whose state it is."),
    column("at_head", BOOL, "True: some ref shows it now, so its metadata must exist."),
    column("on_branch", BOOL, "True: some branch shows it now, so that work on the table may go on here."),
)

MANIFEST_ENTRIES = table(
    "manifest_entries",
    "lake",
    "Children of every container ever decoded; append-only, each container once.",
    ("container", "address"),
    column("container", STRING, "Address of the container as its parent spells it."),
    column("address", STRING, "Address of the child as the container spells it."),
    column("key", STRING, "Canonical key of the child in its storage; null for an external address."),
    column("storage", STRING, "Storage the child lies in; null for an external address."),
    column("kind", STRING, "File kind of the child."),
    column("is_container", BOOL, "True if the child names further objects."),
    column("size_bytes", LONG, "Size of the child where the container records it."),
    column("snapshot_id", STRING, "Snapshot that added the entry, where the format says so."),
    column("entry_status", STRING, "`added`, `existing`, `deleted`; null where the format has no status."),
    column("container_size_bytes", LONG, "Length of the container when it was decoded."),
    column("expected_entries", LONG, "Number of entries the container promises for this child."),
    column("must_exist", BOOL, "False for objects a format allows to be absent."),
    column("path", STRING, "Logical path of the object in a lakeFS repository; null elsewhere."),
    column("written_at", TIMESTAMP, "When the entry was written, where the lake says so (lakeFS)."),
)

LIVE_FILES = table(
    "live_files",
    "lake",
    "Every file that a retained commit needs, once per storage, with a witness.",
    ("storage", "key"),
    column("storage", STRING, "Storage the file lies in."),
    column("key", STRING, "Canonical key in that storage."),
    column("key_hash", LONG, "Spark's `xxhash64(key)` (XXH64 of the UTF-8 bytes, seed 42)."),
    column("kind", STRING, "File kind."),
    column("size_bytes", LONG, "Size where metadata records it."),
    column("lake", STRING, "Lake that needs it."),
    column("commit_id", STRING, "One retained commit that reaches it; null for files of the present state."),
    column("container", STRING, "One container that names it; null for content roots."),
    column("table_uuid", STRING, "Table of the witness commit; null where the lake is one repository."),
    column("must_exist", BOOL, "False for files that may rightly be absent."),
    column("container_size_bytes", LONG, "For containers: the length that was decoded; null for other files."),
)

LIVE_FILTER = table(
    "live_filter",
    "storage",
    "A bloom filter over the live keys of a storage, of all lakes together; its false positives keep garbage, never lose a file.",
    ("slice",),
    column("slice", INT, "Number of the slice; a key belongs to slice `pmod(xxhash64(key), slices)`."),
    column("slices", INT, "Number of slices."),
    column("keys", LONG, "Number of keys the slice was sized for."),
    column("filter", BINARY, "The filter with its header (`core/filter.py`)."),
)

STORAGE_INVENTORY = table(
    "storage_inventory",
    "storage",
    "Every object of a storage, as its listing or a report showed it.",
    ("key",),
    column("key", STRING, "Canonical key."),
    column("size_bytes", LONG, "Size."),
    column("last_modified", TIMESTAMP, "The store's own time of last modification."),
    column("etag", STRING, "Identity of the bytes; `<size>-<mtime in ns>-<inode>` on a local disk, `<etag>-<size>-<seconds>` in a bucket."),
    column("version_id", STRING, "Object version where the store has versions."),
    column("storage_class", STRING, "Storage class where the store has them."),
    column("source", STRING, "`listing`, or the kind of report it came from: `s3_inventory`, `plain_inventory`."),
)

ORPHAN_FILES = table(
    "orphan_files",
    "storage",
    "Claimed files that no live set holds and that are older than the grace period, with the reason.",
    ("key",),
    column("key", STRING, "Canonical key."),
    column("size_bytes", LONG, "Size."),
    column("last_modified", TIMESTAMP, "The store's time of last modification."),
    column("etag", STRING, "Identity of the bytes."),
    column("version_id", STRING, "Object version."),
    column("reason", STRING, "`expired`, `unreferenced`, `uncommitted` or `lifecycle`."),
    column("lake", STRING, "Lake that claims the file."),
    column("last_commit_id", STRING, "For `expired`: one expired commit that needs it."),
    column("last_container", STRING, "For `expired`: the container that names it."),
    column("held_by", STRING, "For `expired`: the lake whose history must let go of the file first; null where nothing must."),
    column("held_by_table", STRING, "With `held_by`: the table whose history it is; null where the lake is one repository."),
    column("kind", STRING, "For `expired`: the file kind; null where nothing names the file."),
    column(
        "dangling_commits",
        LONG,
        "For `lifecycle`: at most so many retained commits will hold a path to nothing.",
    ),
    column("table_uuid", STRING, "Table that claims the file."),
)

DELETION_PLAN = table(
    "deletion_plan",
    "storage",
    "What one approval would execute, key by key. The header beside it carries the digest and the gates.",
    ("key",),
    column("key", STRING, "Canonical key."),
    column("action", STRING, "`quarantine`, `purge` or `restore`."),
    column("size_bytes", LONG, "Size."),
    column("etag", STRING, "The object that was planned; another one is left alone."),
    column("version_id", STRING, "Object version."),
    column("reason", STRING, "As in `orphan_files`; for `restore` why it is live again."),
    column("lake", STRING, "Lake that claims the file."),
    column(
        "dangling_commits",
        LONG,
        "For `lifecycle`: at most so many retained commits will hold a path to nothing.",
    ),
    column("after_expiry", BOOL, "True: only once the plan's own expiry actions are done and a fresh mark agrees."),
    column("held_by", STRING, "With `after_expiry`: the lake whose history must let go of the file first."),
    column("held_by_table", STRING, "With `held_by`: the table whose history it is; null where the lake is one repository."),
    column("source_plan_id", STRING, "For `purge` and `restore`: the plan that quarantined the key."),
    column("quarantine", STRING, "How the key is, or was, quarantined: `trash` or `deferred`."),
    column("kind", STRING, "File kind: what names others is moved and purged before what it names, and restored after it."),
)

DELETION_LOG = table(
    "deletion_log",
    "storage",
    "What happened to each planned key.",
    ("key", "version_id", "phase", "plan_id", "run_id"),
    column("key", STRING, "Canonical key."),
    column(
        "version_id", STRING, "Object version that was planned, where the store has versions; of an `abort` the upload's id.", since="0.3"
    ),
    column("run_id", STRING, "The run of `apply` or `restore` that did it; null in logs of 0.2.", since="0.3"),
    column("phase", STRING, "`quarantine`, `purge` or `restore`; `abort` of an upload in parts that nobody finished."),
    column("outcome", STRING, "`done`, `absent`, `changed`, `denied` or `failed`."),
    column("error", STRING, "What the store said, where the outcome is not `done`; of a purge, the older versions that went too."),
    column("at", TIMESTAMP, "When the outcome was known."),
    column("plan_id", STRING, "Plan that was executed."),
    column("size_bytes", LONG, "Planned size."),
    column("etag", STRING, "Identity of the planned object."),
    column("source_plan_id", STRING, "For `purge` and `restore`: the plan that quarantined the key."),
    column("quarantine", STRING, "How the key is, or was, quarantined: `trash` or `deferred`."),
    column("kind", STRING, "As in `deletion_plan`."),
    column("token", LONG, "Fencing token of the lease under which it was done: words of one key are in its order.", since="0.4"),
    column("rehearsal", BOOL, "True where a rehearsal's clock (GC_ASSETS_UNSAFE_NOW) told the time.", since="0.4"),
    by_apply=True,
)

# In the order of the flow. A table that only one kind of lake has is declared in the kind's
# package.
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
