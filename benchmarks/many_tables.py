"""An Iceberg lake of many tables with long histories.

pyiceberg commits to the first table, at a tenth of a second per commit. The other tables are copies
with their own name and uuid. The Avro files are not compressed and all names have the same length,
so a copy only replaces bytes.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from pyiceberg.table import Table

from benchmarks.cache import FINISHED, prepare_build
from benchmarks.iceberg_lake import SCHEMA, SPEC, IcebergLake, TableWriter, write_data_file
from gc_assets.demo.iceberg_builder import clock_at

NAMESPACES: Final = 20
# The default of engines.
MERGE_EVERY: Final = 100
LEFTOVERS: Final = 2
COMMIT_INTERVAL: Final = timedelta(hours=1)
PROPERTIES: Final = {
    "write.avro.compression-codec": "null",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


@dataclass(frozen=True, slots=True)
class Size:
    """`tables` tables with `commits` commits each, one per hour, of one file each."""

    tables: int
    commits: int


def directory_name(size: Size) -> str:
    """Return the name of the lake in the cache."""
    return f"iceberg-{size.tables}-tables-{size.commits}-commits"


def ensure_lake(cache: Path, size: Size) -> IcebergLake:
    """Return the cached lake of a size. Build it if it is missing or incomplete."""
    lake = IcebergLake(cache.resolve() / directory_name(size))
    if prepare_build(lake.root):
        build(lake, size)
    return lake


def build(lake: IcebergLake, size: Size) -> None:
    """Write histories that end one hour before the `now` of the lake, and crash leftovers in each
    table.
    """
    lake.warehouse.mkdir(parents=True)
    catalog = lake.catalog()
    for number in range(min(NAMESPACES, size.tables)):
        catalog.create_namespace(f"shop_{number:02}")
    first = _build_first_table(lake, size)
    for number in range(1, size.tables):
        name = _name(number)
        catalog.register_table(name, _copy_table(lake, first, name))
    (lake.root / FINISHED).write_text("{}")


def _name(number: int) -> str:
    return f"shop_{number % NAMESPACES:02}.orders_{number:05}"


def _build_first_table(lake: IcebergLake, size: Size) -> Table:
    name, began = _name(0), lake.now - COMMIT_INTERVAL * (size.commits + 1)
    with clock_at(began):
        lake.catalog().create_table(name, SCHEMA, partition_spec=SPEC, properties=PROPERTIES)
    writer = lake.writer(name)
    for commit in range(1, size.commits + 1):
        writer.commit(began + COMMIT_INTERVAL * commit, 1, rewrite=False, merge=commit % MERGE_EVERY == 0)
    _write_leftovers(writer, lake)
    return lake.catalog().load_table(name)


def _write_leftovers(writer: TableWriter, lake: IcebergLake) -> None:
    abandoned = lake.now - timedelta(days=5)
    for path in writer.data_paths(f"{abandoned:%Y-%m-%d}", LEFTOVERS):
        write_data_file(path, abandoned)


def _copy_table(lake: IcebergLake, table: Table, name: str) -> str:
    """Copy a table, and return the address of the metadata.json of the copy."""
    home, location = Path(table.location().removeprefix("file://")), f"file://{lake.warehouse}/{name.replace('.', '/')}"
    names = [(table.location().encode(), location.encode()), (str(table.metadata.table_uuid).encode(), str(uuid.uuid4()).encode())]
    for path in home.rglob("*"):
        target = Path(location.removeprefix("file://")) / path.relative_to(home)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path, target, names)
    return table.metadata_location.replace(table.location(), location)


def _copy_file(path: Path, target: Path, names: list[tuple[bytes, bytes]]) -> None:
    found = path.stat()
    if path.suffix == ".parquet":
        with target.open("xb") as file:
            file.truncate(found.st_size)
    else:
        content = path.read_bytes()
        for old, new in names:
            content = content.replace(old, new)
        target.write_bytes(content)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
