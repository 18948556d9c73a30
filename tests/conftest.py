"""What is started once for a run of the tests: Spark, in the mode that `GC_ASSETS_TEST_SPARK` names (`session`, the default, or `connect`),
and real Nessie and S3 servers.
"""

from __future__ import annotations

import gc
import os
import tempfile
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
from tests.cluster import Cluster
from tests.depth import FULL, ONLY_IN_FULL
from tests.lakes.nessie.server import Server, running
from tests.s3.servers import S3Server, environment, shared

# Until the first test begins, all that is made stays: to look for garbage among it takes a fifth of the collection.
gc.disable()

# Before a JVM or another library looks at it: who asks the S3 servers.
_USERS = tempfile.TemporaryDirectory(prefix="gc-assets-users-")
os.environ |= environment(Path(_USERS.name))

# Processes that share the tests find a width of the terminal in their environment, as if each wrote to one.
os.environ.pop("COLUMNS", None)

# A command that a test starts ends before the slow compiler of its JVM would pay.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"

# Hypothesis looks for wrong answers, not for slow ones: a busy machine fails no test.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Small lakes and many short jobs: the quick compiler saves more than it costs, and compiling queries does not pay at all. What compiled
# queries find is seen where tests start a command, which has the settings of the product. The quick compiler's own 48 MB of code are full
# after some minutes, and then it compiles the same again and again. A sort of few rows takes a page of memory, by default one so large
# that after some queries the whole heap is collected.
TEST_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.buffer.pageSize": "1m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}


# Files of tests that take a process half a minute and more, the longest first. Where several processes share the tests, none begins with
# these when the others end.
LONG = (
    "stages/test_cluster.py",
    "assets/test_in_a_browser.py",
    "stages/test_s3_protocol.py",
    "stages/test_histories.py",
    "stages/mark/test_incremental.py",
    "stages/test_connect_service.py",
    "stores/contract.py",
    "test_demo.py",
    "stages/test_connect.py",
    "stages/test_s3_faults.py",
    "stores/s3/test_quarantine.py",
    "stores/s3/test_faults.py",
    "job/test_submit.py",
    "cli/test_secrets.py",
    "model/test_protocol.py",
    "stages/test_engine.py",
    "stages/test_lakefs_lifecycle.py",
    "stages/test_lakefs_recorded.py",
    "stages/test_nessie_safety.py",
    "state/test_requests.py",
)


# Files whose tests one process runs, because they share servers that take many seconds of a core to start.
TOGETHER = (
    {"stages/test_cluster.py", "job/test_submit.py"},
    {
        "stages/test_s3_protocol.py",
        "cli/test_secrets.py",
        "stages/test_nessie_safety.py",
        "stages/test_nessie_scenarios.py",
        "stages/test_nessie_run.py",
        "stages/test_empty_lakes.py",
        "lakes/test_contract.py",
        "lakes/nessie/test_client.py",
        "lakes/nessie/test_commits.py",
        "lakes/nessie/test_retention_random.py",
        "benchmarks/test_nessie_lake.py",
    },
)


class _Together(LoadFileScheduling):
    """Hands out files, and those of `TOGETHER` at once."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((" ".join(sorted(files)) for files in TOGETHER if file.removeprefix("tests/") in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    place = {str(Path(__file__).parent / file): number for number, file in enumerate(LONG)}
    items.sort(key=lambda item: place.get(str(item.path), len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def what_is_imported_stays() -> None:
    """Spares Python's garbage collector the modules and tests, which it would visit hundreds of times."""
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
def one_jvm(request: pytest.FixtureRequest) -> None:
    """A process starts one JVM with one set of options, and some tests reach it through an asset or the command line: ours is first."""
    if any(item.get_closest_marker("spark") for item in request.session.items):
        request.getfixturevalue("spark")


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Spark cluster whose executors see nothing that a test writes on this disk. A usual run starts none."""
    if not FULL:
        pytest.skip(ONLY_IN_FULL)
    with ExitStack() as places:
        folder = places.enter_context(tempfile.TemporaryDirectory(prefix="gc-assets-spark-", ignore_cleanup_errors=True))
        yield places.enter_context(cluster.run_cluster(Path(folder), tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def nessie_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("nessie")) as server:
        yield server


@pytest.fixture
def nessie(nessie_server: Server) -> Server:
    """The server of the suite, empty."""
    nessie_server.reset()
    return nessie_server


@pytest.fixture(scope="session")
def ceph() -> S3Server:
    """The Ceph RGW of the suite. Every test makes buckets of its own."""
    return shared("ceph")


@pytest.fixture(scope="session")
def versity() -> S3Server:
    """The versitygw of the suite. Every test makes buckets of its own."""
    return shared("versity")
