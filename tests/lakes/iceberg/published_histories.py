"""A lake that publishes made-up snapshots to a table of a SQL catalog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.published_history import HistoryTable
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.protocol import HistoryPublication
from tests.lakes.iceberg.builder import LakeBuilder

NAME = "gc.snapshot_history"
START = datetime(2026, 9, 1, tzinfo=UTC)


def snapshot(number: int, uuid: str = "u1", **changes: Any) -> dict[str, Any]:
    """Return a row of `snapshot_history`."""
    row: dict[str, Any] = {
        "table_uuid": uuid,
        "snapshot_id": str(number),
        "table_name": "shop.orders",
        "parent_id": str(number - 1) if number > 1 else None,
        "committed_at": START + timedelta(hours=number % 1000),
        "operation": "append",
        "summary": {"added-records": str(number)},
        "manifest_list": f"file:///w/snap-{number}.avro",
        "refs": ["main"],
        "expired": False,
        "expired_at": None,
        "reason": None,
        "plan_id": None,
    }
    return row | changes


def expired_snapshot(number: int, uuid: str = "u1", plan: str = "p1") -> dict[str, Any]:
    return snapshot(number, uuid, expired=True, expired_at=START + timedelta(days=9), reason="too old", plan_id=plan)


@dataclass
class Publisher:
    """A lake that publishes to the table of a SQL catalog."""

    builder: LakeBuilder
    lake: str = "sales"
    origin: str = "catalog of sales"
    kept_since: datetime = START + timedelta(days=30)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def publish(self, *rows: dict[str, Any]) -> HistoryPublication:
        self.rows = list(rows)
        client = CatalogClient(self.lake, self.builder.catalog_name, self.builder.properties)
        return HistoryTable(client, NAME, self.lake, self.origin).publish(self._read, self.kept_since)

    def _read(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_pylist(self.rows, SNAPSHOT_HISTORY.schema)
        yield from (table if columns is None else table.select(columns)).to_batches(max_chunksize=3)

    @property
    def table(self) -> Table:
        return self.builder.catalog.load_table(NAME)

    def read_published(self) -> dict[tuple[str, str, int], tuple[bool, str | None]]:
        """Return the published flags and plans by lake, table and snapshot. Fails on two rows of one snapshot."""
        rows = self.table.scan().to_arrow().to_pylist()
        found = {(row["lake"], row["table_uuid"], row["snapshot_id"]): (row["expired"], row["plan_id"]) for row in rows}
        assert len(found) == len(rows)
        return found
