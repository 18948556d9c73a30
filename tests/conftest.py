"""Start Spark and real Nessie and S3 servers once, and distribute the tests to processes.

`GC_ASSETS_TEST_SPARK` is the mode of Spark: `session` (the default) or `connect`.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from xdist.scheduler import LoadFileScheduling

from gc_assets.resources.spark import SparkRuntime
from tests import cluster
from tests.azure import credentials as azure_credentials
from tests.cluster import Cluster
from tests.depth import DEPTH, NOT_ITS_TURN, ONLY_IN_FULL, SHARES, TURNS, commit_count, has_turn, in_full
from tests.disk import skip_syncs
from tests.gcs import servers as gcs_servers
from tests.lakes.icechunk.v2 import library
from tests.lakes.icechunk.v2.library import Library
from tests.lakes.nessie.server import Server, running
from tests.s3.servers import S3Server, environment, shared_server

ROOT = Path(__file__).parents[1]

# All objects of the collection are kept, and a garbage collector would need a fifth of its time.
gc.disable()

skip_syncs()

# The credentials of the S3 servers must be set before a JVM or library reads the environment.
_USERS = tempfile.TemporaryDirectory(prefix="gc-assets-users-")
os.environ |= environment(Path(_USERS.name)) | gcs_servers.environment(Path(_USERS.name)) | azure_credentials.environment()

# xdist sets the width of a terminal for its processes.
os.environ.pop("COLUMNS", None)

# Commands of tests end before the optimizing compiler of their JVM saves time.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"

# A slow machine must not fail a test.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# For small lakes and short jobs, only the quick compiler saves time, and compiled queries cost more than they save. Tests that start a
# command use the settings of the product, with compiled queries. The default code cache of 48 MB is full after some minutes, and then code
# is compiled repeatedly. A sort allocates a page, and the large default causes a full garbage collection after some queries.
TEST_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.buffer.pageSize": "1m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}


# The fixtures of servers that need many seconds of CPU time to start. One process runs all files that use the same server.
SERVERS = {
    "cluster": re.compile(r"\bspark_cluster\b"),
    "nessie": re.compile(r"\bnessie_server\b|\bnessie: Server\b|fixturevalue\(.nessie.\)"),
}
# The seconds of each file in the last run of the suite with several processes, in the cache of pytest.
DURATIONS = f"gc-assets/durations-{'full' if DEPTH == 'all' else 'usual'}"
_durations: Counter[str] = Counter()


@functools.cache
def scheduling_unit(file: str) -> str:
    """Return the server that a file of tests uses, or the file."""
    source = (ROOT / file).read_text()
    return next((server for server, pattern in SERVERS.items() if pattern.search(source)), file)


class ServerScheduling(LoadFileScheduling):
    """Distributes files, and all files that use the same server as one unit."""

    def _split_scope(self, nodeid: str) -> str:
        return scheduling_unit(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return ServerScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_report_header() -> str | None:
    if DEPTH not in {"fifth", "turns"}:
        return None
    what, parts = ("full suite", SHARES) if DEPTH == "fifth" else ("slow tests", TURNS)
    return f"{what}: share {commit_count() % parts} of {parts}, by {commit_count():,} commits"


def skip_tests_of_other_depths(items: list[pytest.Item]) -> None:
    for item in items:
        is_additional = item.get_closest_marker("full_suite_only") or "spark_cluster" in getattr(item, "fixturenames", ())
        if is_additional and not in_full(item.path):
            item.add_marker(pytest.mark.skip(reason=ONLY_IN_FULL))
        elif item.get_closest_marker("in_turn") and not has_turn(item.path):
            item.add_marker(pytest.mark.skip(reason=NOT_ITS_TURN))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest units first, so that no process begins one when the others end."""
    skip_tests_of_other_depths(items)
    if not hasattr(config, "workerinput"):
        return
    files = {item: item.nodeid.partition("::")[0] for item in items}
    estimates = Counter[str]()
    for item, file in files.items():
        estimates[file] += 2.0 if item.get_closest_marker("spark") else 0.1
    cache = getattr(config, "cache", None)  # missing with `-p no:cacheprovider`
    recorded = cache.get(DURATIONS, {}) if cache is not None else {}
    seconds = Counter[str]()
    for file, estimate in estimates.items():
        seconds[scheduling_unit(file)] += recorded.get(file, estimate)
    items.sort(key=lambda item: -seconds[scheduling_unit(files[item])])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    is_controller = not hasattr(config, "workerinput") and config.getoption("dist", "no") == "loadfile"
    cache = getattr(config, "cache", None)
    if is_controller and cache is not None and not (config.option.keyword or config.option.markexpr):
        cache.set(DURATIONS, {**cache.get(DURATIONS, {}), **_durations})


@pytest.fixture(scope="session", autouse=True)
def freeze_collected_objects() -> None:
    """Exclude modules and tests from garbage collection, which would visit them hundreds of times."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    mode = os.environ.get("GC_ASSETS_TEST_SPARK", "session")
    runtime = SparkRuntime(mode=mode, master="local[2]", remote="local[2]", conf=TEST_CONF)
    yield runtime.session()
    if mode == "session":
        runtime.session().stop()


@pytest.fixture(scope="session", autouse=True)
def start_jvm(request: pytest.FixtureRequest) -> None:
    """Start the JVM with the options of the tests before an asset or command starts it with others."""
    if any(item.get_closest_marker("spark") for item in request.session.items):
        request.getfixturevalue("spark")


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a Spark cluster whose executors cannot read the disk of the tests."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gc-assets-spark-", ignore_cleanup_errors=True))
        yield stack.enter_context(cluster.run_cluster(Path(folder), tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def nessie_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("nessie")) as server:
        yield server


@pytest.fixture
def nessie(nessie_server: Server) -> Server:
    """Return the server of the suite after a reset."""
    nessie_server.reset()
    return nessie_server


@pytest.fixture(scope="session")
def icechunk2() -> Iterator[Library]:
    """Start a process with icechunk 2.x. Each test has its own repositories."""
    with library.running() as running_library:
        yield running_library


@pytest.fixture(scope="session")
def ceph() -> S3Server:
    """Return the Ceph RGW of the suite. Each test creates its own buckets."""
    return shared_server("ceph")


@pytest.fixture(scope="session")
def versity() -> S3Server:
    """Return the versitygw of the suite. Each test creates its own buckets."""
    return shared_server("versity")
