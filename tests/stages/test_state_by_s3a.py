"""Spark with hadoop-aws reads a state on S3 itself, and returns the rows that Python reads.

This needs downloaded JARs and a separate Spark process, so it belongs to the full suite.
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
            joined = type(written[0])(tuple(part for one in written for part in one.parts), sum(one.digest for one in written) % 2**64)
            tables.append(publish(state, run, joined, CLOCK))
        complete, incomplete = tables
        state.files.delete(incomplete.paths()[0])
        (tmp_path / "asked").write_bytes(pickle.dumps((state, complete, incomplete, s3a.settings(shared_server("ceph")))))
        command = [sys.executable, "-m", "tests.stages.test_state_by_s3a", str(tmp_path / "asked")]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["schemas"][0] == answer["schemas"][1]
        assert answer["rows"][0] == answer["rows"][1]
        assert answer["keys"] == sorted(row["key"] for row in read_rows(state, LIVE_FILES, complete).to_pylist())
        assert len(answer["files"]) == 2
        assert all(name.startswith("s3a://") for name in answer["files"])
        assert incomplete.receipt.files[0].name in answer["missing"]


def main(request: str) -> None:
    state, complete, incomplete, settings = pickle.loads(Path(request).read_bytes())  # noqa: S301  (written by the test)
    # A cluster may be configured to ignore missing files. Tables of the state must not lose rows
    # then.
    ignoring = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}
    config = SparkConfig(master="local[1]", conf={**TEST_CONF, **settings, **ignoring}, s3a=True)
    spark = SparkRuntime.from_config(config).session()
    native = read_table(spark, state, LIVE_FILES, complete)
    files, rows = native.inputFiles(), sorted(map(str, native.collect()))
    keys = sorted(row["key"] for row in read_table(spark, state, LIVE_FILES, complete, columns=["key"]).collect())
    try:
        missing = str(read_table(spark, state, LIVE_FILES, incomplete).collect())
    except Exception as error:  # noqa: BLE001  (the test checks the raised error)
        missing = str(error)
    spark.conf.set(READ_BY_SPARK, "false")
    fallback = read_table(spark, state, LIVE_FILES, complete)
    answer = {
        "schemas": [native.schema.json(), fallback.schema.json()],
        "rows": [rows, sorted(map(str, fallback.collect()))],
        "keys": keys,
        "files": files,
        "missing": missing,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
