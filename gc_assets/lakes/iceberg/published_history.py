"""Publish the snapshot history of a lake as an Iceberg table that every engine can query.

Iceberg's proposal 10646, "Extend Snapshot Metadata Lifecycle", would store expired snapshots in a
separate file that the table metadata references (`expired-snapshots-path`). No engine reads such a
file yet, so we write an ordinary table with one row per snapshot and an `expired` flag. The lake's
own tables get a property with the name of this table.

A publication compares the published rows with the lake's history and commits the differences, so
repeating it has no effect. If the table was lost, all rows are written again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, In
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, LongType, MapType, NestedField, StringType, TimestamptzType

from gc_assets.core.errors import GcError, UsageError
from gc_assets.lakes.iceberg.catalog import CatalogClient, CommitRejected
from gc_assets.lakes.protocol import HistoryPublication

# The published table stores its schema version under this key. In the tables that it describes, the
# same key contains the name of the published table.
PROPERTY: Final = "gc-assets.snapshot-history"
VERSION: Final = "1"
# For each lake, the published table has a property with this prefix that identifies its catalog.
LAKE_PROPERTY: Final = "gc-assets.lake."
SCHEMA: Final = Schema(
    NestedField(1, "lake", StringType(), doc="Name of the lake in lakes.yaml."),
    NestedField(2, "table_name", StringType(), doc="Name of the table when it was last read."),
    NestedField(3, "table_uuid", StringType()),
    NestedField(4, "committed_at", TimestamptzType()),
    NestedField(5, "snapshot_id", LongType()),
    NestedField(6, "parent_id", LongType()),
    NestedField(7, "operation", StringType()),
    NestedField(8, "manifest_list", StringType(), doc="It may be deleted."),
    NestedField(9, "summary", MapType(12, StringType(), 13, StringType(), value_required=False)),
    NestedField(10, "expired", BooleanType(), doc="True if the metadata of the table no longer lists the snapshot."),
    NestedField(11, "expired_at", TimestamptzType()),
    NestedField(14, "reason", StringType(), doc="Rule that removed the snapshot."),
    NestedField(15, "plan_id", StringType(), doc="Plan of gc-assets that removed the snapshot."),
)
# Columns whose values can change. Refs are not published, because they change with every run.
_KEY: Final = ("table_uuid", "snapshot_id")
_COMPARED: Final = (*_KEY, "table_name", "expired", "expired_at", "reason", "plan_id")
# Beyond these limits, it is cheaper to write all rows of the lake again.
_MAX_REPLACED: Final = 10_000
_MAX_FILES: Final = 64
_MAX_ATTEMPTS: Final = 5
_FIRST_WAIT_SECONDS: Final = 0.2
_TABLE_PROPERTIES: Final = {
    PROPERTY: VERSION,
    # If pyiceberg retried an append after another run's commit, the rows would be written twice.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "comment": "Snapshots of Iceberg tables, including expired ones. Written by gc-assets.",
}

# Reads the rows of `snapshot_history` with the given columns, or with all columns if None. It may
# be called several times.
ReadHistory = Callable[[list[str] | None], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """The published history table, and the rows that one lake writes to it.

    Attributes:
        client: Catalog that contains the published table.
        name: Name of the table, as `namespace.table`.
        lake: Name of the lake whose rows are written.
        origin: Identity of the lake's catalog. It prevents two lakes with the same name from
            replacing each other's rows.
    """

    client: CatalogClient
    name: str
    lake: str
    origin: str

    def publish(self, read: ReadHistory, kept_since: datetime) -> HistoryPublication:
        """Commit the differences between the lake's history and the published table.

        The table is created if it does not exist.

        Args:
            read: Reads the rows of `snapshot_history`.
            kept_since: Records of snapshots that expired after this time are never removed. They
                may be missing from the state if it was lost or restored from a backup.

        Raises:
            UsageError: If the table was not created by gc-assets, or contains rows of another lake
                with the same name.
            GcError: If the catalog or the store fails.
        """
        for attempt in range(1, _MAX_ATTEMPTS):
            try:
                return self.client.write(self.name, lambda catalog: self._publish(catalog, read, kept_since))
            except CommitRejected:
                time.sleep(_FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries
        return self.client.write(self.name, lambda catalog: self._publish(catalog, read, kept_since))

    def _publish(self, catalog: Catalog, read: ReadHistory, kept_since: datetime) -> HistoryPublication:
        table = self._open(catalog)
        # Catalogs assign field ids of their own.
        source = _Source(read, self.lake, str(table.metadata.table_uuid), table.schema().as_arrow())
        of_lake = _equal("lake", self.lake)
        scan = table.scan(row_filter=of_lake, selected_fields=_COMPARED)
        files = sum(1 for _ in scan.plan_files())
        changes = compare(scan.to_arrow(), source.read_compared(), kept_since)
        if changes.is_empty:
            return HistoryPublication(self.name)
        is_mixed = pc.any(pc.is_in(changes.kept["snapshot_id"], changes.stale["snapshot_id"].combine_chunks())).as_py()
        replaces_all = files > _MAX_FILES or changes.stale.num_rows > _MAX_REPLACED or changes.has_duplicates or is_mixed
        kept = _read_rows(table, of_lake, changes.kept) if replaces_all and changes.kept.num_rows else None
        with table.transaction() as transaction:
            if table.properties.get(LAKE_PROPERTY + self.lake) != self.origin:
                transaction.set_properties({LAKE_PROPERTY + self.lake: self.origin})
            if replaces_all:
                transaction.overwrite(source.rows(added=kept), of_lake)
            elif changes.stale.num_rows:
                stale = changes.stale["snapshot_id"].unique()
                replaced = And(of_lake, _is_in("snapshot_id", stale.to_pylist()))
                transaction.overwrite(source.rows(Selection(_join_keys(changes.new), stale)), replaced)
            else:
                transaction.append(source.rows(Selection(_join_keys(changes.new))))
        return HistoryPublication(self.name, written=changes.new.num_rows, removed=changes.gone)

    def _open(self, catalog: Catalog) -> Table:
        try:
            table = catalog.load_table(self.name)
        except NoSuchTableError:
            table = self._create(catalog)
        if table.properties.get(PROPERTY) != VERSION:
            raise UsageError(
                f"table {self.name} was not created by this release of gc-assets (its property {PROPERTY} is "
                f"{table.properties.get(PROPERTY)!r}, expected {VERSION!r}); write another name into history.publish.table"
            )
        origin = table.properties.get(LAKE_PROPERTY + self.lake)
        if origin not in {None, self.origin}:
            raise UsageError(
                f"table {self.name} has the rows of another lake {self.lake} (catalog {origin}); rename one of the lakes, "
                f"or remove the property {LAKE_PROPERTY}{self.lake} of the table"
            )
        return table

    def _create(self, catalog: Catalog) -> Table:
        parts = self.name.split(".")[:-1]
        for number in range(1, len(parts) + 1):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(tuple(parts[:number]))
        try:
            return catalog.create_table(self.name, SCHEMA, properties=_TABLE_PROPERTIES)
        except TableAlreadyExistsError:  # Another run created it.
            return catalog.load_table(self.name)


def _read_rows(table: Table, of_lake: BooleanExpression, keys: pa.Table) -> pa.Table:
    """Read one row of the published table for each key."""
    rows = table.scan(row_filter=of_lake).to_arrow()
    joined = _join_keys(rows)
    rows = rows.append_column("_row", pa.array(range(rows.num_rows), pa.int64())).append_column("_key", joined)
    first = rows.filter(pc.is_in(joined, _join_keys(keys))).group_by("_key").aggregate([("_row", "min")])["_row_min"]
    return rows.take(first).drop_columns(["_row", "_key"])


# pyiceberg's expression types do not accept positional arguments in their annotations.
def _equal(column: str, value: str) -> BooleanExpression:
    return EqualTo(column, value)  # pyright: ignore[reportCallIssue]


def _is_in(column: str, values: list[int]) -> BooleanExpression:
    return In(column, values)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between the published rows and the lake's history.

    All Arrow tables contain only the columns that are compared.

    Attributes:
        new: Rows of new and changed snapshots, which have to be written.
        stale: Published rows to replace or remove.
        gone: Number of stale rows whose snapshot is no longer in the lake's history.
        has_duplicates: True if the published table has two rows for the same snapshot.
        kept: Published rows that are missing from the lake's history, but are too recent to remove.
    """

    new: pa.Table
    stale: pa.Table
    kept: pa.Table
    gone: int
    has_duplicates: bool

    @property
    def is_empty(self) -> bool:
        return not (self.new.num_rows or self.stale.num_rows or self.has_duplicates)


def compare(published: pa.Table, wanted: pa.Table, kept_since: datetime) -> Changes:
    """Compare published rows with the lake's history. Both must contain the compared columns."""
    found, history = _without_nulls(published), _without_nulls(wanted)
    unknown = found.join(history, list(_KEY), join_type="left anti")
    since = pa.scalar(kept_since, pa.timestamp("us", "UTC")).cast(pa.int64())
    kept = unknown.filter(pc.and_(unknown["expired"], pc.greater_equal(unknown["expired_at"], since)))
    stale = found.join(history, list(_COMPARED), join_type="left anti").join(kept, list(_KEY), join_type="left anti")
    return Changes(
        kept=kept,
        new=history.join(found, list(_COMPARED), join_type="left anti"),
        stale=stale,
        gone=stale.join(history, list(_KEY), join_type="left anti").num_rows,
        has_duplicates=found.group_by(_KEY).aggregate([]).num_rows < found.num_rows,
    )


def _without_nulls(rows: pa.Table) -> pa.Table:
    """Replace nulls in the compared columns, because joins do not match them."""
    kinds = {"snapshot_id": pa.int64(), "expired": pa.bool_(), "expired_at": pa.int64()}
    columns: dict[str, pa.ChunkedArray] = {}
    for name in _COMPARED:
        column = rows[name].cast(pa.timestamp("us", "UTC")) if name == "expired_at" else rows[name]
        kind = kinds.get(name, pa.string())
        columns[name] = pc.fill_null(column.cast(kind), False if kind == pa.bool_() else -1 if kind == pa.int64() else "")
    return pa.table(columns)


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows to write: those of new and changed snapshots, and all that share a replaced snapshot id.

    Two tables can share snapshot ids if one was registered from a copy of the other. Because rows
    are removed by snapshot id, rows of both tables are then removed and have to be written again.
    """

    keys: pa.Array
    replaced_ids: pa.Array | None = None

    def matches(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a mask that is true for the selected rows of `snapshot_history`."""
        found = pc.is_in(_join_keys(batch), value_set=self.keys)
        if self.replaced_ids is None:
            return found
        return pc.or_(found, pc.is_in(batch["snapshot_id"].cast(pa.int64()), value_set=self.replaced_ids))


def _join_keys(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Join each row's table UUID and snapshot id into one key."""
    joined = pc.binary_join_element_wise(rows["table_uuid"].cast(pa.string()), rows["snapshot_id"].cast(pa.string()), "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


@dataclass(frozen=True, slots=True)
class _Source:
    """The lake's history as rows of the published table, except for that table's own snapshots.

    Each publication adds a snapshot to the published table, which would otherwise require another
    publication.
    """

    read: ReadHistory
    lake: str
    own_uuid: str
    schema: pa.Schema

    def read_compared(self) -> pa.Table:
        batches = [self._select(batch) for batch in self.read(list(_COMPARED))]
        return pa.concat_tables(map(pa.Table.from_batches, ([batch] for batch in batches))) if batches else _EMPTY

    def rows(self, selection: Selection | None = None, added: pa.Table | None = None) -> pa.RecordBatchReader:
        """Return the selected rows of the history (default: all), then the rows in `added`."""

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in map(self._select, self.read(None)):
                chosen = batch if selection is None else batch.filter(selection.matches(batch))
                if chosen.num_rows:
                    yield _to_published(chosen, self.lake, self.schema)
            if added is not None:
                yield from added.cast(self.schema).to_batches()

        return pa.RecordBatchReader.from_batches(self.schema, batches())

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.fill_null(pc.not_equal(batch["table_uuid"], self.own_uuid), True))


_EMPTY: Final = pa.table({name: pa.array([], pa.timestamp("us", "UTC") if name == "expired_at" else pa.string()) for name in _COMPARED})


def _to_published(batch: pa.RecordBatch, lake: str, schema: pa.Schema) -> pa.RecordBatch:
    columns: Mapping[str, pa.Array] = {"lake": pa.repeat(lake, batch.num_rows)}
    return pa.RecordBatch.from_arrays([columns.get(field.name, _column(batch, field)) for field in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    return pa.nulls(batch.num_rows, field.type) if field.name not in batch.schema.names else batch[field.name].cast(field.type)


def find_expired_tables(read: ReadHistory) -> set[str]:
    """Return the UUIDs of tables that have expired snapshots."""
    return {uuid for batch in read(["table_uuid", "expired"]) for uuid in batch.filter(batch["expired"])["table_uuid"].unique().to_pylist()}


def point_to(client: CatalogClient, tables: Mapping[str, str], name: str) -> tuple[set[str], list[str]]:
    """Set a property with the published table's name on other tables of the catalog.

    Args:
        client: Catalog of these tables.
        tables: Table names, keyed by table UUID.
        name: Name of the published table.

    Returns:
        The UUIDs of tables that have the property now, and a note for each table on which it cannot
        be set.
    """
    pointed, notes = set[str](), list[str]()
    for uuid, table in tables.items():
        try:
            client.set_property(table, uuid, PROPERTY, name)
            pointed.add(uuid)
        except GcError as error:
            notes.append(f"table {table} has no property {PROPERTY}: {error}")
    return pointed, notes
