"""Where Spark has hadoop-aws it reads a state on S3 by itself, and finds the rows that Python reads.

Spark with these jars is a process of its own, and they are fetched, so this is a part of the full suite.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from gc_assets.config.models import SparkConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.tables import READ_BY_SPARK, publish, read_rows, read_table, write_rows
from gc_assets.resources.spark import SparkRuntime
from gc_assets.state.files import Files
from gc_assets.state.journal import State
from gc_assets.state.schemas import LIVE_FILES
from tests.conftest import TEST_CONF
from tests.depth import full_suite_only
from tests.process_kills import CHECKOUT
from tests.s3 import s3a
from tests.s3.servers import shared_server
from tests.state.publisher import DAY, NOW
from tests.state.s3_location import unused_location

CLOCK = Clock(NOW)
pytestmark = full_suite_only


def live(*keys: str) -> pa.Table:
    rows = [{"key": key, "storage": "warehouse", "lake": "sales", "size_bytes": len(key)} for key in keys]
    return pa.Table.from_pylist(rows, LIVE_FILES.schema)


def test_s3a_reads_the_same_rows_as_python(tmp_path: Path) -> None:
    with unused_location() as (root, settings):
        state = State(Files(f"{root}/a state {{x}}", settings))
        tables = []
        for group in ("sales", "half"):
            run = state.start(group, LIVE_FILES.name, DAY, CLOCK)
            written = [write_rows(rows, LIVE_FILES, run, state.files) for rows in (live("a", "ä/b+%2F"), live(*map(str, range(300))))]
            both = type(written[0])(tuple(part for one in written for part in one.parts), sum(one.digest for one in written) % 2**64)
            tables.append(publish(state, run, both, CLOCK))
        whole, half = tables
        state.files.delete(half.paths()[0])
        (tmp_path / "asked").write_bytes(pickle.dumps((state, whole, half, s3a.settings(shared_server("ceph")))))
        command = [sys.executable, "-m", "tests.stages.test_state_by_s3a", str(tmp_path / "asked")]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["schemas"][0] == told["schemas"][1]
        assert told["rows"][0] == told["rows"][1]
        assert told["keys"] == sorted(row["key"] for row in read_rows(state, LIVE_FILES, whole).to_pylist())
        assert len(told["files"]) == 2
        assert all(name.startswith("s3a://") for name in told["files"])
        assert half.receipt.files[0].name in told["missing"]


def main(asked: str) -> None:
    state, whole, half, settings = pickle.loads(Path(asked).read_bytes())  # noqa: S301  (written by the test)
    # A cluster may be told to pass over files that it does not find: no table of the state may lose rows by that.
    lax = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}
    config = SparkConfig(master="local[1]", conf={**TEST_CONF, **settings, **lax}, s3a=True)
    spark = SparkRuntime.from_config(config).session()
    by_itself = read_table(spark, state, LIVE_FILES, whole)
    files, rows = by_itself.inputFiles(), sorted(map(str, by_itself.collect()))
    keys = sorted(row["key"] for row in read_table(spark, state, LIVE_FILES, whole, columns=["key"]).collect())
    try:
        missing = str(read_table(spark, state, LIVE_FILES, half).collect())
    except Exception as error:  # noqa: BLE001  (what is raised is what is looked at)
        missing = str(error)
    spark.conf.set(READ_BY_SPARK, "false")
    by_python = read_table(spark, state, LIVE_FILES, whole)
    told = {
        "schemas": [by_itself.schema.json(), by_python.schema.json()],
        "rows": [rows, sorted(map(str, by_python.collect()))],
        "keys": keys,
        "files": files,
        "missing": missing,
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
