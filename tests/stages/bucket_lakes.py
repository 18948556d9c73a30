"""Lakes of all four kinds in one bucket, each with expired history, garbage, and its own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import icechunk
import pyarrow as pa
import zarr
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField

from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from tests.azure.credentials import ACCOUNT, KEY, connection_string
from tests.azure.servers import AzureServer
from tests.gcs.servers import GcsServer
from tests.lakes.lakefs.fake_server import Answer, FakeServer
from tests.lakes.lakefs.lakefs_lakes import config_of
from tests.lakes.nessie.builder import NessieBuilder, iceberg_table
from tests.lakes.nessie.server import Server
from tests.s3.servers import REGION, S3Server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.test_lakefs_protocol import FilledRepository
from tests.stores.azure_bench import AzureBench
from tests.stores.gcs_bench import GcsBench
from tests.stores.s3_bench import S3Bench

ROWS = Schema(NestedField(1, "id", LongType()))


def file_io(server: S3Server | AzureServer | GcsServer) -> dict[str, str]:
    """Return pyiceberg's properties for the server."""
    if isinstance(server, GcsServer):
        token = {"gcs.oauth2.token": "unused", "gcs.oauth2.token-expires-at": "4102444800000"}
        return {"gcs.service.host": server.endpoint, **token}
    if isinstance(server, AzureServer):
        return {"adls.connection-string": f"{connection_string(KEY)};BlobEndpoint={server.endpoint}"}
    keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key}
    return {"s3.endpoint": server.endpoint, "s3.region": REGION, **keys}


def icechunk_storage(bench: S3Bench | AzureBench | GcsBench, name: str) -> icechunk.Storage:
    """Return the storage of a repository in the bucket, as icechunk opens it."""
    if isinstance(bench, GcsBench):
        # icechunk has no option for another server. The key of a service account can contain one.
        account = {"gcs_base_url": bench.server.endpoint, "disable_oauth": True}
        key = json.dumps(account | dict.fromkeys(("client_email", "private_key", "private_key_id"), ""))
        return icechunk.gcs_storage(bucket=bench.bucket, prefix=f"{bench.prefix}{name}", service_account_key=key)
    if isinstance(bench, AzureBench):
        client = {"azure_storage_endpoint": bench.server.endpoint, "azure_allow_http": "true"}
        place = {"container": bench.client.container_name, "prefix": f"{bench.prefix}{name}"}
        return icechunk.azure_storage(account=ACCOUNT, access_key=KEY, config=client, **place)
    server = bench.server
    return icechunk.s3_storage(
        bucket=bench.bucket,
        prefix=f"{bench.prefix}{name}",
        endpoint_url=server.endpoint,
        allow_http=True,
        force_path_style=True,
        region=REGION,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
    )


def catalog_of(house: BucketLakehouse) -> dict[str, str]:
    """Return pyiceberg's properties for a local catalog with the warehouse `iceberg` in the bucket."""
    warehouse = f"{house.bench.store.location}iceberg"
    return {"type": "sql", "uri": f"sqlite:///{house.root}/catalog.db", "warehouse": warehouse, **file_io(house.bench.server)}


class BucketLake(Protocol):
    """A lake in a bucket. `garbage` are keys to be deleted, `kept` are keys that must stay."""

    config: Any
    garbage: set[str]
    kept: set[str]

    def readable(self) -> None:
        """Read every retained commit completely with the lake's own library."""
        ...


class Iceberg:
    """A table of a SQL catalog: three appends, an overwrite, and a data file of a crashed writer."""

    def __init__(self, house: BucketLakehouse) -> None:
        self.house = house
        properties = catalog_of(house)
        self.catalog = SqlCatalog("default", **properties)
        self.catalog.create_namespace("db")
        orders = self.catalog.create_table("db.orders", ROWS)
        for number in range(3):
            orders.append(pa.table({"id": [number]}))
        orders.overwrite(pa.table({"id": [7]}))
        self.garbage = {"iceberg/db/orders/data/lost.parquet"}
        self.kept = {orders.metadata_location.removeprefix(house.bench.store.location)}
        self.config = IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": properties})

    def readable(self) -> None:
        table, retained = self.catalog.load_table("db.orders"), self.house.commits("retained", "sales")
        assert retained
        for snapshot_id in retained:
            assert table.scan(snapshot_id=int(snapshot_id)).to_arrow().num_rows > 0


class Icechunk:
    """A repository with four commits and a tag, an unreferenced snapshot, and a lost chunk.

    Ceph 16 refuses every conditional put in a bucket with versions, so icechunk cannot create
    objects there. In such a bucket, its options for a single writer are set.
    """

    def __init__(self, house: BucketLakehouse) -> None:
        self.house, bench = house, house.bench
        self.storage = icechunk_storage(bench, "weather")
        compares = bench.mode != "versioned" or isinstance(bench, GcsBench)
        alone = icechunk.StorageSettings(unsafe_use_conditional_create=compares, unsafe_use_conditional_update=compares)
        self.repo = icechunk.Repository.create(self.storage, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0, storage=alone))
        for number in range(3):
            cutoff = datetime.now(UTC)
            self._write(number)
        before = self.repo.lookup_branch("main")
        self._write(99)
        self.repo.reset_branch("main", before)
        self.repo.create_tag("kept", before)
        self.garbage = {"weather/chunks/0000000000000000000G"}
        self.kept = {f"weather/snapshots/{before}"}
        weather = {"name": "weather", "kind": "icechunk", "location": f"{bench.store.location}weather/"}
        self.config = IcechunkLakeConfig.model_validate({**weather, "retention": {"default": cutoff.isoformat()}})

    def _write(self, number: int) -> None:
        session = self.repo.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        group.require_array(f"values{number}", shape=(4,), chunks=(2,), dtype="i4")[...] = number
        session.commit(f"commit {number}")

    def readable(self) -> None:
        repo, sums = icechunk.Repository.open(self.storage), dict[str, list[int]]()
        *_, first = repo.ancestry(branch="main")
        for snapshot in self.house.commits("retained", "weather") - {first.id}:  # which holds nothing
            group = zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, mode="r")
            sums[snapshot] = [int(array[...].sum()) for _, array in sorted(group.arrays())]
        assert sums[repo.lookup_branch("main")] == sums[repo.lookup_tag("kept")] == [0, 4, 8]


class Nessie:
    """Two tables, one of them dropped. Each commit except the newest two expires."""

    def __init__(self, house: BucketLakehouse, server: Server) -> None:
        self.house = house
        server.reset()
        self.builder = NessieBuilder(server.uri, house.root / "unused")
        place = {"uri": f"sqlite:///{house.root}/writer.db", "warehouse": f"{house.bench.store.location}shop"}
        catalog = SqlCatalog("writer", **place, **file_io(house.bench.server))
        catalog.create_namespace("db")
        tables = {name: catalog.create_table(f"db.{name}", ROWS) for name in ("orders", "dropped")}
        for name in ("orders", "orders", "dropped", "dropped"):
            self._append(tables[name], name)
        self.builder.commit([{"type": "DELETE", "key": {"elements": ["db", "dropped"]}}])
        self._append(tables["orders"], "orders")
        self.garbage = {key for key in house.bench.everything() if key.startswith("shop/db/dropped/")}
        self.kept = {tables["orders"].metadata_location.removeprefix(house.bench.store.location)}
        self.config = self.builder.config(retention={"default": "2"})

    def _append(self, table: Any, name: str) -> None:
        table.append(pa.table({"id": [1]}))
        known = self.builder.content(("db", name))
        content = iceberg_table(table.metadata_location, table.current_snapshot().snapshot_id, known and known["id"])
        self.builder.put(("db", name), content)

    def readable(self) -> None:
        retained = self.house.commits("retained", "shop")
        rows = set[int]()
        for commit in retained:
            content = self.builder.content(("db", "orders"), f"@{commit}")
            assert content is not None
            table = StaticTable.from_metadata(content["metadataLocation"], file_io(self.house.bench.server))
            rows.add(table.scan(snapshot_id=content["snapshotId"]).to_arrow().num_rows)
        assert rows == {2, 3}


def namespace_of(bench: S3Bench | AzureBench | GcsBench, name: str) -> str:
    """Return an address in the bucket as lakeFS writes it."""
    if isinstance(bench, AzureBench):
        return f"https://{ACCOUNT}.blob.core.windows.net/{bench.client.container_name}/{bench.prefix}{name}"
    return f"{bench.store.location}{name}"


class BucketServer(FakeServer):
    """A server with a repository in a bucket: files of its local directory are uploaded before it
    answers.
    """

    def __init__(self, house: BucketLakehouse, builder: FilledRepository) -> None:
        super().__init__(builder.repository)
        self.house, self.namespace = house, builder.namespace
        self.known = set[Path]()
        builder.repository.storage_namespace = namespace_of(house.bench, "ml-data")

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        answer = super().answer(method, path, query, body)
        self.put()
        return answer

    def put(self) -> None:
        new = {path for path in self.namespace.rglob("*") if path.is_file()} - self.known
        self.known |= new
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self.house.bench.put(f"ml-data/{path.relative_to(self.namespace)}", path.read_bytes()), new))


class LakeFs:
    """A repository of the suite's own server, with expired and uncommitted objects."""

    def __init__(self, house: BucketLakehouse) -> None:
        self.house = house
        self.builder = FilledRepository(house.root / "written")
        self.server = BucketServer(house, self.builder)
        self.server.put()
        self.garbage = {f"ml-data/{key}" for key in self.builder.dead}
        self.kept = {f"ml-data/{item.address}" for tree in self._list_trees() for item in tree.values()}

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.server.running() as url:
            self.config = config_of(url, "ml-data")
            yield

    def _list_trees(self) -> list[dict[str, Any]]:
        repository = self.builder.repository
        return [repository.resolve(ref) or {} for ref in [*repository.branches, *repository.tags]]

    def readable(self) -> None:
        retained = self.house.commits("retained", "ml")
        trees = [*self._list_trees(), *(self.builder.repository.trees[commit] for commit in retained)]
        assert sum(map(len, trees)) > len(self.kept)
        assert {item.path for tree in trees for item in tree.values() if not self.house.bench.get(f"ml-data/{item.address}")} == set()


@contextmanager
def lakes_of_all_kinds(house: BucketLakehouse, nessie: Server) -> Iterator[dict[str, BucketLake]]:
    """Return the lakes of the house by name, one of each kind, with their garbage in the bucket."""
    with ExitStack() as serving:
        lakefs = LakeFs(house)
        serving.enter_context(lakefs.running())
        lakes: list[BucketLake] = [Iceberg(house), Icechunk(house), Nessie(house, nessie), lakefs]
        house.lakes = [lake.config for lake in lakes]
        for key in {key for lake in lakes for key in lake.garbage} - house.bench.everything():
            house.bench.put(key, b"lost")
        yield {lake.config.name: lake for lake in lakes}
