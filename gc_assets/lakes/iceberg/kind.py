"""The lake kind `iceberg`.

Its libraries are only imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.file_names import DATA_NAMES, OWN_NAMES
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import FileTraits, HistoryEdits, KindTable, LakeKind, MetadataPattern, TableIdentity, TableRole
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, REACHABLE_SNAPSHOTS

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import Lake


def identify_table(raw: bytes) -> TableIdentity:
    """Identify the table or view that a metadata file describes."""
    from gc_assets.lakes.iceberg.metadata import parse_identity  # The import loads pyarrow.

    return parse_identity("its content", raw)


def is_fragment(raw: bytes) -> bool:
    """Return True if no reader of Iceberg metadata can use the content of a file."""
    from gc_assets.lakes.iceberg import metadata  # The import loads pyarrow.

    return metadata.is_fragment(raw)


def describe_decoder() -> str:
    """Describe which library decodes large manifests on this machine."""
    from gc_assets.lakes.iceberg import avro  # The import loads fastavro.

    return avro.describe_decoder()


def _describe_retention(config: IcebergLakeConfig, properties: Mapping[str, str], source: str = "lakes.yaml") -> str:
    from gc_assets.lakes.iceberg.retention import describe_retention  # The import loads pyarrow.

    return describe_retention(properties, config.retention, source)


def _open(config: IcebergLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.iceberg.lake import IcebergLake

    return IcebergLake(config, objects, storages)


def _discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    from gc_assets.lakes.iceberg.discovery import discover

    return discover(target)


_RETENTION: Final = """\
# By default, Iceberg keeps the snapshots of the last 5 days and at least 1 for each branch. The
# history.expire.* properties of a table and the settings of its refs override this. All other
# snapshots expire: time travel to them ends, and files that only they need become garbage.
retention:
  source: table
  # max_snapshot_age: 30d                   # for all tables, instead of their properties
  # min_snapshots_to_keep: 5
  # refs: [{match: ".*", keep: forever}]    # keeps all history
  # delete_idle: [{match: "tmp-.*", after: 30d}]   # deletes unused branches
"""

KIND: Final = LakeKind(
    name="iceberg",
    title="Iceberg",
    config=IcebergLakeConfig,
    open=_open,
    modules=("pyiceberg", "fastavro"),
    describe_decoder=describe_decoder,
    discover=_discover,
    discovered_in_folders="SQLite files (.db, .sqlite or .sqlite3) that are Iceberg catalogs",
    discovered_servers="an Iceberg REST catalog (/v1/config)",
    catalogs="a SQLite file, catalog:NAME for a catalog of .pyiceberg.yaml, or the address of a REST server",
    retention_yaml=_RETENTION,
    describe_retention=_describe_retention,
    edits=HistoryEdits(loss="removed snapshots of an Iceberg table stay in snapshot_history, but time travel to them is lost"),
    kind_tables=(KindTable(SNAPSHOT_HISTORY, after=(COMMIT_GRAPH, REACHABLE_SNAPSHOTS), listed_after=EXPIRY_PLAN, role=TableRole.HISTORY),),
    files=FileTraits(
        metadata_patterns=(
            MetadataPattern(
                r"\.metadata\.json(\.gz)?$",
                identify_table,
                noun="table metadata",
                file_kinds=frozenset({Kind.METADATA_JSON, Kind.VIEW_METADATA}),
                is_fragment=is_fragment,
            ),
        ),
        own_names=OWN_NAMES,
        data_names=DATA_NAMES,
    ),
)
