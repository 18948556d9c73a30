"""What a file of a lake is to its format, and which kinds name which."""

from __future__ import annotations

from collections.abc import Mapping


class Kind:
    """The closed list of file kinds. A format that meets another one stops (`FormatError`)."""

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
    # A name that an object may have here (lakeFS). It is kept, and not counted as one more file.
    POSSIBLE_OBJECT = "possible_object"
    REF = "ref"
    CONFIG = "config"
    VIEW_METADATA = "view_metadata"
    # These are places, not files. Everything below the location of a table or view is its own.
    # Below an unlisted location nothing can be told. A `urn:uuid:` says to which table or view a
    # metadata file belongs.
    TABLE_LOCATION = "table_location"
    UNLISTED_LOCATION = "unlisted_location"
    TABLE_UUID = "table_uuid"


# Kinds that are no files. They stand beside `manifest_entries` and content roots, and never in a
# live set.
PLACE_KINDS = (Kind.TABLE_LOCATION, Kind.UNLISTED_LOCATION, Kind.TABLE_UUID)
FILE_KINDS: tuple[str, ...] = tuple(sorted(value for name, value in vars(Kind).items() if name.isupper()))

# A kind stands before the kinds that it names. A transaction log names nothing, and only its
# snapshot leads to it.
_BY_REFERENCE: tuple[tuple[str, ...], ...] = (
    (Kind.REF, Kind.CONFIG, Kind.VERSION_HINT),
    (Kind.METADATA_JSON, Kind.VIEW_METADATA, Kind.SNAPSHOT),
    (Kind.MANIFEST_LIST, Kind.METARANGE, Kind.TRANSACTION_LOG),
    (Kind.MANIFEST, Kind.RANGE, Kind.CHUNK_MANIFEST),
)
RANKS: Mapping[str, int] = {kind: rank for rank, kinds in enumerate(_BY_REFERENCE) for kind in kinds}
# Reading a lake starts at these kinds: no container names them.
ROOT_KINDS = _BY_REFERENCE[0]
# The rank of data, and of files that no metadata names.
LEAF_RANK = len(_BY_REFERENCE)
