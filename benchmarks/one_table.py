"""An Iceberg table with very many files. Only its metadata exists.

fastavro writes one manifest. The others are copies with other paths: their Avro is not compressed
and all numbers have the same length. Manifest list and metadata.json come from a commit of
pyiceberg.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table, Transaction

from benchmarks.cache import FINISHED, change, prepare_build
from benchmarks.iceberg_lake import SCHEMA, SPEC, IcebergLake, ManifestCommit, build_entry
from gc_assets.demo.iceberg_builder import clock_at

NAME: Final = "shop.orders"
FILES_PER_MANIFEST: Final = 10_000
DAY: Final = "2025-06-01"
PROPERTIES: Final = {"write.avro.compression-codec": "null"}


def directory_name(files: int) -> str:
    """Return the name of the lake in the cache."""
    return f"iceberg-one-table-of-{files}-files"


def ensure_lake(cache: Path, files: int) -> IcebergLake:
    """Return the cached lake with this number of files. Build it if it is missing or incomplete."""
    lake = IcebergLake(cache.resolve() / directory_name(files))
    if prepare_build(lake.root):
        build(lake, files)
    return lake


def build(lake: IcebergLake, files: int) -> None:
    """Commit once, one day before the `now` of the lake, with manifests of `FILES_PER_MANIFEST`
    files.
    """
    lake.warehouse.mkdir(parents=True)
    catalog, at = lake.catalog(), lake.now - timedelta(days=1)
    catalog.create_namespace("shop")
    with clock_at(at):
        catalog.create_table(NAME, SCHEMA, partition_spec=SPEC, properties=PROPERTIES)
    _commit(lake, at, range(max(1, files // FILES_PER_MANIFEST)))
    (lake.root / FINISHED).write_text("{}")


@contextmanager
def add_one_percent(lake: IcebergLake, files: int) -> Generator[datetime]:
    """Add one percent of files in one commit. Undo it afterwards.

    Yields:
        The `now` of the lake, one day later.
    """
    later, before = lake.now + timedelta(days=1), lake.catalog_file.read_bytes()
    existing, manifests = set(lake.warehouse.rglob("*")), max(1, files // FILES_PER_MANIFEST)
    with change(lake.root):
        try:
            _commit(lake, later - timedelta(hours=6), range(manifests, manifests + max(1, manifests // 100)))
            yield later
        finally:
            lake.catalog_file.write_bytes(before)
            for path in set(lake.warehouse.rglob("*")) - existing:
                path.unlink()


def _commit(lake: IcebergLake, at: datetime, numbers: range) -> None:
    table = lake.catalog().load_table(NAME)
    with clock_at(at), table.transaction() as transaction:
        _WideAppend(transaction, table, numbers).commit()


class _WideAppend(ManifestCommit):
    """Adds one manifest per number."""

    def __init__(self, transaction: Transaction, table: Table, numbers: range) -> None:
        location = table.location()
        folder = f"{location}/data/{_directory(numbers[0])}"
        entries = [build_entry(f"{folder}/{index:05}-0.parquet", DAY) for index in range(FILES_PER_MANIFEST)]
        super().__init__(transaction, table, Path(location.removeprefix("file://")) / "metadata", entries, [], [])
        self._numbers = numbers
        # The commit with the smallest id is recorded as the witness of all files. The new commit gets
        # a larger id than the first one, so that all measurements do the same work.
        head = table.current_snapshot()
        while head is not None and str(self._snapshot_id) < str(head.snapshot_id):
            self._snapshot_id = transaction.table_metadata.new_snapshot_id()
        self.entries = [{**entry, "snapshot_id": self._snapshot_id} for entry in self.entries]

    def _manifests(self) -> list[ManifestFile]:
        written = self._write(self.entries, self._numbers[0])
        path = self._metadata / written.manifest_path.rpartition("/")[2]
        content, own = path.read_bytes(), f"/{_directory(self._numbers[0])}/".encode()
        copies: list[ManifestFile] = []
        for number in self._numbers[1:]:
            name = f"{self.commit_uuid}-m{number}.avro"
            (self._metadata / name).write_bytes(content.replace(own, f"/{_directory(number)}/".encode()))
            copies.append(_readdress(written, f"{self._address}/{name}"))
        return [written, *copies, *self._existing_manifests()]


def _directory(number: int) -> str:
    return f"day={DAY}/part-{number:06}"


def _readdress(manifest: ManifestFile, address: str) -> ManifestFile:
    return ManifestFile.from_args(manifest_path=address, **{name: getattr(manifest, name) for name in _FIELDS})


_FIELDS: Final = (
    "manifest_length",
    "partition_spec_id",
    "content",
    "sequence_number",
    "min_sequence_number",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
    "partitions",
    "key_metadata",
)
