"""Every published table: its columns with a sentence each, its key, and the version of its layout (design section 4).

Times are UTC timestamps in microseconds, sizes are bytes. Column names are the public contract; stages refer to them
through this module's schemas, and readers need nothing but Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1

TIMESTAMP = pa.timestamp("us", tz="UTC")
STRING = pa.string()
LONG = pa.int64()
BOOL = pa.bool_()
STRINGS = pa.list_(pa.field("element", STRING))
CONTENT_ROOT = pa.struct(
    [
        pa.field("address", STRING, nullable=False),
        pa.field("kind", STRING, nullable=False),
        pa.field("is_container", BOOL, nullable=False),
        pa.field("size_bytes", LONG),
        pa.field("must_exist", BOOL, nullable=False),
        pa.field("storage", STRING),
        pa.field("key", STRING),
    ]
)


@dataclass(frozen=True, slots=True)
class Table:
    """A published table. `key` names the columns that identify a row; `scope` says whether a lake or a storage owns it.

    `kinds` are the lake kinds that have it (empty: all); `by_apply` is true for what only the execution of a plan writes.
    """

    name: str
    doc: str
    scope: str
    key: tuple[str, ...]
    schema: pa.Schema
    kinds: tuple[str, ...] = ()
    by_apply: bool = False

    def is_of(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds

    def column_doc(self, name: str) -> str:
        return (self.schema.field(name).metadata or {}).get(b"doc", b"").decode()


def _field(name: str, type_: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, type_, metadata={"doc": doc})


TABLE_UUID = _field("table_uuid", STRING, "Iceberg table uuid; null outside Iceberg lakes.")
TABLE_NAME = _field("table_name", STRING, "Iceberg table identifier `namespace.table`; null outside Iceberg lakes.")


def _table(
    name: str, scope: str, doc: str, key: tuple[str, ...], *fields: pa.Field, kinds: tuple[str, ...] = (), by_apply: bool = False
) -> Table:
    return Table(name, doc, scope, key, pa.schema(fields), kinds, by_apply)


POLICY_TABLE = _table(
    "policy_table",
    "lake",
    "What every run so far understood the policy to be, one row per rule and branch pattern.",
    ("run_id", "rule_id"),
    _field("run_id", STRING, "The run that read the policy."),
    _field("run_date", pa.date32(), "The run date of that run."),
    _field("rule_id", STRING, "Path of the rule in the configuration, or the rule's id in a rules file."),
    _field("prefix", STRING, "Path prefix the rule is about; empty for rules over whole histories."),
    _field("branch", STRING, "Branch or ref pattern; null means every ref."),
    _field("date_to_be_deleted", TIMESTAMP, "Strictly older than this goes; null where the rule keeps for ever or counts commits."),
    _field("keep_last", pa.int32(), "Number of newest commits kept whatever their age; null where the rule does not count."),
    _field("scope", STRING, "`snapshots` for history, `objects` for lifecycle rules over paths."),
    _field("enabled", BOOL, "A disabled rule is recorded and does nothing."),
)

CURRENT_RULES = _table(
    "current_rules",
    "lake",
    "This run's rules with the bound that the newest finished deletion used.",
    ("rule_id", "prefix", "branch"),
    _field("rule_id", STRING, "As in `policy_table`."),
    _field("prefix", STRING, "As in `policy_table`."),
    _field("branch", STRING, "As in `policy_table`."),
    _field("date_to_be_deleted", TIMESTAMP, "This run's bound."),
    _field("last_deleted", TIMESTAMP, "The bound of the newest run whose deletion finished in full; null = never."),
    _field("scope", STRING, "As in `policy_table`."),
)

LAKE_REFS = _table(
    "lake_refs",
    "lake",
    "Every ref and its head as frozen before anything else was read.",
    ("table_uuid", "table_name", "ref_type", "ref_name"),
    TABLE_UUID,
    _field("ref_name", STRING, "Branch or tag name."),
    _field("ref_type", STRING, "`branch` or `tag`."),
    _field("head_commit_id", STRING, "Commit the ref points at; null for a table without snapshots."),
    TABLE_NAME,
    _field("properties", pa.map_(STRING, STRING), "The ref's own retention settings."),
)

COMMIT_GRAPH = _table(
    "commit_graph",
    "lake",
    "The nodes of the commit graph with their parents and content roots.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    _field("commit_id", STRING, "Commit or snapshot id."),
    _field("parents", STRINGS, "Parent ids, first parent first."),
    _field("committed_at", TIMESTAMP, "When the writer says the commit was made."),
    _field("generation", LONG, "Topological level: 0 without known parents, else one more than the highest parent; null on a cycle."),
    _field("content_roots", pa.list_(pa.field("element", CONTENT_ROOT)), "The metadata objects the commit points at."),
    _field("message", STRING, "Commit message or operation."),
    TABLE_NAME,
    _field("summary", pa.map_(STRING, STRING), "What else the format says of the commit."),
)

REACHABLE_SNAPSHOTS = _table(
    "reachable_snapshots",
    "lake",
    "Every commit with what the policy makes of it and why.",
    ("table_uuid", "commit_id"),
    TABLE_UUID,
    _field("commit_id", STRING, "Commit or snapshot id."),
    _field("state", STRING, "`retained`, `expired` (a ref reaches it, the policy does not keep it) or `dangling` (no ref reaches it)."),
    _field("refs", STRINGS, "Refs that reach it, 100 at most, in alphabetical order."),
    _field("refs_count", pa.int32(), "How many refs reach it."),
    _field("keep_until", TIMESTAMP, "First moment at which age no longer keeps it; null where something else keeps it or nothing does."),
    _field("reason", STRING, "One sentence: the rule that decided."),
    TABLE_NAME,
)

UNCOMMITTED_OBJECTS = _table(
    "uncommitted_objects",
    "lake",
    "lakeFS: objects that staging areas name and no commit needs to; they are live.",
    ("storage", "key", "branch", "path"),
    _field("storage", STRING, "Storage the object lies in; null for an external address."),
    _field("key", STRING, "Canonical key in that storage, or the address of an external object."),
    _field("branch", STRING, "Branch that has it staged; null where only the server's own list names it."),
    _field("path", STRING, "Logical path; null where only the server's own list names it."),
    _field("created_at", TIMESTAMP, "When the entry was written."),
    kinds=("lakefs",),
)

POTENTIAL_COMMITS = _table(
    "potential_commits",
    "lake",
    "lakeFS: commits that may hold objects which the lifecycle rules release and no finished run has handled yet.",
    ("commit_id",),
    _field("commit_id", STRING, "Commit id."),
    _field("branches", STRINGS, "Branches that a rule names and that reach it; an empty name stands for all other branches together."),
    _field("last_deleted", TIMESTAMP, "The bound used: the latest over the branches of the minimum; null = from the beginning."),
    kinds=("lakefs",),
)

LIFECYCLE_OBJECTS = _table(
    "lifecycle_objects",
    "lake",
    "lakeFS: objects that a lifecycle rule releases under at least one path, and whether another reference keeps them.",
    ("storage", "key"),
    _field("storage", STRING, "Storage the object lies in."),
    _field("key", STRING, "Canonical key."),
    _field("paths", STRINGS, "Logical paths that name it, 100 at most, in alphabetical order."),
    _field("matched_rules", STRINGS, "Ids of the rules that release it."),
    _field("deduplicated", BOOL, "True: it is kept, because another path, branch, tag or staging area needs it, or once did."),
    _field("size_bytes", LONG, "Size where the entries record it."),
    _field("commits", LONG, "At most so many retained commits will hold a dangling path once it is gone: one counts once for each path."),
    _field("potential", BOOL, "True: one of `potential_commits` holds it."),
    kinds=("lakefs",),
)

EXPIRY_PLAN = _table(
    "expiry_plan",
    "lake",
    "The edits of history that the policy asks for.",
    ("table_uuid", "snapshot_id", "action", "ref_name"),
    TABLE_UUID,
    _field("snapshot_id", STRING, "Snapshot that is edited or removed, or the head of the deleted ref."),
    _field("action", STRING, "`edit_parent`, `remove_snapshot` or `delete_ref`."),
    _field("ref_name", STRING, "Ref whose walk led to the action, or the ref that is deleted; null for removals."),
    _field("ref_type", STRING, "`branch` or `tag`; null for removals."),
    _field("old_parent_id", STRING, "For `edit_parent`: the parent before, for the same-object check and for undoing."),
    _field("new_parent_id", STRING, "For `edit_parent`: the parent afterwards."),
    _field("reason", STRING, "One sentence: the rule that decided."),
    TABLE_NAME,
)

EXPIRY_LOG = _table(
    "expiry_log",
    "lake",
    "What happened to each planned edit of history.",
    ("table_uuid", "snapshot_id", "action", "ref_name", "plan_id"),
    TABLE_UUID,
    _field("snapshot_id", STRING, "As in `expiry_plan`."),
    _field("action", STRING, "As in `expiry_plan`."),
    _field("ref_name", STRING, "As in `expiry_plan`."),
    _field("ref_type", STRING, "As in `expiry_plan`."),
    _field("old_parent_id", STRING, "As in `expiry_plan`."),
    _field("new_parent_id", STRING, "As in `expiry_plan`."),
    _field(
        "outcome", STRING, "`done`, `absent` (the lake was so already), `changed` (the lake no longer asks for it), `failed`, or `undone`."
    ),
    _field("error", STRING, "Why the outcome is not `done`."),
    _field("reason", STRING, "As in `expiry_plan`."),
    _field("at", TIMESTAMP, "When the outcome was known."),
    _field("plan_id", STRING, "Plan that was executed."),
    TABLE_NAME,
    kinds=("iceberg", "icechunk"),
    by_apply=True,
)

SNAPSHOT_HISTORY = _table(
    "snapshot_history",
    "lake",
    "Every snapshot that Iceberg metadata lists, and every expired one for as long as `history.keep` says.",
    ("table_uuid", "snapshot_id"),
    TABLE_UUID,
    _field("snapshot_id", STRING, "Snapshot id in decimal."),
    TABLE_NAME,
    _field("parent_id", STRING, "Parent snapshot; null for the first."),
    _field("committed_at", TIMESTAMP, "When the writer says the snapshot was committed."),
    _field("operation", STRING, "`append`, `overwrite`, `replace` or `delete`."),
    _field("summary", pa.map_(STRING, STRING), "Iceberg's snapshot summary, with `sequence-number` and `schema-id`."),
    _field("manifest_list", STRING, "Address of the manifest list; of an expired snapshot it may be gone."),
    _field("refs", STRINGS, "Refs that reached it when it was last seen, 100 at most."),
    _field("expired", BOOL, "True once the table's metadata no longer lists it."),
    _field("expired_at", TIMESTAMP, "When it was removed, by the plan named beside; null while it is listed."),
    _field("reason", STRING, "The rule by which it was removed; null while it is listed."),
    _field("plan_id", STRING, "The plan that removed it; null while it is listed, or where another tool removed it."),
    kinds=("iceberg",),
)

LIVE_CONTENTS = _table(
    "live_contents",
    "lake",
    "Every content that a kept commit put, or that is in the whole state of the last kept commit of a ref.",
    ("content_id", "metadata_location", "snapshot_id"),
    _field("content_id", STRING, "Nessie's content id: one table or view, under whatever key."),
    _field("metadata_location", STRING, "Metadata file as the content spells it."),
    _field("snapshot_id", STRING, "Iceberg snapshot that the content names; null for views and tables without one."),
    _field("content_key", STRING, "Key under which the witness shows it, elements joined by dots."),
    _field("content_type", STRING, "`ICEBERG_TABLE` or `ICEBERG_VIEW`."),
    _field("ref_name", STRING, "One ref that shows it; null for a commit that no ref reaches."),
    _field("commit_id", STRING, "One kept commit that put it, or in whose state it is."),
    _field("at_head", BOOL, "True: some ref shows it now, so its metadata must exist."),
    _field("on_branch", BOOL, "True: some branch shows it now, so that work on the table may go on here."),
    kinds=("nessie",),
)

MANIFEST_ENTRIES = _table(
    "manifest_entries",
    "lake",
    "Children of every container ever decoded; append-only, each container once.",
    ("container", "address"),
    _field("container", STRING, "Address of the container as its parent spells it."),
    _field("address", STRING, "Address of the child as the container spells it."),
    _field("key", STRING, "Canonical key of the child in its storage; null for an external address."),
    _field("storage", STRING, "Storage the child lies in; null for an external address."),
    _field("kind", STRING, "File kind of the child."),
    _field("is_container", BOOL, "True if the child names further objects."),
    _field("size_bytes", LONG, "Size of the child where the container records it."),
    _field("snapshot_id", STRING, "Snapshot that added the entry, where the format says so."),
    _field("entry_status", STRING, "`added`, `existing`, `deleted`; null where the format has no status."),
    _field("container_size_bytes", LONG, "Length of the container when it was decoded."),
    _field("expected_entries", LONG, "Number of entries the container promises for this child."),
    _field("must_exist", BOOL, "False for objects a format allows to be absent."),
    _field("path", STRING, "Logical path of the object in a lakeFS repository; null elsewhere."),
    _field("written_at", TIMESTAMP, "When the entry was written, where the lake says so (lakeFS)."),
)

LIVE_FILES = _table(
    "live_files",
    "lake",
    "Every file that a retained commit needs, once per storage, with a witness.",
    ("storage", "key"),
    _field("storage", STRING, "Storage the file lies in."),
    _field("key", STRING, "Canonical key in that storage."),
    _field("key_hash", LONG, "Spark's `xxhash64(key)` (XXH64 of the UTF-8 bytes, seed 42)."),
    _field("kind", STRING, "File kind."),
    _field("size_bytes", LONG, "Size where metadata records it."),
    _field("lake", STRING, "Lake that needs it."),
    _field("commit_id", STRING, "One retained commit that reaches it; null for files of the present state."),
    _field("container", STRING, "One container that names it; null for content roots."),
    _field("table_uuid", STRING, "Iceberg table of the witness commit; null outside Iceberg lakes."),
    _field("must_exist", BOOL, "False for files that may rightly be absent."),
    _field("container_size_bytes", LONG, "For containers: the length that was decoded; null for other files."),
)

LIVE_FILTER = _table(
    "live_filter",
    "storage",
    "A bloom filter over the live keys of a storage, of all lakes together; its false positives keep garbage, never lose a file.",
    ("slice",),
    _field("slice", pa.int32(), "Number of the slice; a key belongs to slice `pmod(xxhash64(key), slices)`."),
    _field("slices", pa.int32(), "Number of slices."),
    _field("keys", LONG, "Number of keys the slice was sized for."),
    _field("filter", pa.binary(), "The filter with its header (`core/filter.py`)."),
)

STORAGE_INVENTORY = _table(
    "storage_inventory",
    "storage",
    "Every object of a storage as its listing showed it.",
    ("key",),
    _field("key", STRING, "Canonical key."),
    _field("size_bytes", LONG, "Size."),
    _field("last_modified", TIMESTAMP, "The store's own time of last modification."),
    _field("etag", STRING, "Identity of the bytes; `<size>-<mtime in ns>-<inode>` on a local disk."),
    _field("version_id", STRING, "Object version where the store has versions."),
    _field("storage_class", STRING, "Storage class where the store has them."),
    _field("source", STRING, "`listing`, or the inventory report it came from."),
)

ORPHAN_FILES = _table(
    "orphan_files",
    "storage",
    "Claimed files that no live set holds and that are older than the grace period, with the reason.",
    ("key",),
    _field("key", STRING, "Canonical key."),
    _field("size_bytes", LONG, "Size."),
    _field("last_modified", TIMESTAMP, "The store's time of last modification."),
    _field("etag", STRING, "Identity of the bytes."),
    _field("version_id", STRING, "Object version."),
    _field("reason", STRING, "`expired`, `unreferenced`, `uncommitted` or `lifecycle`."),
    _field("lake", STRING, "Lake that claims the file."),
    _field("last_commit_id", STRING, "For `expired`: one expired commit that needs it."),
    _field("last_container", STRING, "For `expired`: the container that names it."),
    _field("held_by", STRING, "For `expired`: the lake whose history must let go of the file first; null where nothing must."),
    _field("held_by_table", STRING, "With `held_by`: the Iceberg table whose history it is; null outside Iceberg lakes."),
    _field("kind", STRING, "For `expired`: the file kind; null where nothing names the file."),
    _field(
        "dangling_commits",
        LONG,
        "For `lifecycle`: at most so many retained commits will hold a path to nothing.",
    ),
    _field("table_uuid", STRING, "Iceberg table that claims the file."),
)

DELETION_PLAN = _table(
    "deletion_plan",
    "storage",
    "What one approval would execute, key by key. The header beside it carries the digest and the gates.",
    ("key",),
    _field("key", STRING, "Canonical key."),
    _field("action", STRING, "`quarantine`, `purge` or `restore`."),
    _field("size_bytes", LONG, "Size."),
    _field("etag", STRING, "The object that was planned; another one is left alone."),
    _field("version_id", STRING, "Object version."),
    _field("reason", STRING, "As in `orphan_files`; for `restore` why it is live again."),
    _field("lake", STRING, "Lake that claims the file."),
    _field(
        "dangling_commits",
        LONG,
        "For `lifecycle`: at most so many retained commits will hold a path to nothing.",
    ),
    _field("after_expiry", BOOL, "True: only once the plan's own expiry actions are done and a fresh mark agrees."),
    _field("held_by", STRING, "With `after_expiry`: the lake whose history must let go of the file first."),
    _field("held_by_table", STRING, "With `held_by`: the Iceberg table whose history it is; null outside Iceberg lakes."),
    _field("source_plan_id", STRING, "For `purge` and `restore`: the plan that quarantined the key."),
    _field("quarantine", STRING, "How the key is, or was, quarantined: `trash` or `deferred`."),
    _field("kind", STRING, "File kind: what names others is moved and purged before what it names, and restored after it."),
)

DELETION_LOG = _table(
    "deletion_log",
    "storage",
    "What happened to each planned key.",
    ("key", "phase", "plan_id"),
    _field("key", STRING, "Canonical key."),
    _field("phase", STRING, "`quarantine`, `purge` or `restore`."),
    _field("outcome", STRING, "`done`, `absent`, `changed`, `denied` or `failed`."),
    _field("error", STRING, "What the store said, where the outcome is not `done`."),
    _field("at", TIMESTAMP, "When the outcome was known."),
    _field("plan_id", STRING, "Plan that was executed."),
    _field("size_bytes", LONG, "Planned size."),
    _field("etag", STRING, "Identity of the planned object."),
    _field("source_plan_id", STRING, "For `purge` and `restore`: the plan that quarantined the key."),
    _field("quarantine", STRING, "How the key is, or was, quarantined: `trash` or `deferred`."),
    _field("kind", STRING, "As in `deletion_plan`."),
    by_apply=True,
)

# The edits of history that one approval would execute, beside `deletion_plan`: of every lake that claims a part of the storage.
EXPIRY_ACTIONS: Final = pa.schema([_field("lake", STRING, "Lake whose history is edited."), *EXPIRY_PLAN.schema])

# Side tables: beside a published table, in a directory whose leading underscore hides it from plain readers.

SOURCES: Final = pa.schema(
    [
        _field("address", STRING, "Where a part of the commit graph is read."),
        TABLE_UUID,
        TABLE_NAME,
        _field("shard", pa.int32(), "This share of the source."),
        _field("shards", pa.int32(), "Number of shares of the source."),
        _field("properties", pa.map_(STRING, STRING), "Frozen facts that retention needs."),
    ]
)

CLAIMS: Final = pa.schema(
    [
        _field("address", STRING, "Prefix as the lake spells it, ending in `/`."),
        _field("storage", STRING, "Storage the prefix lies in; null for an external prefix."),
        _field("key", STRING, "Canonical prefix in that storage, ending in `/`, or empty for the whole storage."),
        TABLE_UUID,
        TABLE_NAME,
        _field("collect", BOOL, "False: nothing below is ever a candidate, also inside another claim."),
    ]
)

PINNED: Final = pa.schema(
    [
        _field("address", STRING, "Address as the lake spells it."),
        _field("kind", STRING, "File kind."),
        _field("is_container", BOOL, "True if the object names further objects."),
        _field("size_bytes", LONG, "Size where the lake records it."),
        _field("must_exist", BOOL, "False for files a format allows to be absent."),
        _field("storage", STRING, "Storage the file lies in; null for an external address."),
        _field("key", STRING, "Canonical key."),
    ]
)

CONTAINERS: Final = pa.schema(
    [
        _field("container", STRING, "Address of a container that was decoded, once per length."),
        _field("kind", STRING, "File kind of the container."),
        _field("container_size_bytes", LONG, "Its length."),
        _field("entries", LONG, "Number of rows it gave."),
    ]
)

EDGES: Final = pa.schema(
    [
        _field("container", STRING, "Address of the parent container."),
        _field("container_size_bytes", LONG, "Length of the parent."),
        _field("address", STRING, "Address of a child that is itself a container."),
        _field("kind", STRING, "File kind of the child."),
        _field("storage", STRING, "Storage of the child; null for an external address."),
        _field("key", STRING, "Canonical key of the child."),
        _field("size_bytes", LONG, "Length of the child where the parent records it."),
        _field("expected_entries", LONG, "Number of entries the parent promises."),
        _field("snapshot_id", STRING, "Snapshot id that the child's entries inherit."),
        _field("must_exist", BOOL, "False for objects a format allows to be absent."),
    ]
)

PLACES: Final = pa.schema(
    [
        _field("container", STRING, "Address of the container that says it."),
        _field("address", STRING, "A prefix ending in `/`, or the `urn:uuid:` of a table or view."),
        _field("kind", STRING, "`table_location` or `table_uuid`."),
        _field("storage", STRING, "Storage of the prefix; null for an external one."),
        _field("key", STRING, "Canonical prefix in that storage."),
    ]
)

UNREADABLE: Final = pa.schema(
    [
        *EDGES,
        _field("error", STRING, "Why the container could not be decoded."),
        _field("absent", BOOL, "True where there is no such object at all."),
    ]
)

PROBLEMS: Final = pa.schema(
    [
        _field("key", STRING, "Where it is; undecodable bytes as `\\xNN`."),
        _field("kind", STRING, "`symlink`, `not_utf8`, `special` or `unreadable`."),
        _field("detail", STRING, "What was found."),
    ]
)

UNCOMMITTED: Final = pa.schema(
    [
        _field("address", STRING, "Address of a staged object, as the lake spells it."),
        _field("branch", STRING, "As in `uncommitted_objects`."),
        _field("path", STRING, "As in `uncommitted_objects`."),
        _field("created_at", TIMESTAMP, "As in `uncommitted_objects`."),
        _field("storage", STRING, "Storage the file lies in; null for an external address."),
        _field("key", STRING, "Canonical key."),
    ]
)

DIRECTORIES: Final = pa.schema(
    [
        _field("key", STRING, "A directory that holds objects and no directories, ending in `/`."),
        _field("modified_ns", LONG, "Its own time of modification before it was read, in nanoseconds."),
        _field("objects", LONG, "Objects in it."),
    ]
)

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        POLICY_TABLE,
        CURRENT_RULES,
        LAKE_REFS,
        COMMIT_GRAPH,
        REACHABLE_SNAPSHOTS,
        UNCOMMITTED_OBJECTS,
        POTENTIAL_COMMITS,
        LIFECYCLE_OBJECTS,
        EXPIRY_PLAN,
        SNAPSHOT_HISTORY,
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
}
