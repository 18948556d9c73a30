"""The protocol on a lake in a bucket, in a process with a Spark of its own: `python -m tests.stages.clustered FILE`.

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
from tests.killed import CHECKOUT
from tests.s3.servers import S3Server
from tests.stages.bucket_house import BucketHouse
from tests.stages.elsewhere import all_in_executors
from tests.stages.lakehouse import STORAGE, counts
from tests.stores.s3_bench import S3Bench

# What is put back of the files that a plan has moved.
PUT_BACK = "iceberg/db/orders/data/lost-1"
OF_THE_LAKE = ("lake_refs", "commit_graph", "reachable_snapshots", "expiry_plan", "manifest_entries", "live_files")
OF_THE_STORAGE = ("live_filter", "storage_inventory", "orphan_files", "deletion_plan")


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


def rows(house: BucketHouse) -> dict[str, Any]:
    """What tells the rows of every table of a night."""
    tables = [(table, lake.name) for lake in house.lakes for table in OF_THE_LAKE] + [(table, STORAGE) for table in OF_THE_STORAGE]
    receipts = {f"{owner}/{table}": house.published(table, owner).receipt for table, owner in tables}
    return {name: [receipt.rows, receipt.digest] for name, receipt in receipts.items()}


def protocol(house: BucketHouse) -> dict[str, Any]:
    """Plan, approve, apply, put some files back; then a later night's plan, which purges the others."""
    told: dict[str, Any] = {}

    def carried_out(header: PlanHeader) -> dict[str, int]:
        return {"/".join(key): count for key, count in counts(house.carry_out(header).by_outcome).items()}

    with all_in_executors():
        header = house.plan()
    told["plan"], told["rows"] = header.plan_id, rows(house)
    told["applied"], told["left"] = carried_out(header), house.contents()
    with all_in_executors():
        _, books = restore(lambda: house.spark, house.tonight(), STORAGE, prefix=PUT_BACK)
    told["restored"], told["back"] = counts(books), house.contents()
    house.now += timedelta(days=1)
    later = house.plan()
    told["purged"], told["after"] = carried_out(later), house.contents()
    return told


def played(scene: Scene, file: Path) -> dict[str, Any]:
    """The protocol in a process of its own. Raises `AssertionError` with its last words where it fails."""
    file.write_bytes(pickle.dumps(scene))
    command = [sys.executable, "-m", "tests.stages.clustered", str(file)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def refusals(spark: SparkSession, bare: Path) -> dict[str, str]:
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
    others = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapInArrow(_long, "id long").collect())
    others.start()
    while not spark.sparkContext.statusTracker().getActiveStageIds():
        time.sleep(0.01)
    ask("no executor")
    others.join()
    executors.TIMEOUT_SECONDS = patience
    spark.sparkContext.pythonVer = "3.9"
    ask("another Python")
    return told


def _long(batches: Any) -> Any:
    time.sleep(6)
    yield from batches


def forbidden(spark: SparkSession, path: Path) -> str:
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
    told = protocol(scene.house(spark))
    told["hidden"] = forbidden(spark, Path(file))
    told["refused"] = refusals(spark, scene.bare)
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
