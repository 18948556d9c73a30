"""The whole protocol on a Spark cluster that shares no disk with the driver, while its executors are killed.

State and storage are on S3. The executors' Python comes along as an archive and has no gc-assets: that is sent to them.
"""

from __future__ import annotations

import tarfile
import venv
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gc_assets.config.s3 import Connections
from gc_assets.core.plan import PlanHeader
from gc_assets.stores.store import open_store
from tests.cluster import CONF, Cluster
from tests.conftest import TEST_CONF
from tests.dates import next_noon
from tests.s3.proxy import Exchange, Fault, Request, Rule, lists, proxied
from tests.s3.servers import shared
from tests.stages import cluster_protocol as clustered
from tests.stages.bucket_house import BucketHouse
from tests.stages.bucket_lakes import Iceberg
from tests.stages.cluster_protocol import RESTORED_PREFIX, Scene, run_in_process
from tests.state.s3_location import unused_location
from tests.stores.s3_bench import in_a_bucket

pytestmark = pytest.mark.spark

GARBAGE = {f"iceberg/db/orders/data/lost-{number}.parquet" for number in range(20)}
PHASES = ("marking", "listing", "acting")


@dataclass(frozen=True)
class Story:
    """A night in this process (`header`, `rows`, `planned`), then the protocol on the cluster over the same lake (`told`)."""

    before: dict[str, str]
    header: PlanHeader
    rows: dict[str, Any]
    planned: set[str]
    killed: dict[str, int]
    told: dict[str, Any]

    @property
    def put_back(self) -> set[str]:
        return {key for key in self.planned if key.startswith(RESTORED_PREFIX)}

    @property
    def edits(self) -> int:
        return sum(self.header.expiry_actions.values())


@pytest.fixture(scope="module")
def story(spark: SparkSession, spark_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("cluster")
    now = next_noon(days=30)
    with ExitStack() as places:
        direct = places.enter_context(in_a_bucket("ceph", versioned=True, prefix="lakes/"))
        proxy = places.enter_context(proxied(shared("ceph")))
        reached = Connections(default=proxy.server.settings)
        bench = replace(direct, connections=reached, store=open_store(direct.store.location, reached))
        state, s3 = places.enter_context(unused_location())
        house = BucketHouse(spark, folder, [], {"quarantine": "versioned"}, now, state=f"{state}/here", s3=s3, bench=bench)
        house.lakes = [Iceberg(house).config]
        for key in GARBAGE:
            bench.put(key, b"lost")
        before, header = house.contents(), house.plan()
        rows, planned, killed = clustered.table_digests(house), house.keys("deletion_plan"), dict[str, int]()

        def in_the_middle(phase: str) -> Fault:
            """The server acts, and the executor dies before it hears of it."""

            def fault(exchange: Exchange) -> None:
                exchange.forward()
                killed[phase] = spark_cluster.executor_at(exchange.request.port)
                spark_cluster.kill_executor(killed[phase])
                exchange.drop()

            return fault

        def by_an_executor(what: Request) -> bool:
            return spark_cluster.executor_at(what.port) is not None

        moments = (
            lambda asked: asked.method == "GET" and ".avro" in asked.target,
            lists,
            lambda asked: asked.method == "DELETE" or asked.keys,
        )
        proxy.rules += [
            Rule(lambda asked, when=when: bool(when(asked)) and by_an_executor(asked), in_the_middle(phase))
            for phase, when in zip(PHASES, moments, strict=True)
        ]
        archive = folder / "environment.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(spark_cluster.python.parents[1], ".")
        conf = {**TEST_CONF, **CONF, "spark.archives": f"{archive}#environment"}
        runtime = {"master": spark_cluster.master, "python": "./environment/bin/python3", "conf": conf}
        venv.create(bare := spark_cluster.folder / "bare", symlinks=True)
        there = (now, proxy.server, bench.bucket, bench.prefix, f"{state}/there", s3)
        scene = Scene(runtime, folder, house.lakes, *there, bare / "bin" / "python3")
        try:
            told = run_in_process(scene, folder / "scene")
        except AssertionError as error:
            error.add_note(spark_cluster.logs())
            raise
        return Story(before, header, rows, planned, killed, told)


def test_an_executor_died_in_the_middle_of_marking_of_listing_and_of_acting(story: Story) -> None:
    assert len(set(story.killed.values())) == len(PHASES) == len(story.killed)


def test_a_night_on_a_cluster_publishes_the_rows_of_a_night_here(story: Story) -> None:
    assert story.told["rows"] == story.rows
    assert story.told["plan"] == story.header.plan_id
    assert story.planned > GARBAGE


def test_what_the_cluster_applies_is_the_plan(story: Story) -> None:
    assert story.told["applied"] == {"expire/done": story.edits, "quarantine/done": len(story.planned)}
    assert set(story.before) - set(story.told["left"]) == story.planned


def test_what_the_cluster_puts_back_is_back_byte_for_byte(story: Story) -> None:
    assert story.told["restored"] == {"done": len(story.put_back)}
    assert set(story.before) - set(story.told["back"]) == story.planned - story.put_back
    assert {key: story.told["back"][key] for key in story.put_back} == {key: story.before[key] for key in story.put_back}


def test_the_next_night_on_the_cluster_purges_the_others_and_moves_again_what_is_still_dead(story: Story) -> None:
    again = len(story.put_back)
    assert story.told["purged"] == {"quarantine/done": again, "purge/done": len(story.planned) - again}
    live = {key: digest for key, digest in story.before.items() if key not in story.planned}
    assert {key: story.told["after"].get(key) for key in live} == live


def test_an_executor_may_not_touch_the_disk_of_the_driver(story: Story) -> None:
    """That the guard of the tests above guards."""
    assert "is on the driver's machine" in story.told["hidden"]


@pytest.mark.parametrize(
    "fault, words",
    [
        ("no program", "have no program /no/such/python3. Set `spark.python`"),
        ("no libraries", "have no module pandas in their Python"),
        ("no executor", "no executor of spark://cluster accepted a task within 1 s. Check that one is free and has the cores and memory"),
        ("another Python", "run Python 3.11, but this process runs"),
        ("speculation", "has spark.speculation enabled. Two attempts of a task would change the same files"),
    ],
)
def test_a_cluster_that_cannot_run_this_release_is_refused_with_a_sentence(story: Story, fault: str, words: str) -> None:
    assert words in story.told["refused"][fault]
