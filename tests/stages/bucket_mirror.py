"""Copy lakes with old histories from a disk to a bucket, with the same bytes, keys and times.

A server sets the time of an object when it is written. versitygw reads this time from the file of the object on its disk, so the copy
sets the time of that file.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.s3.servers import object_file
from tests.stores.s3_bench import S3Bench

SERVER = "versity"
ADDRESS, FOLDER = "mirror.address", "mirror.folder"


class DiskFileIO(PyArrowFileIO):
    """File IO of pyiceberg that names files by their addresses in a bucket, but writes them to a directory."""

    def new_input(self, location: str) -> PyArrowFile:
        folder, address = self.properties[FOLDER], self.properties[ADDRESS]
        return PyArrowFile(location, location.replace(address, f"{folder}/"), LocalFileSystem())

    def new_output(self, location: str) -> PyArrowFile:
        file = self.new_input(location)
        Path(file._path).parent.mkdir(parents=True, exist_ok=True)
        return file

    def delete(self, location: Any) -> None:
        Path(self.new_input(getattr(location, "location", location))._path).unlink()


class MirrorBuilder(LakeBuilder):
    """Writes to `warehouse` the files that are later copied to `address`. All builders of one root share a catalog."""

    def __init__(self, root: Path, warehouse: Path, folder: str, address: str) -> None:
        super().__init__(root, warehouse=warehouse / folder)
        self.mirror = {"warehouse": address.rstrip("/"), ADDRESS: address, FOLDER: str(warehouse)}
        mirrored = {**self.properties, **self.mirror, "py-io-impl": f"{DiskFileIO.__module__}.{DiskFileIO.__name__}"}
        self.catalog = SqlCatalog(self.catalog_name, **mirrored)

    def table(self, name: str, at: datetime, **settings: Any) -> TableBuilder:
        super().table(name, at, location=f"{self.mirror[ADDRESS]}{self.warehouse.name}/t", **settings)
        return _MirroredTable(self, name)


class _MirroredTable(TableBuilder):
    lake: MirrorBuilder

    def path(self, address: str) -> Path:  # type: ignore[override]  # the lake knows its address
        return Path(address.replace(self.lake.mirror[ADDRESS], f"{self.lake.mirror[FOLDER]}/"))


def copy_to_bucket(warehouse: Path, bench: S3Bench, *folders: Path) -> None:
    """Copy all files of these directories of the warehouse to a bucket of `SERVER`, with their times."""

    def put(path: Path) -> None:
        key = str(path.relative_to(warehouse))
        bench.put(key, path.read_bytes())
        status = path.stat()
        os.utime(object_file(bench.server, bench.bucket, bench.prefix + key), ns=(status.st_atime_ns, status.st_mtime_ns))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [path for folder in folders for path in folder.rglob("*") if path.is_file()]))
