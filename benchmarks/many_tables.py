"""An Iceberg lake of many tables with long histories.

pyiceberg commits to the first table, which takes a tenth of a second a commit. Every other table is a copy of it under a name and a uuid of
its own. Avro is not compressed there, and all names are of one length, so that a name replaces the other where it stands.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from pyiceberg.table import Table

from benchmarks.cache import FINISHED, is_to_build
from benchmarks.iceberg_lake import SCHEMA, SPEC, IcebergLake, TableWriter, write_data_file
from gc_assets.demo.iceberg_builder import clock_at

NAMESPACES: Final = 20
# As engines merge manifests by default.
MERGE_EVERY: Final = 100
LEFTOVERS: Final = 2
EVERY: Final = timedelta(hours=1)
PROPERTIES: Final = {
    "write.avro.compression-codec": "null",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


@dataclass(frozen=True, slots=True)
class Size:
    """So many tables with so many commits, one an hour, of one file each."""

    tables: int
    commits: int


def ensure_lake(cache: Path, size: Size) -> IcebergLake:
    """The lake of that size below `cache`, built if it is not there whole."""
    lake = IcebergLake(cache.resolve() / f"iceberg-{size.tables}-tables-{size.commits}-commits")
    if is_to_build(lake.root):
        build(lake, size)
    return lake


def build(lake: IcebergLake, size: Size) -> None:
    """Histories that end an hour before the lake's `now`, and crash leftovers in each table."""
    lake.warehouse.mkdir(parents=True)
    catalog = lake.catalog()
    for number in range(min(NAMESPACES, size.tables)):
        catalog.create_namespace(f"shop_{number:02}")
    first = _committed(lake, size)
    for number in range(1, size.tables):
        name = _name(number)
        catalog.register_table(name, _copied(lake, first, name))
    (lake.root / FINISHED).write_text("{}")


def _name(number: int) -> str:
    return f"shop_{number % NAMESPACES:02}.orders_{number:05}"


def _committed(lake: IcebergLake, size: Size) -> Table:
    name, began = _name(0), lake.now - EVERY * (size.commits + 1)
    with clock_at(began):
        lake.catalog().create_table(name, SCHEMA, partition_spec=SPEC, properties=PROPERTIES)
    writer = lake.writer(name)
    for commit in range(1, size.commits + 1):
        writer.commit(began + EVERY * commit, 1, rewrite=False, merge=commit % MERGE_EVERY == 0)
    _leave(writer, lake)
    return lake.catalog().load_table(name)


def _leave(writer: TableWriter, lake: IcebergLake) -> None:
    abandoned = lake.now - timedelta(days=5)
    for path in writer.data_paths(f"{abandoned:%Y-%m-%d}", LEFTOVERS):
        write_data_file(path, abandoned)


def _copied(lake: IcebergLake, table: Table, name: str) -> str:
    """Copies a table, and returns the address of the copy's metadata.json."""
    home, location = Path(table.location().removeprefix("file://")), f"file://{lake.warehouse}/{name.replace('.', '/')}"
    names = [(table.location().encode(), location.encode()), (str(table.metadata.table_uuid).encode(), str(uuid.uuid4()).encode())]
    for path in home.rglob("*"):
        target = Path(location.removeprefix("file://")) / path.relative_to(home)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(path, target, names)
    return table.metadata_location.replace(table.location(), location)


def _copy(path: Path, target: Path, names: list[tuple[bytes, bytes]]) -> None:
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
