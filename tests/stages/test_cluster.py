"""Run the whole protocol on a Spark cluster that shares no disk with the driver, and kill its executors.

State and storage are on S3. The Python of the executors is sent as an archive without gc-assets, which is sent separately.
"""

from __future__ import annotations

import sys
import tarfile
import venv
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.connections import Connections
from gc_assets.core.plan import PlanHeader
from gc_assets.stores.store import open_store
from tests.cluster import CONF, Cluster
from tests.conftest import TEST_CONF
from tests.dates import next_noon
from tests.s3.proxy import Exchange, Fault, Request, Rule, lists, run_proxy
from tests.s3.servers import shared_server
from tests.stages import cluster_protocol
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.cluster_protocol import RESTORED_PREFIX, Scene, run_in_process
from tests.state.s3_location import unused_location
from tests.stores.s3_bench import open_s3_bench

pytestmark = [pytest.mark.spark, pytest.mark.compat]

GARBAGE = {f"iceberg/db/orders/data/lost-{number}.parquet" for number in range(20)}
PHASES = ("marking", "listing", "acting")


@dataclass(frozen=True)
class ClusterStory:
    """A run in this process (`header`, `rows`, `planned`), then the protocol on the cluster on the same lake (`results`)."""

    before: dict[str, str]
    header: PlanHeader
    rows: dict[str, Any]
    planned: set[str]
    killed: dict[str, int]
    results: dict[str, Any]

    @property
    def restored(self) -> set[str]:
        return {key for key in self.planned if key.startswith(RESTORED_PREFIX)}

    @property
    def edits(self) -> int:
        return sum(self.header.expiry_actions.values())


@pytest.fixture(scope="module")
def story(spark: SparkSession, spark_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> ClusterStory:
    folder = tmp_path_factory.mktemp("cluster")
    now = next_noon(days=30)
    with ExitStack() as stack:
        direct = stack.enter_context(open_s3_bench("ceph", versioned=True, prefix="lakes/"))
        proxy = stack.enter_context(run_proxy(shared_server("ceph")))
        connections = Connections.of(proxy.server.settings)
        bench = replace(direct, connections=connections, store=open_store(direct.store.location, connections))
        state, s3 = stack.enter_context(unused_location())
        house = BucketLakehouse(spark, folder, [], {"quarantine": "versioned"}, now, state=f"{state}/in-process", s3=s3, bench=bench)
        house.lakes = [Iceberg(house).config]
        for key in GARBAGE:
            bench.put(key, b"lost")
        before, header = house.contents(), house.plan()
        rows, planned, killed = cluster_protocol.table_digests(house), house.keys("deletion_plan"), dict[str, int]()

        def kill_executor_of(phase: str) -> Fault:
            """Forward a request, then kill its executor before the response."""

            def fault(exchange: Exchange) -> None:
                exchange.forward()
                killed[phase] = spark_cluster.executor_at(exchange.request.port)
                spark_cluster.kill_executor(killed[phase])
                exchange.drop()

            return fault

        def is_from_executor(request: Request) -> bool:
            return spark_cluster.executor_at(request.port) is not None

        moments = (
            lambda request: request.method == "GET" and ".avro" in request.target,
            lists,
            lambda request: request.method == "DELETE" or request.keys,
        )
        proxy.rules += [
            Rule(lambda request, matches=matches: bool(matches(request)) and is_from_executor(request), kill_executor_of(phase))
            for phase, matches in zip(PHASES, moments, strict=True)
        ]
        archive = folder / "environment.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(spark_cluster.python.parents[1], ".")
        conf = {**TEST_CONF, **CONF, "spark.archives": f"{archive}#environment"}
        runtime = {"master": spark_cluster.master, "python": "./environment/bin/python3", "conf": conf}
        venv.create(bare := spark_cluster.folder / "bare", symlinks=True)
        settings = (now, proxy.server, bench.bucket, bench.prefix, f"{state}/cluster", s3)
        scene = Scene(runtime, folder, house.lakes, *settings, bare / "bin" / "python3")
        try:
            results = run_in_process(scene, folder / "scene")
        except AssertionError as error:
            error.add_note(spark_cluster.logs())
            raise
        return ClusterStory(before, header, rows, planned, killed, results)


def test_executor_is_killed_during_mark_listing_and_apply(story: ClusterStory) -> None:
    assert len(set(story.killed.values())) == len(PHASES) == len(story.killed)


def test_run_on_the_cluster_publishes_the_same_rows(story: ClusterStory) -> None:
    assert story.results["rows"] == story.rows
    assert story.results["plan"] == story.header.plan_id
    assert story.planned > GARBAGE


def test_cluster_applies_the_plan(story: ClusterStory) -> None:
    assert story.results["applied"] == {"expire/done": story.edits, "quarantine/done": len(story.planned)}
    assert set(story.before) - set(story.results["after_apply"]) == story.planned


def test_restore_on_the_cluster_restores_all_bytes(story: ClusterStory) -> None:
    assert story.results["restored"] == {"done": len(story.restored)}
    assert set(story.before) - set(story.results["after_restore"]) == story.planned - story.restored
    assert {key: story.results["after_restore"][key] for key in story.restored} == {key: story.before[key] for key in story.restored}


def test_next_run_on_the_cluster_purges_and_quarantines(story: ClusterStory) -> None:
    requarantined = len(story.restored)
    assert story.results["purged"] == {"quarantine/done": requarantined, "purge/done": len(story.planned) - requarantined}
    live = {key: digest for key, digest in story.before.items() if key not in story.planned}
    assert {key: story.results["after_purge"].get(key) for key in live} == live


def test_executor_cannot_read_the_disk_of_the_driver(story: ClusterStory) -> None:
    """Checks the guard that the other tests rely on."""
    assert "is on the driver's machine" in story.results["hidden"]


@pytest.mark.parametrize(
    "fault, message",
    [
        ("no program", "have no program /no/such/python3. Set `spark.python`"),
        ("no libraries", "have no module pandas in their Python"),
        ("no executor", "no executor of spark://cluster accepted a task within 1 s. Check that one is free and has the cores and memory"),
        ("another Python", f"run Python {sys.version_info.major}.{sys.version_info.minor}, but this process runs"),
        ("speculation", "has spark.speculation enabled. Two attempts of a task would change the same files"),
    ],
)
def test_unsuitable_cluster_is_refused(story: ClusterStory, fault: str, message: str) -> None:
    assert message in story.results["refused"][fault]
