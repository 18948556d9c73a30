"""Iceberg lakes of the sizes in docs/performance.md: real metadata, and sparse data files.

fastavro writes manifests with pyiceberg's schema in 64 KB blocks, as Java engines do. Snapshots,
manifest lists and metadata.json come from commits of pyiceberg. Times are fixed, so that a cached
lake does not age.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import fastavro
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    FileFormat,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from benchmarks.cache import FINISHED, change, prepare_build
from gc_assets.demo.iceberg_builder import clock_at

NOW: Final = datetime(2025, 6, 30, 3, tzinfo=UTC)
CATALOG_NAME: Final = "default"
FORMAT_VERSION: Final = 2
ADDED, EXISTING, DELETED = 1, 0, 2
DATA_FILE_BYTES: Final = 32 * 1024 * 1024
DATA_FILE_ROWS: Final = 250_000
# Every third commit also rewrites the manifest of the previous commit and deletes a tenth of its
# files.
REWRITE_EVERY: Final = 3
LEFTOVERS_SHARE: Final = 0.01

SCHEMA = Schema(
    NestedField(1, "day", StringType()),
    NestedField(2, "order_id", LongType()),
    NestedField(3, "customer_id", LongType()),
    NestedField(4, "item", StringType()),
    NestedField(5, "price", DoubleType()),
    NestedField(6, "quantity", LongType()),
)
SPEC = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="day"))
_AVRO_SCHEMA = fastavro.parse_schema(
    AvroSchemaConversion().iceberg_to_avro(
        manifest_entry_schema_with_data_file(FORMAT_VERSION, data_file_with_partition(SPEC.partition_type(SCHEMA), FORMAT_VERSION)),
        schema_name="manifest_entry",
    )
)
_HEADER = {
    "schema": SCHEMA.model_dump_json(),
    "partition-spec": json.dumps([field.model_dump(by_alias=True, mode="json") for field in SPEC.fields]),
    "partition-spec-id": str(SPEC.spec_id),
    "format-version": str(FORMAT_VERSION),
    "content": "data",
}


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a lake. It has `tables * commits * files_per_commit` data files."""

    tables: int
    commits: int
    files_per_commit: int

    @property
    def leftovers(self) -> int:
        """The number of files that crashed writers left in each table."""
        return max(1, int(self.commits * self.files_per_commit * LEFTOVERS_SHARE))


SIZES: Final = {"s": Size(2, 20, 45), "m": Size(50, 10, 90), "l": Size(4, 25, 6_900)}


class IcebergLake:
    """A SQL catalog on sqlite (`catalog.db`) and `warehouse/` in `root`. The newest commit is one
    day older than `now`.
    """

    now = NOW

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warehouse = root / "warehouse"
        self.catalog_file = root / "catalog.db"
        self.properties = {"type": "sql", "uri": f"sqlite:///{self.catalog_file}", "warehouse": f"file://{self.warehouse}"}

    def catalog(self) -> SqlCatalog:
        return SqlCatalog(CATALOG_NAME, **self.properties)

    def writer(self, name: str) -> TableWriter:
        return TableWriter(self.catalog().load_table(name))

    def table_names(self) -> list[str]:
        catalog = self.catalog()
        return sorted(".".join(name) for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace))

    def config(self, state: Path) -> dict[str, Any]:
        """Return the content of a `lakes.yaml` for this lake."""
        return {
            "state": str(state),
            "storages": [{"name": "warehouse", "location": f"file://{self.warehouse}/"}],
            "lakes": [{"name": "shop", "kind": "iceberg", "catalog": self.properties, "catalog_name": CATALOG_NAME}],
        }


def ensure_lake(cache: Path, name: str) -> IcebergLake:
    """Return the cached lake of a size. Build it if it is missing or incomplete."""
    lake = IcebergLake(cache.resolve() / f"iceberg-{name}")
    if prepare_build(lake.root):
        build(lake, SIZES[name])
    return lake


def build(lake: IcebergLake, size: Size) -> None:
    """Write one commit per day that ends the day before `NOW`, and one percent of crash leftovers."""
    lake.warehouse.mkdir(parents=True)
    catalog = lake.catalog()
    catalog.create_namespace("shop")
    for index in range(size.tables):
        name, born = f"shop.orders_{index:02}", lake.now - timedelta(days=size.commits + 1)
        with clock_at(born):
            catalog.create_table(name, SCHEMA, partition_spec=SPEC)
        writer = lake.writer(name)
        for commit in range(size.commits):
            at = lake.now - timedelta(days=size.commits - commit)
            writer.commit(at, size.files_per_commit, rewrite=commit % REWRITE_EVERY == REWRITE_EVERY - 1)
        abandoned = lake.now - timedelta(days=5)
        for path in writer.data_paths(f"{abandoned:%Y-%m-%d}", size.leftovers):
            write_data_file(path, abandoned)
    (lake.root / FINISHED).write_text("{}")


@contextmanager
def add_one_percent(lake: IcebergLake, size: Size) -> Generator[datetime]:
    """Add one percent of files, in one commit to each of at most ten tables. Undo it afterwards.

    Yields:
        The `now` of the lake, one day later.
    """
    later = lake.now + timedelta(days=1)
    before = lake.catalog_file.read_bytes()
    files = max(1, size.tables * size.commits * size.files_per_commit // 100)
    tables = min(size.tables, 10)
    writers = [lake.writer(name) for name in lake.table_names()[:tables]]
    with change(lake.root):
        try:
            for writer in writers:
                writer.commit(later - timedelta(hours=6), max(1, files // tables), rewrite=False)
            yield later
        finally:
            lake.catalog_file.write_bytes(before)
            for writer in writers:
                for path in writer.written:
                    path.unlink()


class TableWriter:
    """Commits to one table.

    `written` are the files that it wrote, in order. Entries stay in memory for rewrites and merges.
    Files are written to `home`, by default the location of the table in its metadata.
    """

    def __init__(self, table: Table, home: Path | None = None) -> None:
        self._table = table
        self._home = home or Path(table.location().removeprefix("file://"))
        self._newest: list[dict[str, Any]] = []
        self._all: list[dict[str, Any]] = []
        self.written: list[Path] = []

    def commit(self, at: datetime, files: int, *, rewrite: bool, merge: bool = False) -> None:
        """Add files. `rewrite` also deletes some files of the previous commit. `merge` writes all
        earlier manifests as one.
        """
        day = f"{at:%Y-%m-%d}"
        paths = self.data_paths(day, files)
        for path in paths:
            write_data_file(path, at)
        metadata = self._home / "metadata"
        before = {entry.name for entry in os.scandir(metadata)}
        with clock_at(at), self._table.transaction() as transaction:
            entries = [build_entry(f"{self._table.location()}/{path.relative_to(self._home)}", day) for path in paths]
            rewritten, merged = self._newest if rewrite else [], self._all if merge else []
            producer = ManifestCommit(transaction, self._table, metadata, entries, rewritten, merged)
            producer.commit()
        self._newest = producer.entries
        self._all += producer.existing()
        named = [metadata / entry.name for entry in os.scandir(metadata) if entry.name not in before]
        for path in named:
            os.utime(path, (at.timestamp(), at.timestamp()))
        self.written += [*paths, *named]

    def data_paths(self, day: str, files: int) -> list[Path]:
        """Return new file names in the partition of a day, and create its directory."""
        directory = self._home / "data" / f"day={day}"
        directory.mkdir(parents=True, exist_ok=True)
        writer = uuid.uuid4()
        return [directory / f"{index:05}-0-{writer}.parquet" for index in range(files)]


def write_data_file(path: Path, at: datetime) -> None:
    """Write a sparse file. It has the size that the metadata records, and occupies no block."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.ftruncate(descriptor, DATA_FILE_BYTES)
        os.utime(descriptor, (at.timestamp(), at.timestamp()))
    finally:
        os.close(descriptor)


class ManifestCommit(_FastAppendFiles):
    """Adds the entries as one manifest.

    Entries to rewrite replace their manifest, every tenth of them as deleted. Entries to merge
    replace all earlier manifests.
    """

    def __init__(
        self,
        transaction: Transaction,
        table: Table,
        metadata: Path,
        added: list[dict[str, Any]],
        rewritten: list[dict[str, Any]],
        merged: list[dict[str, Any]],
    ) -> None:
        super().__init__(operation=Operation.OVERWRITE if rewritten else Operation.APPEND, transaction=transaction, io=table.io)
        self._metadata, self._address = metadata, f"{table.location()}/metadata"
        self._codec = table.properties.get(TableProperties.WRITE_AVRO_COMPRESSION, "deflate")
        self._rewritten, self._merged = rewritten, merged
        self._sequence_number = transaction.table_metadata.next_sequence_number()
        self.entries = [{**entry, "snapshot_id": self._snapshot_id} for entry in added]

    def existing(self) -> list[dict[str, Any]]:
        """Return the added entries as later manifests repeat them."""
        inherited = {"sequence_number": self._sequence_number, "file_sequence_number": self._sequence_number}
        return [{**entry, **inherited, "status": EXISTING} for entry in self.entries]

    def _manifests(self) -> list[ManifestFile]:
        manifests = [self._write(self.entries, 0)]
        if self._merged:
            return [*manifests, self._write(self._merged, 1, min_sequence_number=min(entry["sequence_number"] for entry in self._merged))]
        kept = self._existing_manifests()
        if self._rewritten:
            replaced = self._rewritten[0]["snapshot_id"]
            sequence_number = next(item.sequence_number for item in kept if item.added_snapshot_id == replaced)
            inherited = {"sequence_number": sequence_number, "file_sequence_number": sequence_number}
            deleted = {"status": DELETED, "snapshot_id": self._snapshot_id}
            rewritten = [
                {**entry, **inherited, **({"status": EXISTING} if index % 10 else deleted)} for index, entry in enumerate(self._rewritten)
            ]
            kept = [item for item in kept if item.added_snapshot_id != replaced]
            manifests.append(self._write(rewritten, 1, min_sequence_number=sequence_number))
        return [*manifests, *kept]

    def _write(self, entries: Sequence[dict[str, Any]], number: int, min_sequence_number: int | None = None) -> ManifestFile:
        path = self._metadata / f"{self.commit_uuid}-m{number}.avro"
        with path.open("wb") as sink:
            fastavro.writer(sink, _AVRO_SCHEMA, entries, codec=self._codec, sync_interval=64 * 1024, metadata=_HEADER)
        counts = {status: sum(entry["status"] == status for entry in entries) for status in (ADDED, EXISTING, DELETED)}
        days = [entry["data_file"]["partition"]["day"].encode() for entry in entries]
        return ManifestFile.from_args(
            manifest_path=f"{self._address}/{path.name}",
            manifest_length=path.stat().st_size,
            partition_spec_id=SPEC.spec_id,
            content=ManifestContent.DATA,
            sequence_number=self._sequence_number,
            min_sequence_number=min_sequence_number or self._sequence_number,
            added_snapshot_id=self._snapshot_id,
            added_files_count=counts[ADDED],
            existing_files_count=counts[EXISTING],
            deleted_files_count=counts[DELETED],
            added_rows_count=counts[ADDED] * DATA_FILE_ROWS,
            existing_rows_count=counts[EXISTING] * DATA_FILE_ROWS,
            deleted_rows_count=counts[DELETED] * DATA_FILE_ROWS,
            partitions=[PartitionFieldSummary(False, False, min(days), max(days))],
            key_metadata=None,
        )


def build_entry(address: str, day: str) -> dict[str, Any]:
    """Return an added entry as fastavro writes it, with plausible statistics."""
    lower, upper = _BOUNDS
    return {
        "status": ADDED,
        "snapshot_id": None,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": 0,
            "file_path": address,
            "file_format": FileFormat.PARQUET.value,
            "partition": {"day": day},
            "record_count": DATA_FILE_ROWS,
            "file_size_in_bytes": DATA_FILE_BYTES,
            **_STATISTICS,
            "lower_bounds": lower,
            "upper_bounds": upper,
            "key_metadata": None,
            "split_offsets": [4],
            "equality_ids": None,
            "sort_order_id": 0,
        },
    }


def _map(values: dict[int, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in values.items()]


_IDS = [field.field_id for field in SCHEMA.fields]
_STATISTICS = {
    "column_sizes": _map(dict.fromkeys(_IDS, 5_000_000)),
    "value_counts": _map(dict.fromkeys(_IDS, DATA_FILE_ROWS)),
    "null_value_counts": _map(dict.fromkeys(_IDS, 0)),
    "nan_value_counts": _map({5: 0}),
}
_LOW: list[Any] = ["2025-01-01", 1_000, 17, "apple", 0.5, 1]
_HIGH: list[Any] = ["2025-12-31", 9_999_999, 88_000, "zucchini", 999.5, 40]
_BOUNDS = tuple(
    _map({field.field_id: to_bytes(field.field_type, value) for field, value in zip(SCHEMA.fields, values, strict=True)})
    for values in (_LOW, _HIGH)
)
