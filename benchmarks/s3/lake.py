"""Iceberg lakes whose addresses are on S3: built in a directory as by `iceberg_lake`, then uploaded
to a server.

The cache keeps the directory, because the server is temporary. Data objects have one byte: real
sizes would measure the network.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.cache import is_complete
from benchmarks.iceberg_lake import CATALOG_NAME, IcebergLake, Size, TableWriter, build
from benchmarks.s3 import mirror
from benchmarks.s3.upload import put_all
from tests.s3.servers import REGION, S3Server

BUCKET: Final = "benchmark"
PREFIX: Final = "lake/"
ADDRESS: Final = f"s3://{BUCKET}/{PREFIX.rstrip('/')}"
SIZES: Final = {"s": Size(2, 10, 500), "m": Size(50, 10, 90), "l": Size(4, 25, 2_000)}


class S3Lake(IcebergLake):
    """A lake whose `warehouse/` becomes `s3://benchmark/lake/` when `upload` is called.

    Its runs take place long after the upload, which sets the time of all objects.
    """

    now = datetime(2035, 6, 30, 3, tzinfo=UTC)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.properties["warehouse"] = ADDRESS
        self._mirrored = {"py-io-impl": mirror.NAME, mirror.FOLDER: str(self.warehouse), mirror.ADDRESS: ADDRESS}

    def catalog(self) -> Any:
        return type(super().catalog())(CATALOG_NAME, **self.properties, **self._mirrored)

    def writer(self, name: str) -> TableWriter:
        table = self.catalog().load_table(name)
        return TableWriter(table, self.warehouse / table.location().removeprefix(f"{ADDRESS}/"))

    def upload(self, server: S3Server, paths: Iterable[Path] | None = None) -> int:
        """Upload files of the warehouse, by default all. Return their number."""
        some = (path for path in self.warehouse.rglob("*") if path.is_file()) if paths is None else paths
        named = ((PREFIX + str(path.relative_to(self.warehouse)), b"x" if path.suffix == ".parquet" else path) for path in some)
        return put_all(server, BUCKET, named)

    def config_on(self, server: S3Server, state: Path) -> dict[str, Any]:
        """Return the content of a `lakes.yaml` for this lake on a server."""
        keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key, "s3.region": REGION}
        catalog = {**self.properties, "s3.endpoint": server.endpoint, **keys}
        return {
            "state": str(state),
            "storages": [{"name": "warehouse", "location": f"{ADDRESS}/"}],
            "lakes": [{"name": "shop", "kind": "iceberg", "catalog": catalog, "catalog_name": CATALOG_NAME}],
            "s3": server.settings.model_dump(exclude_unset=True),
        }


def ensure_lake(cache: Path, name: str) -> S3Lake:
    """Return the cached lake of a size. Build it if it is missing or incomplete."""
    lake = S3Lake(cache.resolve() / f"s3-{name}")
    if not is_complete(lake.root):
        shutil.rmtree(lake.root, ignore_errors=True)
        build(lake, SIZES[name])
    return lake
