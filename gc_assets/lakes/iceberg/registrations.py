"""A table under one name of a catalog, and what of it is frozen. Pure: knows no catalog, walks
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gc_assets.lakes.iceberg.metadata import GC_ENABLED, MAIN, TABLE_SETTINGS, TableMetadata
from gc_assets.lakes.iceberg.retention import COLLECT, WRITABLE
from gc_assets.lakes.protocol import CommitSource, Ref
from gc_assets.state.schemas import COMMIT_GRAPH


@dataclass(frozen=True, slots=True)
class Registration:
    """A table under one name of the catalog. One table may be registered twice, at different
    metadata files.

    `writable` is false where pyiceberg cannot commit to it. Its history is then kept, or every plan
    would ask for what cannot be done. `digest` is the SHA-256 of the metadata file.
    """

    name: str
    table: TableMetadata
    size_bytes: int
    matched: bool
    writable: bool = True
    digest: str | None = None

    @property
    def collect(self) -> bool:
        return self.matched and self.table.gc_enabled


def refs_of(item: Registration) -> Iterator[Ref]:
    """Returns every branch and tag. A table without any has `main` without a head."""
    for ref in item.table.refs:
        yield Ref(ref.name, ref.ref_type, ref.snapshot_id, item.table.table_uuid, item.name, ref.settings)
    if not item.table.refs:
        yield Ref(MAIN, "branch", None, item.table.table_uuid, item.name)


def source_of(item: Registration) -> CommitSource:
    """Returns where the table's commits are read, with the properties that retention needs."""
    properties = {key: value for key, value in item.table.properties.items() if key in {*TABLE_SETTINGS, GC_ENABLED}}
    ours = {COLLECT: "true" if item.collect else "false"} | ({} if item.writable else {WRITABLE: "false"})
    return CommitSource(item.table.address, item.table.table_uuid, item.name, properties={**properties, **ours}, digest=item.digest)


def graph_of(items: Iterable[Registration]) -> pa.Table:
    """Returns the snapshots of all registrations as `commit_graph` rows, each once, with what
    retention reads of them.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for item in items:
        for snapshot in item.table.snapshots:
            row = {
                "table_uuid": item.table.table_uuid,
                "commit_id": snapshot.snapshot_id,
                "parents": [] if snapshot.parent_id is None else [snapshot.parent_id],
                "committed_at": snapshot.committed_at,
                "table_name": item.name,
            }
            rows.setdefault((item.table.table_uuid, snapshot.snapshot_id), row)
    return pa.Table.from_pylist(list(rows.values()), schema=COMMIT_GRAPH.schema)
