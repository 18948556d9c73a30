"""Define the directories and schemas of side tables, in the order of their main tables.

A side table is stored in a subdirectory of the main table's run, and published with the same
receipt. The name of the subdirectory begins with an underscore, so that generic Parquet readers
ignore it. Side tables marked as scratch exist only while a run computes the main table.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from gc_assets.state.arrow_types import CONTENT_ROOT, STRINGS, schema_of
from gc_assets.state.arrow_types import TIMESTAMP as ARROW_TIMESTAMP
from gc_assets.state.columns import BOOL, INT, LONG, PROPERTIES, STRING, TIMESTAMP, column
from gc_assets.state.columns import STRINGS as LIST_OF_STRINGS
from gc_assets.state.schemas import EXPIRY_PLAN, ORPHAN_FILES, STORAGE_INVENTORY, TABLE_NAME, TABLE_UUID, Table

# --- lake_refs ---

SOURCES_SIDE: Final = "_sources"
SOURCES: Final = schema_of(
    column("address", STRING, "Address that a part of the commit graph is read from."),
    TABLE_UUID,
    TABLE_NAME,
    column("shard", INT, "Number of this share of the source."),
    column("shards", INT, "Number of shares of the source."),
    column("properties", PROPERTIES, "Frozen properties that retention needs."),
    column("digest", STRING, "SHA-256 of the object that all commits of a table are read from; null for other sources.", since="0.4"),
)

CLAIMS_SIDE: Final = "_claims"  # also published with live_files
CLAIMS: Final = schema_of(
    column("address", STRING, "Prefix as the lake spells it, ending in `/`."),
    column("storage", STRING, "Storage of the prefix; null for an external prefix."),
    column("key", STRING, "Canonical prefix in that storage, ending in `/`, or empty for the whole storage."),
    TABLE_UUID,
    TABLE_NAME,
    column("collect", BOOL, "False: no file under the prefix is ever a candidate, even inside another claim."),
    column("location_of", STRING, "Table whose location the prefix is, if `table_uuid` is null.", since="0.4"),
)

PINNED_SIDE: Final = "_pinned"
PINNED: Final = schema_of(
    column("address", STRING, "Address as the lake spells it."),
    column("kind", STRING, "File kind."),
    column("is_container", BOOL, "True if the object references further objects."),
    column("size_bytes", LONG, "Size, if the lake records it."),
    column("must_exist", BOOL, "False for files that the format allows to be absent."),
    column("storage", STRING, "Storage of the file; null for an external address."),
    column("key", STRING, "Canonical key."),
)

VIEWS_SIDE: Final = "_views"
VIEWS: Final = schema_of(
    column("uuid", STRING, "Uuid of a view whose metadata is pinned.", since="0.4"),
    column("name", STRING, "Its name in the catalog.", since="0.4"),
    column("newest", LONG, "Time of its newest version in milliseconds since 1970; null if it is unknown.", since="0.4"),
)

UNCOMMITTED_SIDE: Final = "_uncommitted"
UNCOMMITTED: Final = schema_of(
    column("address", STRING, "Address of a staged object, as the lake spells it."),
    column("branch", STRING, "As in `uncommitted_objects`."),
    column("path", STRING, "As in `uncommitted_objects`."),
    column("created_at", TIMESTAMP, "As in `uncommitted_objects`."),
    column("storage", STRING, "Storage of the file; null for an external address."),
    column("key", STRING, "Canonical key."),
)

# --- commit_graph ---

# The sources that a graph was read from, if they have digests. Schema: `SOURCES`.
READ_FROM_SIDE: Final = "_read_from"
# Scratch: commits that the driver has read and passes on to executors. Schema: `COMMIT_GRAPH`.
DRIVER_COMMITS_SIDE: Final = "_passed_on"

# --- manifest_entries ---

CONTAINERS_SIDE: Final = "_containers"
CONTAINERS: Final = schema_of(
    column("container", STRING, "Address of a decoded container; one row per length."),
    column("kind", STRING, "File kind of the container."),
    column("container_size_bytes", LONG, "Its length."),
    column("entries", LONG, "Number of its entries."),
    column("etag", STRING, "ETag of the object that was decoded.", since="0.4"),
    column("digest", STRING, "XXH64 of its bytes in hexadecimal.", since="0.4"),
    column("recorded_size_bytes", LONG, "Length that its parent records; null if it is the same.", since="0.4"),
    column("files", LONG, "Number of its rows in `HASHES_SIDE`.", since="0.4"),
)

# File entries that are needed if their container is live, in the original order. Because strings
# repeat, a row takes only about 10 bytes.
HASHES_SIDE: Final = "_hashes"
HASHES: Final = schema_of(
    column("container", STRING, "Address of the container that references the file."),
    column("storage", STRING, "Storage of the file; null for an external address."),
    column("kind", STRING, "File kind."),
    column("key_hash", LONG, "`xxhash64` of the key, or of the address if it is external."),
    column("loose_hash", LONG, "`xxhash64` of the spelling-insensitive key; null if it equals the key."),
    column("size_bytes", LONG, "Size of the file, if the container records it."),
)

EDGES_SIDE: Final = "_edges"
EDGES: Final = schema_of(
    column("container", STRING, "Address of the parent container."),
    column("container_size_bytes", LONG, "Length of the parent."),
    column("address", STRING, "Address of a child that is a container itself."),
    column("kind", STRING, "File kind of the child."),
    column("storage", STRING, "Storage of the child; null for an external address."),
    column("key", STRING, "Canonical key of the child."),
    column("size_bytes", LONG, "Length of the child, if the parent records it."),
    column("expected_entries", LONG, "Number of entries that the parent records for the child."),
    column("snapshot_id", STRING, "Snapshot id that the entries of the child inherit."),
    column("must_exist", BOOL, "False for objects that the format allows to be absent."),
)

LOCATIONS_SIDE: Final = "_places"
LOCATIONS: Final = schema_of(
    column("container", STRING, "Address of the container that records the location or uuid."),
    column("address", STRING, "A prefix ending in `/`, or the `urn:uuid:` of a table or view."),
    column("kind", STRING, "`table_location` or `table_uuid`."),
    column("storage", STRING, "Storage of the prefix; null for an external prefix."),
    column("key", STRING, "Canonical prefix in that storage."),
)

UNREADABLE_CONTAINERS_SIDE: Final = "_unreadable"
UNREADABLE_CONTAINERS: Final = pa.schema(
    [
        *EDGES,
        *schema_of(
            column("error", STRING, "Why the container could not be decoded."),
            column("absent", BOOL, "True if the object does not exist."),
            column("digest", STRING, "Digest of bytes whose decoder exceeded its limits.", since="0.4"),
        ),
    ]
)

# Addresses in unreadable containers that use the name of an unknown prefix.
UNRESOLVED_SIDE: Final = "_unresolved"
UNRESOLVED: Final = schema_of(
    column("container", STRING, "Address of the container."),
    column("address", STRING, "Address as the container spells it."),
)

# Locations that were found in table metadata although it could not be decoded.
UNREAD_LOCATIONS_SIDE: Final = "_unread_locations"
UNREAD_LOCATIONS: Final = schema_of(
    column("container", STRING, "Address of the metadata."),
    column("address", STRING, "The location, with a slash at its end."),
    column("storage", STRING, "Storage of the location, null if it is in none."),
    column("key", STRING, "Its key in the storage."),
)

# Scratch: containers of one level that are still to be decoded, with one part for each task.
TASKS_SIDE: Final = "_tasks"
TASKS: Final = pa.schema([field for field in EDGES if field.name not in {"container", "container_size_bytes"}])
# Scratch: the last known containers of unreadable tables and of former metadata. Schema: `TASKS`.
LAST_KNOWN_SIDE: Final = "_last_known"

# Symbolic links that the keys of a table depend on. `lake_refs` has this side table as well.
LINKS_SIDE: Final = "_links"
LINKS: Final = schema_of(
    column("directory", STRING, "A local directory outside all storages, as addresses spell it."),
    column("target", STRING, "Its real directory when the table was made."),
)

# Scratch: containers whose entries are removed from compacted segments.
DEAD_CONTAINERS_SIDE: Final = "_dead"
DEAD_CONTAINERS: Final = pa.schema([CONTAINERS.field("container")])

# --- potential_commits (lakeFS) ---

# Properties of ranges, derived from the commits that contain them. Each branch that occurs in a
# lifecycle rule is a class of its own, and all other branches form another class.
RANGES_SIDE: Final = "_ranges"
RANGES: Final = pa.schema(
    [
        ("container", pa.string()),
        ("classes", STRINGS),
        ("first_commit_at", ARROW_TIMESTAMP),
        ("commits", pa.int64()),
        ("tagged", pa.bool_()),
        ("potential", pa.bool_()),
    ]
)

# The ranges of branch heads, if lifecycle rules delete paths by commits.
HEADS_SIDE: Final = "_heads"
HEADS: Final = pa.schema([("branch", pa.string()), ("container", pa.string())])

# --- lifecycle_paths (lakeFS) ---

# Edits of branches, which are part of the expiry plan. Schema: `EXPIRY_PLAN`.
EDITS_SIDE: Final = "_edits"

# Due paths that are not UTF-8, which the server's API cannot represent. Schema: `LIFECYCLE_PATHS`.
INEXACT_PATHS_SIDE: Final = "_inexact_paths"

# --- live_files ---

# Files that are referenced but not live, or outside of all storages. Schema: `LIVE_FILES`. Retained
# commits still reference the files in `LIFECYCLE_SIDE`, but lifecycle rules allow their deletion.
EXPIRED_SIDE: Final = "_expired"
DANGLING_SIDE: Final = "_dangling"
LIFECYCLE_SIDE: Final = "_lifecycle"
EXTERNAL_SIDE: Final = "_external"
ROUTED_SIDES: Final = (EXPIRED_SIDE, DANGLING_SIDE, LIFECYCLE_SIDE, EXTERNAL_SIDE)
# Files that a commit references but that are not live.
RELEASED_SIDES: Final = (EXPIRED_SIDE, DANGLING_SIDE, LIFECYCLE_SIDE)

# External addresses that may be other names for objects in a storage, see docs/safety.md.
UNKNOWN_ADDRESSES_SIDE: Final = "_unknown_addresses"
UNKNOWN_ADDRESSES: Final = schema_of(
    column("address", STRING, "Address as the lake spells it."),
    column("kind", STRING, "File kind."),
    column("size_bytes", LONG, "Size, if the lake records it."),
    column("commit_id", STRING, "Commit that needs the file; null for files of the current state."),
    column("container", STRING, "Address of the metadata object that references the file."),
    column("table_uuid", STRING, "Table uuid; null in a lake of one repository."),
    column("reason", STRING, "Why the address may be another name of an object in a storage."),
)

# Live metadata objects that the inventory must contain, with the decoded length. The decoded object
# is identified by `etag` and `digest`. Several values are joined by `IDENTITY_SEPARATOR`.
IDENTITY_SEPARATOR: Final = "\x1f"
METADATA_SIDE: Final = "_metadata"
METADATA: Final = pa.schema(
    [
        ("storage", pa.string()),
        ("key", pa.string()),
        ("kind", pa.string()),
        ("container_size_bytes", pa.int64()),
        ("address", pa.string()),
        ("etag", pa.string()),
        ("digest", pa.string()),
    ]
)
# Live files that may be absent, such as a version hint or statistics. Schema: `METADATA`.
OPTIONAL_SIDE: Final = "_optional"
# Live metadata objects that are missing and were never decoded. The files that they reference are
# unknown. Schema: `METADATA`.
UNKNOWN_SIDE: Final = "_unknown"

# Content roots (metadata objects to which commits point directly), with their rank, a commit that
# needs them, and their parent container.
ROOTS: Final = pa.schema(
    [
        *CONTENT_ROOT,
        pa.field("rank", pa.int8()),
        pa.field("commit_id", pa.string()),
        pa.field("table_uuid", pa.string()),
        pa.field("parent", pa.string()),
    ]
)
# Content roots of unreadable tables. `in_full` is true if every container under the root was known
# when the row was written.
UNREADABLE_ROOTS_SIDE: Final = "_sick"
UNREADABLE_ROOTS: Final = ROOTS.append(pa.field("in_full", pa.bool_()))
# Metadata files that a catalog refers to now, and former ones that it referred to in earlier runs.
# For a repository, the commits that its server has lost.
POINTERS_SIDE: Final = "_pointers"
POINTERS: Final = schema_of(
    TABLE_UUID,
    TABLE_NAME,
    column("address", STRING, "Address of the metadata file, or id of a lost commit.", since="0.4"),
    column("heads", LIST_OF_STRINGS, "Snapshots that refs of the table point to.", since="0.4"),
    column("read_at", TIMESTAMP, "Time of the last run that read it.", since="0.4"),
    column("former_since", TIMESTAMP, "Time of the first run whose catalog had no successor of it, otherwise null.", since="0.4"),
    column("missing_since", TIMESTAMP, "Time of the first run in which its table was missing, otherwise null.", since="0.4"),
)
# Content roots of former metadata and of lost commits, and of tables that were removed from their
# catalog. The roots of removed tables are not live.
FORMER_ROOTS_SIDE: Final = "_former_roots"
FORMER_ROOTS: Final = ROOTS.append(pa.field("metadata", pa.string())).append(pa.field("is_live", pa.bool_()))

# Columns that describe a file referenced by a commit or a container.
FILE_COLUMNS: Final = (
    ("storage", pa.string()),
    ("key", pa.string()),
    ("address", pa.string()),
    ("kind", pa.string()),
    ("size_bytes", pa.int64()),
    ("must_exist", pa.bool_()),
    ("container_size_bytes", pa.int64()),
)
# The live set by container: a row for each known container and each directly referenced file, with
# the commit and container that need it. `expands` is true for containers, whose entries are needed
# at the same rank. `files` is the number of rows in `HASHES_SIDE`, or null for files.
STATES_SIDE: Final = "_states"
STATES: Final = pa.schema(
    [
        *FILE_COLUMNS,
        ("rank", pa.int8()),
        ("commit_id", pa.string()),
        ("table_uuid", pa.string()),
        ("container", pa.string()),
        ("expands", pa.bool_()),
        ("files", pa.int64()),
    ]
)

# Number and size of files by storage, kind, table and commit of the strongest witness, and route.
# The `storage` column is null for external files. The route is empty for live files, and otherwise
# the name of a side table.
TOTALS_SIDE: Final = "_totals"
TOTALS: Final = pa.schema(
    [
        ("storage", pa.string()),
        ("kind", pa.string()),
        ("table_uuid", pa.string()),
        ("commit_id", pa.string()),
        ("route", pa.string()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

# Witnesses of live files. The smallest number is the strongest witness. If `expands` is true, the
# witness applies to the entries of `container`, which must exist only if the container must.
WITNESSES: Final = pa.schema(
    [
        ("witness", pa.int64()),
        ("rank", pa.int8()),
        ("commit_id", pa.string()),
        ("table_uuid", pa.string()),
        ("container", pa.string()),
        ("expands", pa.bool_()),
        ("container_must_exist", pa.bool_()),
    ]
)
# Files that commits and containers reference directly, with their witnesses.
DIRECT_FILES: Final = pa.schema([("witness", pa.int64()), *FILE_COLUMNS])
# --- what-if ---

# Scratch: containers and directly referenced files. Bit n of `live` is set if the row is live in
# the n-th scenario. Bit 0 is for the run itself.
SCENARIO_CONTAINERS_SIDE: Final = "_below"
SCENARIO_CONTAINERS: Final = pa.schema([("container", pa.string()), ("live", pa.int64())])
SCENARIO_FILES_SIDE: Final = "_named"
SCENARIO_FILES: Final = pa.schema([("storage", pa.string()), ("key", pa.string()), ("live", pa.int64())])

# --- storage_inventory ---

PROBLEMS_SIDE: Final = "_problems"
PROBLEMS: Final = schema_of(
    column("key", STRING, "Key of the file; undecodable bytes as `\\xNN`."),
    column("kind", STRING, "`symlink`, `not_utf8`, `special`, `time` or `unreadable`."),
    column("detail", STRING, "What was found."),
)

DIRECTORIES_SIDE: Final = "_leaf_directories"
DIRECTORIES: Final = schema_of(
    column("key", STRING, "A directory that contains objects and no directories, ending in `/`."),
    column("modified_ns", LONG, "Its modification time before it was listed, in nanoseconds."),
    column("objects", LONG, "Number of objects in it."),
    column("inode", LONG, "Its inode.", since="0.4"),
)

CUTS_SIDE: Final = "_cuts"
CUTS: Final = schema_of(column("key", STRING, "A key at which the next listing of the storage may be cut into ranges."))

# --- orphan_files ---

# Candidates that are not planned. Schema: `ORPHAN_FILES`. Candidates in `NAMED_TWICE_SIDE` occur
# several times in a listing or report, so it is unclear which row is right. Candidates in
# `DEFERRED_SIDE` are claimed by tables with missing metadata, are next to damaged metadata, may
# belong to foreign tables, or are metadata of views that were removed from their catalog.
FALSE_NEGATIVES_SIDE: Final = "_false_negatives"
NEAR_MISSES_SIDE: Final = "_near_misses"
NAMED_TWICE_SIDE: Final = "_named_twice"
DEFERRED_SIDE: Final = "_withheld"
STOPPED_SIDES: Final = (FALSE_NEGATIVES_SIDE, NEAR_MISSES_SIDE, NAMED_TWICE_SIDE, DEFERRED_SIDE)

# The claims on the storage, which later runs need to detect new claims.
CLAIMED_SIDE: Final = "_claimed"
CLAIMED: Final = schema_of(
    column("key", STRING, "Claimed prefix, ending in `/`, or empty for the whole storage."),
    column("table", STRING, "Table that claims it, or empty for the lake itself."),
    column("since", TIMESTAMP, "Time of the newest accepted run without the claim; null if the claim is as old as the first run."),
    column("seen", TIMESTAMP, "Time of the first run with the claim, if `since` is not null.", since="0.4"),
)

# Tables that accepted runs have read. Tables that no catalog lists any more have further values.
DROPPED_TABLES_SIDE: Final = "_dropped_tables"
DROPPED_COLUMNS: Final = (
    column("lake", STRING, "Lake whose catalog listed the table.", since="0.4"),
    column("table_uuid", STRING, "Uuid of the table.", since="0.4"),
    column("table_name", STRING, "Name of the table when it was last read.", since="0.4"),
    column("catalog", STRING, "Identity of the catalog, without secrets.", since="0.4"),
    column("prefixes", LIST_OF_STRINGS, "Prefixes of the storage that the table claimed.", since="0.4"),
    column("claims_by_uuid", BOOL, "False if its claims belonged to the lake.", since="0.4"),
    column("metadata_location", STRING, "Address of its newest known metadata file.", since="0.4"),
    column("newest_ms", LONG, "Time of its newest known commit in milliseconds since 1970; 0 without commits.", since="0.4"),
    column("last_seen", TIMESTAMP, "Time of the last run that read the table, or of a later apply that did.", since="0.4"),
    column("gone_since", TIMESTAMP, "Time of the first accepted run in which it was missing; null if a catalog lists it.", since="0.4"),
    column("lost_tables", LONG, "Number of tables of the lake that went missing in the same run, or earlier on its date.", since="0.4"),
    column("known_tables", LONG, "Number of tables of the lake that were listed before these runs.", since="0.4"),
    column("replaced", BOOL, "True if its name belongs to another table now.", since="0.4"),
    column("last_writer", STRING, "Program that made its newest known commit, if it is known.", since="0.4"),
    column("other_catalog_since", TIMESTAMP, "Time of the first accepted run in which its lake read another catalog.", since="0.4"),
    column("owns_from", TIMESTAMP, "Time from which its files were written; null if they may be of any age.", since="0.4"),
    column("last_run", TIMESTAMP, "Time at which the last run that read the table began to read refs.", since="0.4"),
    column("waits_for", STRING, "Why its files are not collected; null if they are, or if it is listed.", since="0.4"),
    column("due_at", TIMESTAMP, "End of its waiting time; null if its files are kept.", since="0.4"),
    column("accepted_at", TIMESTAMP, "Time at which a user accepted it as dead.", since="0.4"),
    column("shares_location", BOOL, "True if another table or lake claims its location now.", since="0.4"),
    column("files", LONG, "Number of its listed files; null if a catalog lists it.", since="0.4"),
    column("bytes", LONG, "Their size.", since="0.4"),
    column("newest_file", TIMESTAMP, "Time of the newest file under its claims that no listed table claims.", since="0.4"),
    column("newest_key", STRING, "Key of that file.", since="0.4"),
    column("noun", STRING, "table, or repository for a repository of a server.", since="0.4"),
)
DROPPED_TABLES: Final = schema_of(*DROPPED_COLUMNS)
# Files that dropped tables reference outside their claims or together with listed tables.
ADOPTED_SIDE: Final = "_adopted_files"
ADOPTED_FILES: Final = schema_of(
    column("lake", STRING, "Lake whose catalog listed the table.", since="0.4"),
    column("table_uuid", STRING, "Uuid of the table.", since="0.4"),
    column("key_hash", LONG, "Hash of the file's key.", since="0.4"),
)
# Views that accepted runs have read, including views that no catalog lists any more.
KNOWN_VIEWS_SIDE: Final = "_known_views"
KNOWN_VIEWS: Final = schema_of(
    column("lake", STRING, "Lake whose catalog listed the view.", since="0.4"),
    column("uuid", STRING, "Uuid of the view.", since="0.4"),
    column("name", STRING, "Its name when it was last read.", since="0.4"),
    column("catalog", STRING, "Identity of the catalog, without secrets.", since="0.4"),
    column("gone_since", TIMESTAMP, "Time of the first accepted run in which it was missing; null if a catalog lists it.", since="0.4"),
)
# Prefixes in all storages under which foreign tables may have files. Plans leave out these files,
# and applies of older plans keep them.
FOREIGN_PREFIXES_SIDE: Final = "_foreign_prefixes"
FOREIGN_PREFIXES: Final = schema_of(
    column("storage", STRING, "Storage of the prefix.", since="0.4"),
    column("prefix", STRING, "Prefix that ends in `/`, or empty for the whole storage.", since="0.4"),
    column("is_junk", BOOL, "True if a file in it is only named like metadata, so that its quarantined files may be purged.", since="0.4"),
)
# The dropped tables in the form that `gc-assets show` prints.
DROPPED_TABLES_VIEW: Final = Table(
    "dropped_tables", "Tables that an earlier run read and no catalog lists any more.", "storage", ("lake", "table_uuid"), DROPPED_COLUMNS
)
# Scratch: sums of the listed files under the claims of a dropped table, for each part of a listing.
DROPPED_FILES: Final = pa.schema(
    [
        ("table", pa.int32()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("newest", ARROW_TIMESTAMP),
        ("newest_key", pa.string()),
    ]
)

# Directories that contain datasets in formats which no kind of lake reads.
FOREIGN_DATASETS_SIDE: Final = "_foreign_datasets"
FOREIGN_DATASETS: Final = schema_of(
    column("key", STRING, "Directory, ending in `/`, or empty for the whole storage."),
    column("format", STRING, "Format of its files."),
)
# Scratch: the same rows with duplicates, and the targets needed to find foreign files.
FOUND_DATASETS_SIDE: Final = "_found_datasets"
TARGETS_SIDE: Final = "_targets"
TARGETS: Final = pa.schema([("target", pa.string())])

# Scratch: live files under the claims of a listed table that are older than the table itself.
ADOPTABLE_SIDE: Final = "_adoptable"
ADOPTABLE: Final = pa.schema([("key_hash", pa.int64()), ("modified_us", pa.int64())])

# Files that were older than the claim on their location when an accepted run found them. They stay
# foreign, even if their modification times change.
OLDER_THAN_CLAIM_SIDE: Final = "_older_than_claim"
OLDER_THAN_CLAIM: Final = schema_of(column("key_hash", LONG, "Hash of the file's key.", since="0.4"))

# Live files that were missing. An approval with an override of `live_listed` accepts exactly these.
MISSING_LIVE_SIDE: Final = "_missing_live_files"
MISSING_LIVE: Final = schema_of(
    column("lake", STRING, "Lake that needs the file.", since="0.4"),
    column("key_hash", LONG, "Hash of the file's key.", since="0.4"),
)

REWRITTEN_SIDE: Final = "_rewritten"
REWRITTEN: Final = schema_of(
    column("address", STRING, "Address of a container whose object differs from the one that was decoded."),
    column("etag", STRING, "ETag of the object in the inventory."),
)

# Scratch: candidates, and files that may be metadata of unconfigured lakes. Schema: `CANDIDATES`.
CANDIDATES_SIDE: Final = "_candidates"
SUSPECTS_SIDE: Final = "_suspects"
CANDIDATES: Final = pa.schema([*STORAGE_INVENTORY.schema, ORPHAN_FILES.schema.field("lake"), ORPHAN_FILES.schema.field("table_uuid")])

# --- deletion_plan ---

# Rows that this plan does not execute: quarantined files that wait for a later run, and files held
# by histories that this plan does not edit. Schema: `DELETION_PLAN`.
WAITING_SIDE: Final = "_waiting"
HELD_SIDE: Final = "_held"
# Rows that cannot succeed at present, because the store denied the same action to an earlier apply
# or the key is too long for the trash. Schema: `DELETION_PLAN`.
DENIED_SIDE: Final = "_denied"
TOO_LONG_SIDE: Final = "_too_long"
# Rows under claims of tables or lakes that lack live files in any storage, and rows that
# foreign tables may need.
MISSING_FILES_SIDE: Final = "_missing_files"
LEFT_OUT_SIDES: Final = (DENIED_SIDE, TOO_LONG_SIDE, MISSING_FILES_SIDE)

# History edits that the plan executes in lakes with claims on the storage.
EXPIRY_SIDE: Final = "_expiry"
EXPIRY_ACTIONS: Final = schema_of(column("lake", STRING, "Lake whose history is edited."), *EXPIRY_PLAN.columns)

# Unfinished multipart uploads that the plan aborts.
UPLOADS_SIDE: Final = "_uploads"
UPLOADS: Final = schema_of(
    column("key", STRING, "Canonical key of the object that the upload was to create."),
    column("upload_id", STRING, "Upload id of the server."),
    column("initiated", TIMESTAMP, "Start of the upload, by the clock of the server."),
    column("size_bytes", LONG, "Size of its parts."),
    column("etag", STRING, "Digest of the upload; an upload that has a new part since is not aborted."),
    column("lake", STRING, "Lake that claims the key."),
)
