"""The protocol on a lake in a bucket, in a process with a Spark of its own: `python -m tests.stages.cluster_protocol FILE`.

Executors do all that they can get of a night and of a restore, and act on every file: what stages would do in this process is too much.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gc_assets.config.models import LakeConfig
from gc_assets.config.s3 import Connections, S3Config
from gc_assets.core.errors import GcError
from gc_assets.core.plan import PlanHeader
from gc_assets.resources import executors
from gc_assets.resources.spark import SparkRuntime
from gc_assets.stages.delete import apply
from gc_assets.stages.delete.restore import restore
from gc_assets.stores.store import open_store
from tests.process_kills import CHECKOUT
from tests.s3.servers import S3Server
from tests.stages.bucket_house import BucketHouse
from tests.stages.lakehouse import STORAGE, counts
from tests.stages.remote_execution import all_remote
from tests.stores.s3_bench import S3Bench

# What is put back of the files that a plan has moved.
RESTORED_PREFIX = "iceberg/db/orders/data/lost-1"
LAKE_TABLES = ("lake_refs", "commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
STORAGE_TABLES = ("live_filter", "storage_inventory", "orphan_files", "deletion_plan")


@dataclass(frozen=True)
class Scene:
    """What a process needs to see a `BucketHouse` of another one. Pickles."""

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

    def house(self, spark: SparkSession) -> BucketHouse:
        places = Connections(default=self.server.settings)
        store = open_store(f"s3://{self.bucket}/{self.prefix}", places)
        bench = S3Bench(self.server, self.server.client(), self.bucket, self.prefix, store, places, "versioned")
        settings = {"quarantine": "versioned"}
        return BucketHouse(spark, self.root, self.lakes, settings, self.now, state=self.state, s3=self.s3, bench=bench)


def table_digests(house: BucketHouse) -> dict[str, Any]:
    """What tells the rows of every table of a night."""
    tables = [(table, lake.name) for lake in house.lakes for table in LAKE_TABLES] + [(table, STORAGE) for table in STORAGE_TABLES]
    receipts = {f"{owner}/{table}": house.find_table(table, owner).receipt for table, owner in tables}
    return {name: [receipt.rows, receipt.digest] for name, receipt in receipts.items()}


def run_protocol(house: BucketHouse) -> dict[str, Any]:
    """Plan, approve, apply, put some files back; then a later night's plan, which purges the others."""
    told: dict[str, Any] = {}

    def carried_out(header: PlanHeader) -> dict[str, int]:
        return {"/".join(key): count for key, count in counts(house.approve_and_apply(header).by_outcome).items()}

    with all_remote():
        header = house.plan()
    told["plan"], told["rows"] = header.plan_id, table_digests(house)
    told["applied"], told["left"] = carried_out(header), house.contents()
    with all_remote():
        _, books = restore(lambda: house.spark, house.run_context(), STORAGE, prefix=RESTORED_PREFIX)
    told["restored"], told["back"] = counts(books), house.contents()
    house.now += timedelta(days=1)
    later = house.plan()
    told["purged"], told["after"] = carried_out(later), house.contents()
    return told


def run_in_process(scene: Scene, file: Path) -> dict[str, Any]:
    """The protocol in a process of its own. Raises `AssertionError` with its last words where it fails."""
    file.write_bytes(pickle.dumps(scene))
    command = [sys.executable, "-m", "tests.stages.cluster_protocol", str(file)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def collect_refusals(spark: SparkSession, bare: Path) -> dict[str, str]:
    """What is said of executors that cannot run this release, and of settings. `bare` is a Python without libraries."""
    told, python = dict[str, str](), "spark.sql.execution.pyspark.python"

    def ask(fault: str, **settings: str) -> None:
        session = spark.newSession()
        for key, value in settings.items():
            session.conf.set(key, value)
        try:
            executors.check_executors(session, "spark://cluster")
        except GcError as error:
            told[fault] = str(error)

    ask("no program", **{python: "/no/such/python3"})
    ask("no libraries", **{python: str(bare)})
    ask("speculation", **{"spark.sql.legacy.setCommandRejectsSparkCoreConfs": "false", executors.SPECULATION: "true"})
    patience, executors.TIMEOUT_SECONDS = executors.TIMEOUT_SECONDS, 1.0
    others = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapInArrow(_delay, "id long").collect())
    others.start()
    while not spark.sparkContext.statusTracker().getActiveStageIds():
        time.sleep(0.01)
    ask("no executor")
    others.join()
    executors.TIMEOUT_SECONDS = patience
    spark.sparkContext.pythonVer = "3.9"
    ask("another Python")
    return told


def _delay(batches: Any) -> Any:
    time.sleep(6)
    yield from batches


def read_in_executor(spark: SparkSession, path: Path) -> str:
    """What an executor hears that opens a file."""

    def opened(batches: Any) -> Any:
        path.read_bytes()
        yield from batches

    try:
        spark.range(1).mapInArrow(opened, "id long").collect()
    except PySparkException as error:
        return str(error)
    return ""


def main(file: str) -> None:
    scene: Scene = pickle.loads(Path(file).read_bytes())  # noqa: S301  (written by the test)
    apply.MAX_IN_PROCESS_ACTIONS = -1  # type: ignore[misc]
    spark = SparkRuntime.model_validate(scene.runtime).session()
    told = run_protocol(scene.house(spark))
    told["hidden"] = read_in_executor(spark, Path(file))
    told["refused"] = collect_refusals(spark, scene.bare)
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
