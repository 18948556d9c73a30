"""The whole protocol in a bucket for the kinds of lake whose commits a server keeps: lakeFS and Nessie. Iceberg and Icechunk are in
`test_s3_protocol`.

Objects in a bucket are as old as they are, so it is the clock of the nights that goes ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tests.lakes.lakefs.fake_server import Answer, FakeServer
from tests.lakes.lakefs.support import config_of
from tests.lakes.nessie.builder import NessieBuilder, iceberg_table
from tests.lakes.nessie.server import Server
from tests.s3.servers import S3Server, shared
from tests.stages.bucket_house import BucketHouse
from tests.stages.lakehouse import counts, outcomes
from tests.stages.test_lakefs_protocol import Filled
from tests.stages.test_s3_protocol import ROWS
from tests.stores.s3_bench import in_a_bucket

pytestmark = pytest.mark.spark


@contextmanager
def house_in_a_bucket(spark: SparkSession, root: Path) -> Iterator[BucketHouse]:
    with in_a_bucket("ceph", prefix="lakes/") as bench:
        now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
        yield BucketHouse(spark, root, settings={"quarantine": "trash"}, now=now, bench=bench)


class InABucket(FakeServer):
    """A server whose repository lies in a bucket: what it writes to its folder on the disk is put there before it answers."""

    def __init__(self, house: BucketHouse, builder: Filled) -> None:
        super().__init__(builder.repository)
        self.house, self.namespace = house, builder.namespace
        self.known = set[Path]()
        builder.repository.storage_namespace = f"{house.bench.store.location}ml-data"

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        answer = super().answer(method, path, query, body)
        self.put()
        return answer

    def put(self) -> None:
        new = {path for path in self.namespace.rglob("*") if path.is_file()} - self.known
        self.known |= new
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self.house.bench.put(f"ml-data/{path.relative_to(self.namespace)}", path.read_bytes()), new))


@contextmanager
def lakefs(house: BucketHouse, _: Server) -> Iterator[set[str]]:
    """A repository with objects to go and others to stay; the keys that must stay."""
    builder = Filled(house.root / "written")
    server = InABucket(house, builder)
    server.put()
    seen = (builder.repository.seen(branch) or {} for branch in builder.repository.branches)
    with server.running() as url:
        house.lakes = [config_of(url, "ml-data")]
        yield {f"ml-data/{item.address}" for tree in seen for item in tree.values()}


@contextmanager
def nessie(house: BucketHouse, server: Server) -> Iterator[set[str]]:
    """Tables in the bucket, one of them dropped; the newest metadata file must stay."""
    server.reset()
    builder = NessieBuilder(server.uri, house.root / "unused")
    catalog = SqlCatalog("writer", **catalog_properties(house, shared("ceph")))
    catalog.create_namespace("db")
    metadata = dict[str, str]()
    for name in ("orders", "dropped"):
        table = catalog.create_table(f"db.{name}", ROWS)
        for number in range(2):
            table.append(pa.table({"id": [number]}))
            content = builder.content(("db", name))
            known = None if content is None else content["id"]
            snapshot = table.current_snapshot()
            assert snapshot is not None
            builder.put(("db", name), iceberg_table(table.metadata_location, snapshot.snapshot_id, known))
        metadata[name] = table.metadata_location
    builder.commit([{"type": "DELETE", "key": {"elements": ["db", "dropped"]}}])
    house.lakes = [builder.config(retention={"default": "1"})]
    yield {metadata["orders"].removeprefix(house.bench.store.location)}


def catalog_properties(house: BucketHouse, server: S3Server) -> dict[str, str]:
    keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key, "s3.region": "us-east-1"}
    place = {"uri": f"sqlite:///{house.root}/writer.db", "warehouse": f"{house.bench.store.location}shop", "s3.endpoint": server.endpoint}
    return place | keys


LAKES: dict[str, Callable[[BucketHouse, Server], AbstractContextManager[set[str]]]] = {"lakefs": lakefs, "nessie": nessie}


@pytest.mark.parametrize("kind", LAKES)
def test_a_lake_in_a_bucket_is_planned_quarantined_restored_and_purged(
    kind: str, spark: SparkSession, nessie_server: Server, tmp_path: Path
) -> None:
    with house_in_a_bucket(spark, tmp_path) as house, LAKES[kind](house, nessie_server) as kept:
        before = house.contents()
        header = house.plan()
        planned = house.keys("deletion_plan")
        assert header.failed_gates == []
        assert planned
        assert not planned & (house.live() | kept)
        assert counts(house.carry_out(header).books) == {("quarantine", "done"): len(planned)}
        assert set(before) - set(house.contents()) == planned
        assert house.restore(header.plan_id)[1] == {"done": len(planned)}
        assert before.items() <= house.contents().items()
        house.now += timedelta(days=5)
        again = house.plan()
        assert house.keys("deletion_plan") == planned
        assert outcomes(house.carry_out(again)) == {"done"}
        house.now += timedelta(days=1)
        purge = house.plan()
        assert house.keys("deletion_plan", action="purge") == planned
        assert outcomes(house.carry_out(purge)) == {"done"}
        after = house.contents()
        assert {key: after.get(key) for key in before} == {key: None if key in planned else digest for key, digest in before.items()}
