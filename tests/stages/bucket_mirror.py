"""Copy lakes with old histories from a disk to a bucket, with the same bytes, keys and times.

A server sets the time of an object when it is written. versitygw reads this time from the file of the object on its disk, so the copy
sets the time of that file. Our own server of Google Cloud Storage keeps it in memory, and a proxy in front of Azurite shows another one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tests.azure.answers import change_answers, show_times
from tests.azure.servers import shared_server as shared_azurite
from tests.gcs.servers import own_process
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.s3.proxy import run_proxy
from tests.s3.servers import object_file
from tests.stores.azure_bench import AzureBench, open_azure_bench
from tests.stores.gcs_bench import GcsBench, open_gcs_bench
from tests.stores.s3_bench import S3Bench, open_s3_bench

SERVER = "versity"
ADDRESS, FOLDER = "mirror.address", "mirror.folder"


class DiskFileIO(PyArrowFileIO):
    """File IO of pyiceberg that uses addresses in a bucket, but writes the files to a directory."""

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


SetTime = Callable[[str, os.stat_result], None]


@dataclass(frozen=True)
class Mirror:
    """A storage for copies. `set_time` gives an object the time of its file."""

    bench: S3Bench | AzureBench | GcsBench
    set_time: SetTime

    def copy(self, warehouse: Path, *folders: Path) -> None:
        """Copy all files of these directories of the warehouse, with their times."""

        def put(path: Path) -> None:
            key = str(path.relative_to(warehouse))
            self.bench.put(key, path.read_bytes())
            self.set_time(key, path.stat())

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, [path for folder in folders for path in folder.rglob("*") if path.is_file()]))


@contextmanager
def open_mirror(location: str) -> Iterator[Mirror]:
    """Return an empty storage of a kind: `bucket` on S3, `azure` or `gcs`."""
    if location == "azure":
        times = dict[str, datetime]()
        rule = change_answers(show_times(times))
        with run_proxy(shared_azurite(), rule) as proxy, open_azure_bench(prefix="lakes/", server=proxy.server) as bench:
            names = bench.prefix
            yield Mirror(bench, lambda key, status: times.update({names + key: datetime.fromtimestamp(status.st_mtime, UTC)}))
    elif location == "gcs":
        # Arrow's client waits for an answer without releasing Python, so the server needs a process of its own.
        with tempfile.TemporaryDirectory() as folder, own_process(Path(folder)) as server, open_gcs_bench(server, prefix="lakes/") as bench:
            bucket, names = bench.bucket, bench.prefix
            yield Mirror(bench, lambda key, status: server.set_updated(bucket, names + key, status.st_mtime))
    else:
        with open_s3_bench(SERVER, prefix="lakes/") as bench:
            yield mirror_on_s3(bench)


def mirror_on_s3(bench: S3Bench) -> Mirror:
    """Return a storage on `SERVER` as a mirror."""

    def set_time(key: str, status: os.stat_result) -> None:
        os.utime(object_file(bench.server, bench.bucket, bench.prefix + key), ns=(status.st_atime_ns, status.st_mtime_ns))

    return Mirror(bench, set_time)
