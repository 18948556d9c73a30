"""Build Iceberg lakes on a local disk, with commits at chosen times.

pyiceberg writes the files. It does not support writing delete files, so they are added with its
manifest writer. The modification time of a file is the time of its commit. The metadata can contain
another address of the warehouse, to which the files are copied later.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import SetSnapshotRefUpdate, TableUpdate
from pyiceberg.table.update.snapshot import (
    _FastAppendFiles,  # pyright: ignore[reportPrivateUsage]  # the only producer whose manifests a subclass can choose
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.types import LongType, NestedField, StringType

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
_ADDRESS, _FOLDER = "gc-assets.address", "gc-assets.folder"
BY_PART = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))


@contextmanager
def clock_at(moment: datetime) -> Generator[None]:
    """Make pyiceberg use `moment` as the current time.

    pyiceberg reads the time of a snapshot with `time.time`, and other times with
    `datetime_to_millis`.
    """
    seconds = moment.timestamp()
    milliseconds = int(seconds * 1000)
    with (
        mock.patch.object(time, "time", return_value=seconds),
        mock.patch("pyiceberg.table.update.datetime_to_millis", return_value=milliseconds),
        mock.patch("pyiceberg.table.metadata.datetime_to_millis", return_value=milliseconds),
    ):
        yield


class RelocatedFileIO(PyArrowFileIO):
    """Maps the files of another address to a local directory."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        return "file", "", f"{properties[_FOLDER]}{location.removeprefix(properties[_ADDRESS])}"


class LakeBuilder:
    """A SQL catalog in SQLite (`<root>/catalog.db`) and its warehouse.

    The default directory of the warehouse is `<root>/warehouse`.

    Args:
        address: The address of the warehouse in the metadata. By default, it is the directory.
    """

    def __init__(
        self,
        root: Path,
        catalog_name: str = "default",
        catalog_file: str = "catalog.db",
        warehouse: Path | None = None,
        address: str | None = None,
    ) -> None:
        self.root = root
        self.warehouse = warehouse or root / "warehouse"
        self.warehouse.mkdir(parents=True, exist_ok=True)
        self.address = address or f"file://{self.warehouse}"
        self.catalog_name = catalog_name
        self.properties = {"type": "sql", "uri": f"sqlite:///{root / catalog_file}", "warehouse": self.address}
        if address is not None:
            self.properties |= {PY_IO_IMPL: f"{__name__}.{RelocatedFileIO.__name__}", _ADDRESS: address, _FOLDER: str(self.warehouse)}
        self.catalog = SqlCatalog(catalog_name, **self.properties)
        self._dated: set[Path] = set()

    def table(
        self,
        name: str,
        at: datetime,
        *,
        partitioned: bool = False,
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
    ) -> TableBuilder:
        """Create a table with a name like `namespace.table`. Namespaces can be nested."""
        namespace = tuple(name.split(".")[:-1])
        for depth in range(1, len(namespace) + 1):
            self.catalog.create_namespace_if_not_exists(namespace[:depth])
        spec = BY_PART if partitioned else UNPARTITIONED_PARTITION_SPEC
        with self.at(at):
            self.catalog.create_table(name, SCHEMA, location=location, partition_spec=spec, properties=dict(properties or {}))
        return TableBuilder(self, name)

    @contextmanager
    def at(self, moment: datetime) -> Generator[None]:
        """Use `moment` as the time of all commits in the block, and of their files."""
        with clock_at(moment):
            yield
        self.date_files(moment)

    def date_files(self, moment: datetime) -> None:
        """Set the modification time of all new files in the warehouse."""
        for path in self.files() - self._dated:
            os.utime(path, (moment.timestamp(), moment.timestamp()))
            self._dated.add(path)

    def files(self) -> set[Path]:
        """Return all files in the warehouse."""
        return {path for path in self.warehouse.rglob("*") if path.is_file() and ".gc-assets" not in path.parts}


class TableBuilder:
    """Commits changes to one table at chosen times.

    All methods that create a snapshot return its id as a decimal string.
    """

    def __init__(self, lake: LakeBuilder, name: str) -> None:
        self.lake = lake
        self.name = name

    @property
    def table(self) -> Table:
        """The current state of the table in the catalog."""
        return self.lake.catalog.load_table(self.name)

    def append(self, at: datetime, ids: Sequence[int] = (1, 2), part: str = "a", branch: str | None = "main") -> str:
        """Append one data file. If `branch` is None, no ref can reach the new snapshot."""
        with self.lake.at(at):
            self.table.append(rows_of(ids, part), branch=branch)
        return self._newest()

    def overwrite(self, at: datetime, ids: Sequence[int] = (7,), part: str = "a") -> str:
        with self.lake.at(at):
            self.table.overwrite(rows_of(ids, part))
        return self._newest()

    def delete(self, at: datetime, row_filter: str) -> str:
        with self.lake.at(at):
            self.table.delete(row_filter)
        return self._newest()

    def branch(self, at: datetime, name: str, snapshot_id: str, **settings: int) -> None:
        """Create a branch.

        Possible settings are `min_snapshots_to_keep`, `max_snapshot_age_ms` and `max_ref_age_ms`.
        """
        self._set_ref(at, name, "branch", snapshot_id, settings)

    def tag(self, at: datetime, name: str, snapshot_id: str, **settings: int) -> None:
        self._set_ref(at, name, "tag", snapshot_id, settings)

    def position_deletes(self, at: datetime, position: int = 0) -> str:
        """Delete one row of the newest data file, by its position."""
        target = self._newest_data_file()
        deletes = parquet_bytes(pa.table({"file_path": [target.file_path], "pos": pa.array([position], pa.int64())}))
        return self._commit_deletes(at, target, DataFileContent.POSITION_DELETES, FileFormat.PARQUET, deletes)

    def leftovers(self, at: datetime, count: int = 3) -> list[Path]:
        """Write the data files and the manifest of a writer that failed before its commit."""
        provider = self.table.location_provider()
        addresses = [provider.new_data_location(f"00000-{index}-{uuid.uuid4()}.parquet") for index in range(count)]
        payload = parquet_bytes(rows_of([99], "a"))
        for address in addresses:
            self._write(address, payload)
        manifest = provider.new_metadata_location(f"{uuid.uuid4()}-m0.avro")
        self._write(manifest, b"Obj\x01 a manifest that was never finished")
        self.lake.date_files(at)
        return [self._path_of(address) for address in [*addresses, manifest]]

    @staticmethod
    def path(address: str) -> Path:
        return Path(address.removeprefix("file://"))

    def _newest(self) -> str:
        return str(self.table.metadata.snapshots[-1].snapshot_id)

    def _set_ref(self, at: datetime, name: str, ref_type: str, snapshot_id: str, settings: Mapping[str, int]) -> None:
        with self.lake.at(at), self.table.transaction() as transaction:
            named = {"ref-name": name, "type": ref_type, "snapshot-id": int(snapshot_id)}
            hyphenated = {key.replace("_", "-"): value for key, value in settings.items()}
            apply_updates(transaction, SetSnapshotRefUpdate.model_validate({**named, **hyphenated}))

    def _newest_data_file(self) -> DataFile:
        table = self.table
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise ValueError(f"table {self.name} has no snapshot, so it has no data file to delete rows from")
        manifests = [item for item in snapshot.manifests(table.io) if item.content == ManifestContent.DATA]
        return manifests[0].fetch_manifest_entry(table.io)[0].data_file

    def _commit_deletes(
        self,
        at: datetime,
        target: DataFile,
        content: DataFileContent,
        file_format: FileFormat,
        payload: bytes,
        equality_ids: list[int] | None = None,
    ) -> str:
        table = self.table
        address = table.location_provider().new_data_location(f"deletes-{uuid.uuid4()}.{file_format.value.lower()}")
        with self.lake.at(at), table.transaction() as transaction:
            self._write(address, payload)
            file = DataFile.from_args(
                content=content,
                file_path=address,
                file_format=file_format,
                partition=target.partition,
                record_count=1,
                file_size_in_bytes=len(payload),
                equality_ids=equality_ids,
            )
            file.spec_id = table.metadata.default_spec_id
            _AppendDeletes(file, transaction, table).commit()
        return self._newest()

    def _write(self, address: str, payload: bytes) -> int:
        path = self._path_of(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.write_bytes(payload)

    def _path_of(self, address: str) -> Path:
        """Return the local path of a file in the warehouse, or of one at another `location`."""
        return self.path(address.replace(self.lake.address, str(self.lake.warehouse), 1))


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AppendDeletes(_FastAppendFiles):
    """Commits a snapshot that adds one delete file."""

    def __init__(self, file: DataFile, transaction: Any, table: Table) -> None:
        super().__init__(operation=Operation.DELETE, transaction=transaction, io=table.io)
        self._file = file

    def _manifests(self) -> list[ManifestFile]:
        metadata, output = self._transaction.table_metadata, self.new_manifest_output()
        with _DeleteManifestWriter(metadata.spec(), metadata.schema(), output, self._snapshot_id, self._compression) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=self._file,
            )
            writer.add_entry(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        self._added_data_files.append(self._file)  # this only affects the totals
        return super()._summary(snapshot_properties)


def apply_updates(transaction: Transaction, *updates: TableUpdate) -> None:
    # pyiceberg has no public function that can set a ref with its own retention to any snapshot.
    transaction._apply(updates, ())  # pyright: ignore[reportPrivateUsage]


def rows_of(ids: Sequence[int], part: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "part": [part] * len(ids)})


def parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()
