"""The side tables, as schemas of Arrow's. They lie beside a published table, in a directory whose
leading underscore hides it from plain readers.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from gc_assets.state.arrow_types import schema_of
from gc_assets.state.columns import BOOL, INT, LONG, PROPERTIES, STRING, TIMESTAMP, column
from gc_assets.state.schemas import EXPIRY_PLAN, TABLE_NAME, TABLE_UUID

# The edits of history that one approval would execute. They stand beside `deletion_plan` and belong
# to the lakes that claim a part of the storage.
EXPIRY_ACTIONS: Final = schema_of(column("lake", STRING, "Lake whose history is edited."), *EXPIRY_PLAN.columns)

# The uploads in parts that one approval would abort. They too stand beside `deletion_plan`.
UPLOADS: Final = schema_of(
    column("key", STRING, "Canonical key of the object that the upload would have made."),
    column("upload_id", STRING, "The server's name of the upload."),
    column("initiated", TIMESTAMP, "When it was begun, by the server's clock."),
    column("size_bytes", LONG, "Size of its parts."),
    column("etag", STRING, "Identity of the upload: one that a part was added to since is left alone."),
    column("lake", STRING, "Lake that claims the key."),
)

SOURCES: Final = schema_of(
    column("address", STRING, "Where a part of the commit graph is read."),
    TABLE_UUID,
    TABLE_NAME,
    column("shard", INT, "This share of the source."),
    column("shards", INT, "Number of shares of the source."),
    column("properties", PROPERTIES, "Frozen facts that retention needs."),
    column("digest", STRING, "SHA-256 of the object that all commits of a table are read from; null elsewhere.", since="0.4"),
)

CLAIMS: Final = schema_of(
    column("address", STRING, "Prefix as the lake spells it, ending in `/`."),
    column("storage", STRING, "Storage the prefix lies in; null for an external prefix."),
    column("key", STRING, "Canonical prefix in that storage, ending in `/`, or empty for the whole storage."),
    TABLE_UUID,
    TABLE_NAME,
    column("collect", BOOL, "False: nothing below is ever a candidate, also inside another claim."),
    column(
        "location_of",
        STRING,
        "Table whose location it is, where `table_uuid` does not say it.",
        since="0.4",
    ),
)

PINNED: Final = schema_of(
    column("address", STRING, "Address as the lake spells it."),
    column("kind", STRING, "File kind."),
    column("is_container", BOOL, "True if the object names further objects."),
    column("size_bytes", LONG, "Size where the lake records it."),
    column("must_exist", BOOL, "False for files a format allows to be absent."),
    column("storage", STRING, "Storage the file lies in; null for an external address."),
    column("key", STRING, "Canonical key."),
)

CONTAINERS: Final = schema_of(
    column("container", STRING, "Address of a container that was decoded, once per length."),
    column("kind", STRING, "File kind of the container."),
    column("container_size_bytes", LONG, "Its length."),
    column("entries", LONG, "Number of rows it gave."),
    column("etag", STRING, "Identity of the object that was decoded.", since="0.4"),
    column("digest", STRING, "XXH64 of its bytes in hexadecimal.", since="0.4"),
)

REWRITTEN: Final = schema_of(
    column("address", STRING, "Address of a container whose object is another one than was decoded."),
    column("etag", STRING, "Identity of the object that the inventory shows."),
)

EDGES: Final = schema_of(
    column("container", STRING, "Address of the parent container."),
    column("container_size_bytes", LONG, "Length of the parent."),
    column("address", STRING, "Address of a child that is itself a container."),
    column("kind", STRING, "File kind of the child."),
    column("storage", STRING, "Storage of the child; null for an external address."),
    column("key", STRING, "Canonical key of the child."),
    column("size_bytes", LONG, "Length of the child where the parent records it."),
    column("expected_entries", LONG, "Number of entries the parent promises."),
    column("snapshot_id", STRING, "Snapshot id that the child's entries inherit."),
    column("must_exist", BOOL, "False for objects a format allows to be absent."),
)

PLACES: Final = schema_of(
    column("container", STRING, "Address of the container that says it."),
    column("address", STRING, "A prefix ending in `/`, or the `urn:uuid:` of a table or view."),
    column("kind", STRING, "`table_location` or `table_uuid`."),
    column("storage", STRING, "Storage of the prefix; null for an external one."),
    column("key", STRING, "Canonical prefix in that storage."),
)

UNREADABLE: Final = pa.schema(
    [
        *EDGES,
        *schema_of(
            column("error", STRING, "Why the container could not be decoded."),
            column("absent", BOOL, "True where there is no such object at all."),
        ),
    ]
)

PROBLEMS: Final = schema_of(
    column("key", STRING, "Where it is; undecodable bytes as `\\xNN`."),
    column("kind", STRING, "`symlink`, `not_utf8`, `special`, `time` or `unreadable`."),
    column("detail", STRING, "What was found."),
)

UNCOMMITTED: Final = schema_of(
    column("address", STRING, "Address of a staged object, as the lake spells it."),
    column("branch", STRING, "As in `uncommitted_objects`."),
    column("path", STRING, "As in `uncommitted_objects`."),
    column("created_at", TIMESTAMP, "As in `uncommitted_objects`."),
    column("storage", STRING, "Storage the file lies in; null for an external address."),
    column("key", STRING, "Canonical key."),
)

DIRECTORIES: Final = schema_of(
    column("key", STRING, "A directory that holds objects and no directories, ending in `/`."),
    column("modified_ns", LONG, "Its own time of modification before it was read, in nanoseconds."),
    column("objects", LONG, "Objects in it."),
)

CUTS: Final = schema_of(column("key", STRING, "A key at which the next listing of the storage may be cut into ranges."))
