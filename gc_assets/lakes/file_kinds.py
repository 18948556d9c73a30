"""File kinds: the role of a file in its lake format, such as manifest or data file.

The kinds are listed in order: a file only references files whose kind is listed later.
"""

from __future__ import annotations

from collections.abc import Mapping


class Kind:
    """Names of all file kinds. Readers raise `FormatError` if they find any other kind."""

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
    # One of the names that an object (lakeFS) or virtual chunk may have. All of them are live, but
    # are not counted as files, because only one of them has to exist.
    POSSIBLE_OBJECT = "possible_object"
    REF = "ref"
    CONFIG = "config"
    # The `repo` object of Icechunk spec version 2, and its copies.
    REPO_INFO = "repo_info"
    VIEW_METADATA = "view_metadata"
    # The following kinds are not files. A table or view owns every file under its `table_location`.
    # Files under an `unlisted_location` have no known owner. A `table_uuid` (`urn:uuid:`)
    # identifies the table or view that a metadata file describes. A `named_prefix` records that a
    # container uses a prefix (`NamedPrefixes.reference`).
    TABLE_LOCATION = "table_location"
    UNLISTED_LOCATION = "unlisted_location"
    TABLE_UUID = "table_uuid"
    NAMED_PREFIX = "named_prefix"


# These rows are not files. Containers and commits reference them, but they are never in a live set.
LOCATION_KINDS = (Kind.TABLE_LOCATION, Kind.UNLISTED_LOCATION, Kind.TABLE_UUID, Kind.NAMED_PREFIX)
FILE_KINDS: tuple[str, ...] = tuple(sorted(value for name, value in vars(Kind).items() if name.isupper()))

# Each kind only references kinds that come after it. Transaction logs do not reference anything.
# They are in this list because snapshots reference them.
_BY_REFERENCE: tuple[tuple[str, ...], ...] = (
    (Kind.REF, Kind.CONFIG, Kind.REPO_INFO, Kind.VERSION_HINT),
    (Kind.METADATA_JSON, Kind.VIEW_METADATA, Kind.SNAPSHOT),
    (Kind.MANIFEST_LIST, Kind.METARANGE, Kind.TRANSACTION_LOG),
    (Kind.MANIFEST, Kind.RANGE, Kind.CHUNK_MANIFEST),
)
RANKS: Mapping[str, int] = {kind: rank for rank, kinds in enumerate(_BY_REFERENCE) for kind in kinds}
# No container references these kinds, so reading a lake starts with them.
ROOT_KINDS = _BY_REFERENCE[0]
# These containers only reference files that are not containers.
LEAF_CONTAINER_KINDS = _BY_REFERENCE[-1]
# Readers use these files for query planning only, so no data is lost if one is missing. Source:
# Iceberg's format/spec.md, "Table Statistics": "Statistics files are informational".
INFORMATIONAL_KINDS = (Kind.STATISTICS, Kind.PARTITION_STATISTICS)
# Rank of data files, and of files that no metadata references.
LEAF_RANK = len(_BY_REFERENCE)
