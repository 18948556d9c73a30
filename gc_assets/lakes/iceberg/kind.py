"""What the collector knows of Iceberg lakes before it opens one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.bounded import gunzip
from gc_assets.core.documents import parsed_json
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import ForeignSign, KindTable, LakeKind, TableFound, TableRole
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, REACHABLE_SNAPSHOTS

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import Found, Place
    from gc_assets.lakes.protocol import Lake


def table_found(raw: bytes) -> TableFound:
    """Returns the table or view to which the bytes of a metadata file belong."""
    document = parsed_json(gunzip(raw) if raw[:2] == b"\x1f\x8b" else raw)
    uuid = document["table-uuid"] if "table-uuid" in document else document["view-uuid"]
    return TableFound(uuid, max((item["timestamp-ms"] for item in document.get("snapshots", [])), default=0))


def _open(config: IcebergLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.iceberg.lake import IcebergLake

    del storages
    return IcebergLake(config, objects)


def _discover(place: Place) -> Iterator[Found]:
    from gc_assets.lakes.iceberg.discovery import discover

    return discover(place)


KIND: Final = LakeKind(
    name="iceberg",
    title="Iceberg",
    config=IcebergLakeConfig,
    open=_open,
    modules=("pyiceberg", "fastavro", "datafusion"),
    edits_history=True,
    edits_lose="what was removed from an Iceberg table stays on record in snapshot_history, and time travel to it is gone",
    kind_tables=(KindTable(SNAPSHOT_HISTORY, after=(COMMIT_GRAPH, REACHABLE_SNAPSHOTS), behind=EXPIRY_PLAN, role=TableRole.HISTORY),),
    foreign_signs=(ForeignSign(r"\.metadata\.json(\.gz)?$", table_found, noun="table metadata"),),
    discover=_discover,
)
