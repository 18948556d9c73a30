"""Lakes that were written on a disk with histories long past, in a bucket: byte for byte, by the same keys, and as old as their files.

A server dates an object by the moment at which it gets it. So these lakes are reached through a proxy that says the time of the file
instead. This is the one thing that is not real.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gc_assets.config.s3 import Places
from gc_assets.stores.store import open_store
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.s3.proxy import Exchange, Fault, Rule, always, proxied
from tests.s3.servers import shared
from tests.stores.s3_bench import S3Bench

ADDRESS, FOLDER = "mirror.address", "mirror.folder"


class OnDisk(PyArrowFileIO):
    """pyiceberg's files: named by their addresses in a bucket, and written to a folder on the disk."""

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
    """Writes below `warehouse` what is to lie below `address`. All builders of one root share a catalog."""

    def __init__(self, root: Path, warehouse: Path, below: str, address: str) -> None:
        super().__init__(root, warehouse=warehouse / below)
        self.mirror = {"warehouse": address.rstrip("/"), ADDRESS: address, FOLDER: str(warehouse)}
        mirrored = {**self.properties, **self.mirror, "py-io-impl": f"{OnDisk.__module__}.{OnDisk.__name__}"}
        self.catalog = SqlCatalog(self.catalog_name, **mirrored)

    def table(self, name: str, at: datetime, **settings: Any) -> TableBuilder:
        super().table(name, at, location=f"{self.mirror[ADDRESS]}{self.warehouse.name}/t", **settings)
        return _MirroredTable(self, name)


class _MirroredTable(TableBuilder):
    lake: MirrorBuilder

    def path(self, address: str) -> Path:  # type: ignore[override]  # where the lake lies, it knows
        return Path(address.replace(self.lake.mirror[ADDRESS], f"{self.lake.mirror[FOLDER]}/"))


@contextmanager
def mirrored(warehouse: Path, bench: S3Bench, *folders: Path) -> Iterator[S3Bench]:
    """Puts every file of these folders of the warehouse into the bucket, and yields the place as it is reached with the files' times."""
    times = dict[str, datetime]()

    def put(path: Path) -> None:
        key = str(path.relative_to(warehouse))
        times[f"{bench.prefix}{key}"] = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        bench.put(key, path.read_bytes())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [path for folder in folders for path in folder.rglob("*") if path.is_file()]))
    with proxied(shared("ceph"), Rule(always, _dated(times), times=10**9)) as proxy:
        places = Places(default=proxy.server.settings)
        yield replace(bench, places=places, store=open_store(bench.store.location, places))


def _dated(times: Mapping[str, datetime]) -> Fault:
    def listed(found: re.Match[bytes]) -> bytes:
        key = re.search(rb"<Key>(.*?)</Key>", found[0])
        at = times.get(unquote(key[1].decode())) if key else None
        said = b"<LastModified>%s</LastModified>" % at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode() if at else b""
        return re.sub(rb"<LastModified>.*?</LastModified>", said, found[0]) if said else found[0]

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        at = times.get(unquote(urlsplit(exchange.request.target).path).split("/", 2)[-1])
        if at is not None:
            headers = [(name, value) for name, value in answer.headers if name.lower() != "last-modified"]
            answer = replace(answer, headers=(*headers, ("Last-Modified", format_datetime(at, usegmt=True))))
        elif b"<Contents>" in answer.body:
            answer = replace(answer, body=re.sub(rb"<Contents>.*?</Contents>", listed, answer.body, flags=re.DOTALL))
        exchange.reply(answer)

    return fault
