"""File kinds, i.e. the roles of files in their formats, in reference order."""

from __future__ import annotations

from collections.abc import Mapping


class Kind:
    """All file kinds. Readers raise `FormatError` for any other kind."""

    METADATA_JSON = "metadata_json"
    VERSION_HINT = "version_hint"
    MANIFEST_LIST = "manifest_list"
    MANIFEST = "manifest"
    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"
    DELETION_VECTOR = "deletion_vector"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition_statistics"
    SNAPSHOT = "snapshot"
    TRANSACTION_LOG = "transaction_log"
    CHUNK_MANIFEST = "chunk_manifest"
    CHUNK = "chunk"
    VIRTUAL_CHUNK = "virtual_chunk"
    METARANGE = "metarange"
    RANGE = "range"
    OBJECT = "object"
    # A possible name of an object (lakeFS) or of a virtual chunk. It is live, but not counted as a
    # file. At least one of an object's names has to exist.
    POSSIBLE_OBJECT = "possible_object"
    REF = "ref"
    CONFIG = "config"
    # The `repo` object of Icechunk spec version 2, and its copies.
    REPO_INFO = "repo_info"
    VIEW_METADATA = "view_metadata"
    # These are not files. All files under the location of a table or view belong to it. The files
    # under an unlisted location have no known owner. A `urn:uuid:` identifies the table or view of
    # a metadata file. A named prefix is a prefix used by a container (`NamedPrefixes.reference`).
    TABLE_LOCATION = "table_location"
    UNLISTED_LOCATION = "unlisted_location"
    TABLE_UUID = "table_uuid"
    NAMED_PREFIX = "named_prefix"


# Kinds of rows that are not files. They occur in `manifest_entries` and content roots, but never in
# a live set.
LOCATION_KINDS = (Kind.TABLE_LOCATION, Kind.UNLISTED_LOCATION, Kind.TABLE_UUID, Kind.NAMED_PREFIX)
FILE_KINDS: tuple[str, ...] = tuple(sorted(value for name, value in vars(Kind).items() if name.isupper()))

# A kind precedes the kinds that it references. A transaction log references nothing, and is only
# referenced by its snapshot.
_BY_REFERENCE: tuple[tuple[str, ...], ...] = (
    (Kind.REF, Kind.CONFIG, Kind.REPO_INFO, Kind.VERSION_HINT),
    (Kind.METADATA_JSON, Kind.VIEW_METADATA, Kind.SNAPSHOT),
    (Kind.MANIFEST_LIST, Kind.METARANGE, Kind.TRANSACTION_LOG),
    (Kind.MANIFEST, Kind.RANGE, Kind.CHUNK_MANIFEST),
)
RANKS: Mapping[str, int] = {kind: rank for rank, kinds in enumerate(_BY_REFERENCE) for kind in kinds}
# No container references these kinds, so reading a lake starts with them.
ROOT_KINDS = _BY_REFERENCE[0]
# Containers that reference only files and no other containers.
LEAF_CONTAINER_KINDS = _BY_REFERENCE[-1]
# Readers use these files only to plan queries, so a missing one loses nothing. Source: Iceberg's
# format/spec.md, "Table Statistics": "Statistics files are informational".
INFORMATIONAL_KINDS = (Kind.STATISTICS, Kind.PARTITION_STATISTICS)
# Rank of data files and of files not referenced by metadata.
LEAF_RANK = len(_BY_REFERENCE)
