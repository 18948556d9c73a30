"""The daemon of Spark's Python workers ends if it is idle."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.daemon import IdlePoll, is_kept_by_server
from gc_assets.engine.sessions import is_remote

IDLE = "from gc_assets.engine.daemon import end_if_idle; from pyspark import daemon; end_if_idle({}); daemon.manager()"
CHILD = """
import os, signal, time
from gc_assets.engine.daemon import has_workers
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
seen = [has_workers()]
child = os.fork()
if not child:
    time.sleep(60)
seen.append(has_workers())
os.kill(child, signal.SIGKILL)
while has_workers():
    time.sleep(0.01)
print(seen, has_workers())
"""


def poll_pipe(idle_seconds: float, *, is_busy: bool, content: bytes = b"") -> int:
    """Poll a pipe, and return the number of events."""
    reading, writing = os.pipe()
    try:
        os.write(writing, content)
        poll = IdlePoll(idle_seconds, lambda: is_busy)
        poll.register(reading, select.POLLIN)
        return len(poll.poll(1))
    finally:
        os.close(reading)
        os.close(writing)


def test_only_idle_daemon_process_ends() -> None:
    assert poll_pipe(60, is_busy=False) == 0
    assert poll_pipe(0, is_busy=True) == 0
    assert poll_pipe(0, is_busy=False, content=b"request") == 1
    with pytest.raises(SystemExit):
        poll_pipe(0, is_busy=False)


def test_idle_time_counts_from_last_worker() -> None:
    busy = iter([True, False, False])
    poll, started = IdlePoll(0.2, lambda: next(busy)), monotonic()
    for _ in range(2):
        poll.poll(150)
    with pytest.raises(SystemExit):
        poll.poll(150)
    assert monotonic() - started >= 0.4


@pytest.mark.parametrize(
    "uuid, ends", [({}, False), ({"SPARK_JOB_ARTIFACT_UUID": "default"}, False), ({"SPARK_JOB_ARTIFACT_UUID": "5e1f"}, True)]
)
def test_only_daemon_of_connect_session_ends_before_its_session(uuid: dict[str, str], ends: bool) -> None:
    """In a long run, another process got the port of a daemon that had ended, and all later tasks failed."""
    assert is_kept_by_server(uuid) == ends


@pytest.mark.spark
def test_classic_session_has_no_id(spark: SparkSession) -> None:
    def read_environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"ends": [is_kept_by_server(os.environ)]})

    ((ends,),) = spark.range(1).mapInArrow(read_environment, "ends boolean").collect()
    assert ends == is_remote(spark)


def test_only_living_children_are_workers() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True] False\n"


def test_daemon_ends_with_its_parent_but_not_with_workers() -> None:
    """The test uses the installed pyspark with a replaced `select` module."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"}
    command = [sys.executable, "-c", IDLE.format(0.5)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as daemon:
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            assert int.from_bytes(worker.recv(4)) > 0
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.wait(2.5)
        assert daemon.wait(60) == 1
