"""The whole protocol on our own server of Google Cloud Storage: plan, approve, apply, restore, plan, apply, purge.

Iceberg is written by pyiceberg and Icechunk by its own library, both in the bucket. The age of objects
cannot be set, so the clock of the runs is moved ahead. Nothing here was run against Google.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk
import pyarrow as pa
import pytest
import zarr
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stores.protocol import RESERVED_PREFIX, QuarantineMode
from tests.dates import next_noon
from tests.depth import select_cases
from tests.gcs.servers import GcsServer, own_process
from tests.stages.bucket_house import BucketHouse
from tests.stages.bucket_lakes import file_io
from tests.stages.lakehouse import outcomes
from tests.stores.gcs_bench import open_gcs_bench

pytestmark = pytest.mark.spark

ROWS = Schema(NestedField(1, "id", LongType()))
CASES: list[tuple[QuarantineMode, str]] = [("trash", "state_in_bucket")]
FURTHER: list[tuple[QuarantineMode, str]] = [
    ("versioned", "state_in_bucket"),
    ("deferred", "state_in_bucket"),
    ("trash", "state_on_disk"),
    ("versioned", "state_on_disk"),
]


@dataclass
class GcsStory:
    """`garbage` are keys that a plan must contain."""

    house: BucketHouse
    catalog: SqlCatalog
    weather: Any
    garbage: set[str]

    def readable(self) -> None:
        """Read every retained commit completely with the lake's own library."""
        table = self.catalog.load_table("db.orders")
        retained = self.house.commits("retained", "sales")
        assert retained
        for snapshot_id in retained:
            assert table.scan(snapshot_id=int(snapshot_id)).to_arrow().num_rows > 0
        repo, sums = icechunk.Repository.open(self.weather), dict[str, list[int]]()
        *_, first = repo.ancestry(branch="main")
        for snapshot in self.house.commits("retained", "weather") - {first.id}:  # which holds nothing
            group = zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, mode="r")
            sums[snapshot] = [int(array[...].sum()) for _, array in sorted(group.arrays())]
        assert sums[repo.lookup_branch("main")] == [0, 4, 8]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with own_process(tmp_path_factory.mktemp("gcs")) as running:
        yield running


def write_orders(house: BucketHouse) -> tuple[SqlCatalog, IcebergLakeConfig]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{house.root}/catalog.db",
        "warehouse": f"{house.bench.store.location}iceberg",
        **file_io(house.bench.server),
    }
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    orders = catalog.create_table("db.orders", ROWS)
    for number in range(3):
        orders.append(pa.table({"id": [number]}))
    orders.overwrite(pa.table({"id": [7]}))
    return catalog, IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", "catalog": properties})


def write_weather(house: BucketHouse) -> tuple[Any, IcechunkLakeConfig]:
    # icechunk has no option for another server. The key of a service account may name one.
    account = {"gcs_base_url": house.bench.server.endpoint, "disable_oauth": True}
    key = json.dumps(account | dict.fromkeys(("client_email", "private_key", "private_key_id"), ""))
    storage = icechunk.gcs_storage(bucket=house.bench.bucket, prefix=f"{house.bench.prefix}weather", service_account_key=key)
    repo = icechunk.Repository.create(storage)
    cutoff = datetime.now(UTC)
    for number in range(3):
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="a").require_array(f"values{number}", shape=(4,), chunks=(2,), dtype="i4")[...] = number
        session.commit(f"commit {number}")
        cutoff = datetime.now(UTC) if number < 2 else cutoff
    location = f"{house.bench.store.location}weather/"
    weather = {"name": "weather", "kind": "icechunk", "location": location, "retention": {"default": cutoff.isoformat()}}
    return storage, IcechunkLakeConfig.model_validate(weather)


@pytest.mark.parametrize("mode, state", select_cases(CASES, FURTHER))
def test_garbage_is_planned_quarantined_restored_and_purged(
    spark: SparkSession, server: GcsServer, tmp_path: Path, mode: QuarantineMode, state: str
) -> None:
    with open_gcs_bench(server, versioned=mode == "versioned", prefix="lakes/") as bench:
        house = BucketHouse(spark, tmp_path, settings={"quarantine": mode}, now=next_noon(days=30), bench=bench)
        if state == "state_in_bucket":
            house.state = f"gs://{server.bucket()}/state"
        catalog, sales = write_orders(house)
        storage, weather = write_weather(house)
        house.lakes = [sales, weather]
        story = GcsStory(house, catalog, storage, {"iceberg/db/orders/data/lost.parquet", "weather/chunks/0000000000000000000G"})
        for key in story.garbage:
            bench.put(key, b"lost")
        before = house.contents()

        header = house.plan()
        assert header.failed_gates == []
        planned = house.keys("deletion_plan")
        assert story.garbage <= planned
        assert not planned & house.live()
        assert set(header.expiry_actions) == {"sales", "weather"}
        assert house.contents() == before

        assert outcomes(house.approve_and_apply(header)) == {"done"}
        assert set(before) - set(house.contents()) == (set[str]() if mode == "deferred" else planned)
        story.readable()

        _, found = house.restore(header.plan_id)
        assert found == {"done": len(planned)}
        after = house.contents()
        assert {key: after[key] for key in planned} == {key: before[key] for key in planned}

        house.now += timedelta(days=5)
        again = house.plan()
        assert house.keys("deletion_plan") >= planned
        assert outcomes(house.approve_and_apply(again)) == {"done"}
        house.now += timedelta(days=1)
        purge = house.plan()
        assert planned <= house.keys("deletion_plan", action="purge")
        assert outcomes(house.approve_and_apply(purge)) == {"done"}
        story.readable()
        left = {blob.name.removeprefix(bench.prefix) for blob in bench.client.list_blobs(bench.bucket, prefix=bench.prefix, versions=True)}
        assert not planned & left
        assert not [key for key in left if key.startswith(f"{RESERVED_PREFIX}trash/")]
