"""Write a segment of `manifest_entries`, the cache of decoded container entries."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EDGES,
    EDGES_SIDE,
    HASHES,
    HASHES_SIDE,
    LINKS,
    LINKS_SIDE,
    LOCATIONS,
    LOCATIONS_SIDE,
    UNREAD_LOCATIONS,
    UNREAD_LOCATIONS_SIDE,
    UNREADABLE_CONTAINERS,
    UNREADABLE_CONTAINERS_SIDE,
    UNRESOLVED,
    UNRESOLVED_SIDE,
)

_SIDE_TABLES: Final = {
    CONTAINERS_SIDE: CONTAINERS,
    EDGES_SIDE: EDGES,
    HASHES_SIDE: HASHES,
    LINKS_SIDE: LINKS,
    LOCATIONS_SIDE: LOCATIONS,
    UNREAD_LOCATIONS_SIDE: UNREAD_LOCATIONS,
    UNREADABLE_CONTAINERS_SIDE: UNREADABLE_CONTAINERS,
    UNRESOLVED_SIDE: UNRESOLVED,
}


class SegmentWriter:
    """Write the entries that one task decodes, and the side tables of `manifest_entries`."""

    def __init__(self, files: Files, run: TableRun) -> None:
        # Containers have separate parts, which readers of files skip based on the parts'
        # statistics.
        self._entries, self._inner = (PartWriter(files, run.path, MANIFEST_ENTRIES.schema) for _ in range(2))
        self._side_writers = {side: PartWriter(files, run.path, schema, side) for side, schema in _SIDE_TABLES.items()}

    def add_entries(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Write entries (columns of `manifest_entries`) with their edges and hashes.

        Returns:
            The key hashes of the file entries (`HASHES` columns).
        """
        inner, hashes = entries.filter(entries.column("is_container")), build_hashes(entries)
        self._entries.write(entries.filter(pc.invert(entries.column("is_container"))))
        self._inner.write(inner)
        self._side_writers[EDGES_SIDE].write(inner)
        self._side_writers[HASHES_SIDE].write(hashes)
        return hashes

    def add(self, side: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows of a side table."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            self._side_writers[side].write(batch)

    def close(self) -> list[PartFile]:
        """Write the last parts, and return all parts."""
        return [part for writer in (self._entries, self._inner, *self._side_writers.values()) for part in writer.close()]


def count_by_container(rows: pa.RecordBatch | pa.Table) -> dict[str, int]:
    """Count the rows of each container."""
    found = pc.value_counts(rows.column("container"))
    return dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))
