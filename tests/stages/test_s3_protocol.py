"""The whole protocol on real S3 servers, in each way to quarantine: plan, approve, apply, restore, plan, apply, purge.

Each module-wide story is one order of events; each test stands on what the one before it did. Objects in a bucket are as old as they
are, so it is the clock of the nights that goes ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from gc_assets.stages.books.plans import find_plan
from gc_assets.stores.protocol import RESERVED_PREFIX, QuarantineMode
from tests.s3.servers import S3Server, shared
from tests.stages.bucket_house import BucketHouse
from tests.stages.lakehouse import counts, outcomes
from tests.stores.s3_bench import in_a_bucket

pytestmark = pytest.mark.spark

MODES: tuple[QuarantineMode, ...] = ("versioned", "trash", "deferred")
ROWS = Schema(NestedField(1, "id", LongType()))


class Lakes:
    """An Iceberg catalog and an Icechunk repository in one bucket, with history to expire and garbage to collect.

    In a bucket that keeps versions Ceph 16 refuses every conditional put, so no Icechunk repository can be there.
    """

    def __init__(self, house: BucketHouse) -> None:
        bench, server = house.bench, shared("ceph")
        self.house = house
        self.garbage = {"iceberg/db/orders/data/lost.parquet"}
        self.repo: icechunk.Repository | None = None
        keys = {"s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key, "s3.region": "us-east-1"}
        properties = {"type": "sql", "uri": f"sqlite:///{house.root}/catalog.db", "warehouse": f"{bench.store.location}iceberg"}
        self.properties = {**properties, "s3.endpoint": server.endpoint, **keys}
        self.catalog = SqlCatalog("default", **self.properties)
        self.catalog.create_namespace("db")
        self.orders = self.catalog.create_table("db.orders", ROWS)
        for number in range(3):
            self.orders.append(pa.table({"id": [number]}))
        self.orders.overwrite(pa.table({"id": [7]}))
        if bench.mode != "versioned":
            self._build_repository(server)
            self.garbage.add("weather/chunks/0000000000000000000G")
        for name in self.garbage:
            bench.put(name, b"lost")

    def _build_repository(self, server: S3Server) -> None:
        bench = self.house.bench
        self.storage = icechunk.s3_storage(
            bucket=bench.bucket,
            prefix=f"{bench.prefix}weather",
            endpoint_url=server.endpoint,
            allow_http=True,
            force_path_style=True,
            region="us-east-1",
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
        self.repo = icechunk.Repository.create(self.storage, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0))
        for number in range(3):
            self.cutoff = datetime.now(UTC)
            self._write(number)
        before = self.repo.lookup_branch("main")
        self._write(99)
        self.repo.reset_branch("main", before)
        self.repo.create_tag("kept", before)

    def _write(self, number: int) -> None:
        assert self.repo is not None
        session = self.repo.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        group.require_array(f"values{number}", shape=(4,), chunks=(2,), dtype="i4")[...] = number
        session.commit(f"commit {number}")

    def configs(self) -> list[Any]:
        iceberg = {"name": "sales", "kind": "iceberg", "catalog": self.properties, "catalog_name": "default"}
        found: list[Any] = [IcebergLakeConfig.model_validate(iceberg)]
        if self.repo is not None:
            weather = {"name": "weather", "kind": "icechunk", "location": f"{self.house.bench.store.location}weather/"}
            found.append(IcechunkLakeConfig.model_validate({**weather, "retention": {"default": self.cutoff.isoformat()}}))
        return found

    def readable(self) -> None:
        """Every retained snapshot of the table and every ref of the repository reads back in full, by the lakes' own libraries."""
        table = self.catalog.load_table("db.orders")
        retained = self.house.commits("retained", "sales")
        assert retained
        for snapshot_id in retained:
            assert table.scan(snapshot_id=int(snapshot_id)).to_arrow().num_rows > 0
        if self.repo is None:
            return
        repo = icechunk.Repository.open(self.storage)
        for snapshot in [repo.lookup_branch("main"), repo.lookup_tag("kept")]:
            group = zarr.open_group(repo.readonly_session(snapshot_id=snapshot).store, mode="r")
            assert [int(array[...].sum()) for _, array in sorted(group.arrays())] == [0, 4, 8]


@dataclass
class BucketStory:
    house: BucketHouse
    lakes: Lakes
    before: dict[str, str]
    header: Any

    def planned(self) -> set[str]:
        return self.house.keys("deletion_plan")


@pytest.fixture(scope="module", params=MODES)
def story(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketStory]:
    mode: QuarantineMode = request.param
    with in_a_bucket("ceph", versioned=mode == "versioned", prefix="lakes/") as bench:
        now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
        house = BucketHouse(spark, tmp_path_factory.mktemp("bucket"), settings={"quarantine": mode}, now=now, bench=bench)
        lakes = Lakes(house)
        house.lakes = lakes.configs()
        yield BucketStory(house, lakes, house.contents(), house.plan())


def test_a_plan_holds_what_no_retained_commit_names(story: BucketStory) -> None:
    assert story.header.failed_gates == []
    assert story.lakes.garbage <= story.planned()
    assert not story.house.live() & story.planned()
    assert set(story.header.expiry_actions) == {lake.name for lake in story.house.lakes}
    entries = story.house.facts("manifest_entries", "sales")
    assert entries["requests"]["GET"] >= entries["decoded"] > 0


def test_a_night_leaves_the_bucket_as_it_was(story: BucketStory) -> None:
    assert story.house.contents() == story.before


def test_apply_edits_the_histories_and_quarantines_exactly_the_planned_objects(story: BucketStory) -> None:
    planned = story.planned()
    applied = story.house.carry_out(story.header)
    edits = sum(story.header.expiry_actions.values())
    assert counts(applied.books) == {("expire", "done"): edits, ("quarantine", "done"): len(planned)}
    gone = set(story.before) - set(story.house.contents())
    assert gone == (set[str]() if story.house.settings["quarantine"] == "deferred" else planned)
    sent = story.house.facts("deletion_log")["requests"]
    assert sent["HEAD"] >= len(planned)
    assert sent.get("COPY", 0) == (len(planned) if story.house.settings["quarantine"] == "trash" else 0)
    story.lakes.readable()


def test_restore_puts_everything_back_byte_for_byte(story: BucketStory) -> None:
    planned = story.planned()
    _, books = story.house.restore(story.header.plan_id)
    assert books == {"done": len(planned)}
    after = story.house.contents()
    assert {key: after[key] for key in planned} == {key: story.before[key] for key in planned}
    assert find_plan(story.house.config, story.header.plan_id).status_at(story.house.now) == "restored"


def test_a_later_night_quarantines_again_and_the_one_after_purges(story: BucketStory) -> None:
    house, garbage = story.house, story.planned()
    house.now += timedelta(days=5)
    header = house.plan()
    assert house.keys("deletion_plan") >= garbage
    assert outcomes(house.carry_out(header)) == {"done"}
    house.now += timedelta(days=1)
    purge = house.plan()
    assert garbage <= house.keys("deletion_plan", action="purge")
    assert outcomes(house.carry_out(purge)) == {"done"}
    assert not garbage & set(house.contents())
    assert not [key for key in house.bench.everything() if key.startswith(f"{RESERVED_PREFIX}trash/")]
    story.lakes.readable()


def test_after_the_purge_nothing_of_a_planned_object_is_left(story: BucketStory) -> None:
    listed = story.house.bench.client.list_object_versions(Bucket=story.house.bench.bucket, Prefix=story.house.bench.prefix)
    keys = {item["Key"].removeprefix(story.house.bench.prefix) for kind in ("Versions", "DeleteMarkers") for item in listed.get(kind, [])}
    assert not story.lakes.garbage & keys
