"""Run the protocol on a lake in a bucket, in a process with its own Spark: `python -m tests.stages.cluster_protocol FILE`.

All work of a run and of a restore that can be remote is done by executors.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.config.connections import Connections
from gc_assets.config.models import LakeConfig
from gc_assets.config.s3 import S3Config
from gc_assets.core.errors import GcError
from gc_assets.core.plan import PlanHeader
from gc_assets.engine import tasks
from gc_assets.resources import executors
from gc_assets.resources.spark import SparkRuntime
from gc_assets.stages.delete.restore import restore
from gc_assets.stores.store import open_store
from tests.process_kills import CHECKOUT
from tests.s3.servers import S3Server
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.lakehouse import STORAGE, counts
from tests.stages.remote_execution import all_remote
from tests.stores.s3_bench import S3Bench

# The files of the plan that are restored.
RESTORED_PREFIX = "iceberg/db/orders/data/lost-1"
LAKE_TABLES = ("lake_refs", "commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
STORAGE_TABLES = ("live_filter", "storage_inventory", "orphan_files", "deletion_plan")


@dataclass(frozen=True)
class Scene:
    """Picklable settings to open the `BucketLakehouse` of another process."""

    runtime: Mapping[str, Any]
    root: Path
    lakes: list[LakeConfig]
    now: datetime
    server: S3Server
    bucket: str
    prefix: str
    state: str
    s3: S3Config
    bare: Path

    def house(self, spark: SparkSession) -> BucketLakehouse:
        connections = Connections.of(self.server.settings)
        store = open_store(f"s3://{self.bucket}/{self.prefix}", connections)
        bench = S3Bench(self.server, self.server.client(), self.bucket, self.prefix, store, connections, "versioned")
        settings = {"quarantine": "versioned"}
        return BucketLakehouse(spark, self.root, self.lakes, settings, self.now, state=self.state, s3=self.s3, bench=bench)


def table_digests(house: BucketLakehouse) -> dict[str, Any]:
    """Return the row count and digest of every table of a run."""
    tables = [(table, lake.name) for lake in house.lakes for table in LAKE_TABLES] + [(table, STORAGE) for table in STORAGE_TABLES]
    receipts = {f"{owner}/{table}": house.find_table(table, owner).receipt for table, owner in tables}
    return {name: [receipt.rows, receipt.digest] for name, receipt in receipts.items()}


def run_protocol(house: BucketLakehouse) -> dict[str, Any]:
    """Plan, approve, apply and restore some files. Then apply the plan of the next run, which purges the others."""
    results: dict[str, Any] = {}

    def apply_all(header: PlanHeader) -> dict[str, int]:
        return {"/".join(key): count for key, count in counts(house.approve_and_apply(header).by_outcome).items()}

    with all_remote():
        header = house.plan()
    results["plan"], results["rows"] = header.plan_id, table_digests(house)
    results["applied"], results["after_apply"] = apply_all(header), house.contents()
    with all_remote():
        _, outcomes = restore(lambda: house.spark, house.run_context(), STORAGE, prefix=RESTORED_PREFIX)
    results["restored"], results["after_restore"] = counts(outcomes), house.contents()
    house.now += timedelta(days=1)
    next_plan = house.plan()
    results["purged"], results["after_purge"] = apply_all(next_plan), house.contents()
    return results


def run_in_process(scene: Scene, file: Path) -> dict[str, Any]:
    """Run the protocol in its own process. Raise `AssertionError` with the end of its output if it fails."""
    file.write_bytes(pickle.dumps(scene))
    command = [sys.executable, "-m", "tests.stages.cluster_protocol", str(file)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def collect_refusals(spark: SparkSession, bare: Path) -> dict[str, str]:
    """Return the errors for unsuitable executors and settings. `bare` is a Python without libraries."""
    results, python = dict[str, str](), "spark.sql.execution.pyspark.python"

    def check(fault: str, **settings: str) -> None:
        session = spark.newSession()
        for key, value in settings.items():
            session.conf.set(key, value)
        try:
            executors.check_executors(session, "spark://cluster")
        except GcError as error:
            results[fault] = str(error)

    check("no program", **{python: "/no/such/python3"})
    check("no libraries", **{python: str(bare)})
    check("speculation", **{"spark.sql.legacy.setCommandRejectsSparkCoreConfs": "false", executors.SPECULATION: "true"})
    timeout, executors.TIMEOUT_SECONDS = executors.TIMEOUT_SECONDS, 1.0
    with tempfile.TemporaryDirectory() as folder:
        checked = Path(folder, "checked")
        others = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapInArrow(_wait_for(checked), "id long").collect())
        others.start()
        while not spark.sparkContext.statusTracker().getActiveStageIds():
            time.sleep(0.01)
        check("no executor")
        checked.touch()
        others.join()
    executors.TIMEOUT_SECONDS = timeout
    spark.sparkContext.pythonVer = "3.9"
    check("another Python")
    return results


def _wait_for(path: Path) -> Callable[[Any], Any]:
    """Return a function that occupies an executor until a file exists."""

    def wait(batches: Any) -> Any:
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield from batches

    return wait


def read_in_executor(spark: SparkSession, path: Path) -> str:
    """Return the error of an executor that reads a file of the driver."""

    def read_file(batches: Any) -> Any:
        path.read_bytes()
        yield from batches

    try:
        spark.range(1).mapInArrow(read_file, "id long").collect()
    except PySparkException as error:
        return str(error)
    return ""


def main(file: str) -> None:
    scene: Scene = pickle.loads(Path(file).read_bytes())  # noqa: S301  (written by the test)
    tasks.MAX_IN_PROCESS_ACTIONS = -1  # type: ignore[misc]
    spark = SparkRuntime.model_validate(scene.runtime).session()
    results = run_protocol(scene.house(spark))
    results["hidden"] = read_in_executor(spark, Path(file))
    results["refused"] = collect_refusals(spark, scene.bare)
    sys.stdout.write(json.dumps(results) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
