"""The whole protocol on our own server of Google Cloud Storage: plan, approve, apply, restore, plan, apply, purge.

It covers lakes of all kinds in the bucket. The lakeFS server is the suite's own one, which uploads what it writes. The age of objects
cannot be set, so the clock of the runs is moved ahead.
Nothing here was run against Google.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.stores.protocol import RESERVED_PREFIX, QuarantineMode
from tests.dates import next_noon
from tests.depth import full_suite_only
from tests.gcs.servers import GcsServer, own_process
from tests.lakes.nessie.server import Server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import BucketLake, lakes_of_all_kinds
from tests.stages.lakehouse import outcomes
from tests.stores.gcs_bench import open_gcs_bench

pytestmark = [pytest.mark.spark, full_suite_only]

CASES: list[tuple[QuarantineMode, str]] = [
    ("trash", "state_in_bucket"),
    ("versioned", "state_in_bucket"),
    ("deferred", "state_in_bucket"),
    ("trash", "state_on_disk"),
    ("versioned", "state_on_disk"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with own_process(tmp_path_factory.mktemp("gcs")) as running:
        yield running


def contents_of(house: BucketLakehouse) -> dict[str, str]:
    """Return the contents without files that the lakeFS server writes on every request."""
    return {key: digest for key, digest in house.contents().items() if not key.startswith("ml-data/_lakefs/")}


@pytest.mark.parametrize("mode, state", CASES)
def test_garbage_is_planned_quarantined_restored_and_purged(
    spark: SparkSession, nessie_server: Server, server: GcsServer, tmp_path: Path, mode: QuarantineMode, state: str
) -> None:
    with ExitStack() as stack:
        bench = stack.enter_context(open_gcs_bench(server, versioned=mode == "versioned", prefix="lakes/"))
        house = BucketLakehouse(spark, tmp_path, settings={"quarantine": mode}, now=next_noon(days=30), bench=bench)
        if state == "state_in_bucket":
            house.state = f"gs://{server.bucket()}/state"
        lakes = list(stack.enter_context(lakes_of_all_kinds(house, nessie_server)).values())
        before = contents_of(house)

        header = house.plan()
        assert header.failed_gates == []
        planned = house.keys("deletion_plan")
        assert {key for lake in lakes for key in lake.garbage} <= planned
        assert not planned & (house.live() | {key for lake in lakes for key in lake.kept})
        assert set(header.expiry_actions) == {"sales", "weather"}
        assert contents_of(house) == before

        assert outcomes(house.approve_and_apply(header)) == {"done"}
        assert before.keys() - contents_of(house).keys() == (set[str]() if mode == "deferred" else planned)
        read_all(lakes)

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
        read_all(lakes)
        left = {blob.name.removeprefix(bench.prefix) for blob in bench.client.list_blobs(bench.bucket, prefix=bench.prefix, versions=True)}
        assert not planned & left
        assert not [key for key in left if key.startswith(f"{RESERVED_PREFIX}trash/")]


def read_all(lakes: Sequence[BucketLake]) -> None:
    """Read every retained commit completely with the lake's own library."""
    for lake in lakes:
        lake.readable()
