"""`python -m benchmarks.long_lived local|service|dagster|sensor [--count 300]`: memory of servers.

`local` and `service` open one session after another on a Spark Connect server: pyspark's local one,
or one with a token and TLS as managed services have. Each session is a process of its own that runs
one stage in Python workers. `dagster` runs the `run` job of the demo lakes in `dagster dev`.
`sensor` evaluates the `notifications` sensor in one process, with a target that refuses events.

The result is a line for every tenth of the count: memory (PSS), processes and threads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

import click
import pyarrow as pa
import yaml

from benchmarks.meter import Meter, Usage
from benchmarks.resident import ROOT
from gc_assets.resources.connect_server import DISCOVERY, LocalServer
from gc_assets.resources.spark import SparkRuntime

LINES: Final = 10
# Sessions are processes of their own, forked from one that has imported pyspark.
PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["gc_assets.resources.connect_sessions", "gc_assets.resources.spark", "pyspark.sql.connect.session"])
MIB: Final = 1024 * 1024
_ROWS: Final = 1_000
SETTLE_SECONDS: Final = 60.0
_ENDED: Final = ("SUCCESS", "FAILURE", "CANCELED")
_LAUNCH: Final = """mutation launch($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
_STATUS: Final = "query status($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a server after a number of sessions.

    Attributes:
        count: The number of sessions or ticks so far.
        server_mib: PSS of the server's own process.
        children_mib: PSS of its child processes.
        children: The number of its child processes: Python daemons and workers.
        threads: The number of threads of the server's own process.
        seconds: The seconds of the last session or tick.
    """

    count: int
    server_mib: float
    children_mib: float
    children: int
    threads: int
    seconds: float

    @classmethod
    def measure(cls, pid: int, count: int, seconds: float) -> Memory:
        meter, usage = Meter(pid), Usage()
        meter.sample(usage)
        own = usage.peak_driver_bytes
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return cls(count, own / MIB, (usage.peak_bytes - own) / MIB, meter.count_processes() - 1, threads, seconds)

    def line(self) -> str:
        memory = f"{self.server_mib:>10,.0f} {self.children_mib:>12,.0f}"
        return f"{self.count:>6,} {memory} {self.children:>9,} {self.threads:>8,} {self.seconds:>8.2f}"


HEADER: Final = f"{'count':>6} {'server MiB':>10} {'children MiB':>12} {'processes':>9} {'threads':>8} {'seconds':>8}"


@contextmanager
def local_server(folder: Path) -> Generator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield settings and variables of the clients of pyspark's local server. Stop it afterwards."""
    environment = {DISCOVERY: str(folder / "connect-local.json")}
    try:
        yield {"remote": "local[2]"}, environment
    finally:
        stop = [sys.executable, "-m", "gc_assets.resources.connect_server", "--stop"]
        subprocess.run(stop, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=True, capture_output=True)


@contextmanager
def service(folder: Path) -> Generator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield settings and variables of the clients of a server with a token and TLS."""
    from tests.connect_service import TOKEN, run_service  # needs grpcio

    folder.mkdir(exist_ok=True)
    with run_service(folder / "service") as found:
        yield {"remote": found.remote, "token": TOKEN}, {**found.environment, "TMPDIR": str(folder)}


def server_pid(folder: Path) -> int:
    """Return the process of the server whose files are in a folder.

    Raises:
        RuntimeError: If no server runs.
    """
    local = [LocalServer.in_directory(path.parent) for path in folder.rglob("connect-local.json")]
    found = [server.pid for server in local if server is not None]
    found = found or [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_service(name, folder)]  # noqa: PTH208
    if not found:
        raise RuntimeError("the Spark Connect server does not run")
    return found[0]


def _is_service(pid: str, folder: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"java" in command[0] and b"SparkConnectServer" in b" ".join(command) and str(folder).encode() in environment


def open_sessions(kind: str, count: int, folder: Path) -> Iterator[Memory]:
    """Open sessions one after the other, and yield the memory of the server ten times."""
    every = max(1, count // LINES)
    with (local_server if kind == "local" else service)(folder) as (settings, environment):
        for number in range(1, count + 1):
            started = perf_counter()
            client = PROCESSES.Process(target=run_client, args=(settings, environment))
            client.start()
            client.join()
            if client.exitcode != 0:
                raise RuntimeError(f"session {number} failed")
            if number == 1 or number % every == 0:
                yield Memory.measure(server_pid(folder), number, perf_counter() - started)


def run_client(settings: dict[str, Any], environment: dict[str, str]) -> None:
    """Open a session in this process, and run one stage in Python workers."""
    os.environ.update(environment)
    tempfile.tempdir = None
    runtime = SparkRuntime.model_validate({"mode": "connect", "conf": {"spark.sql.shuffle.partitions": "2"}, **settings})
    spark = runtime.session()
    rows = spark.createDataFrame(pa.table({"key": [f"k{n}" for n in range(_ROWS)]})).repartition(2, "key")
    if rows.mapInArrow(lambda batches: batches, rows.schema).count() != _ROWS:  # a named function would refer to this module
        raise RuntimeError("rows were lost")


def run_jobs(count: int, folder: Path, asset: str | None) -> Iterator[Memory]:
    """Run the `run` job again and again in `dagster dev`, or one asset of each lake, and yield the
    memory of all its processes between two runs.
    """
    from tests.ports import free_port
    from tests.s3.daemons import daemons

    config, home, port = demo_with_target(folder), folder / "home", free_port()
    home.mkdir()
    shutil.copy(ROOT / "deploy" / "dagster.dev.yaml", home / "dagster.yaml")
    environment = {"DAGSTER_HOME": str(home), "GC_ASSETS_CONFIG": str(config), "PYTHONPATH": str(ROOT)}
    every = max(1, count // LINES)
    with daemons(folder / "log", environment) as group:
        program = str(Path(sys.executable).with_name("dagster"))
        workspace = ("-w", str(ROOT / "workspace.yaml"))
        group.run(program, "sensor", "start", *workspace, "--start-all")
        group.start(program, "dev", *workspace, "-p", str(port))
        client = _Client(f"http://127.0.0.1:{port}/graphql")
        group.wait(client.answers)
        root = group.pids()[-1]
        idle = Meter(root).count_processes() + 1  # one more tracks resources of the runs
        for number in range(1, count + 1):
            started = perf_counter()
            client.run_job("run" if asset is None else "__ASSET_JOB", datetime.now(UTC).date().isoformat(), client.assets(asset))
            if number == 1 or number % every == 0:
                seconds, deadline = perf_counter() - started, perf_counter() + SETTLE_SECONDS
                while Meter(root).count_processes() > idle and perf_counter() < deadline:
                    sleep(0.5)  # until the process of the run has ended
                yield Memory.measure(root, number, seconds)


@dataclass(frozen=True, slots=True)
class _Client:
    """Launches runs through the GraphQL interface of the webserver."""

    address: str

    def answers(self) -> bool:
        try:
            return bool(self._send("{ repositoriesOrError { __typename } }"))
        except OSError:
            return False

    def assets(self, name: str | None) -> list[dict[str, Any]]:
        """Return the assets with a name."""
        nodes = self._send("{ assetNodes { assetKey { path } isExecutable } }")["assetNodes"] if name is not None else []
        return [node["assetKey"] for node in nodes if node["assetKey"]["path"][-1] == name and node["isExecutable"]]

    def run_job(self, job: str, partition: str, assets: list[dict[str, Any]]) -> None:
        """Launch a run of a job, or of some of its assets, and wait until it ends.

        Raises:
            RuntimeError: If the run failed.
        """
        selector: dict[str, Any] = {"jobName": job, "repositoryLocationName": "lake_gc", "repositoryName": "__repository__"}
        if assets:
            selector["assetSelection"] = assets
        parameters = {
            "selector": selector,
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        }
        launched = self._send(_LAUNCH, parameters={**parameters, "mode": "default"})["launchRun"]
        if "run" not in launched:
            raise RuntimeError(f"the run was not launched: {launched}")
        status = ""
        while status not in _ENDED:
            sleep(0.5)
            status = self._send(_STATUS, run=launched["run"]["runId"])["runOrError"]["status"]
        if status != "SUCCESS":
            raise RuntimeError(f"the run ended with {status}")

    def _send(self, query: str, **variables: Any) -> dict[str, Any]:
        content = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self.address, content, {"Content-Type": "application/json"})  # noqa: S310  (our own server)
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            found = json.load(answer)
        if found.get("errors"):
            raise RuntimeError(f"GraphQL: {found['errors']}")
        return found["data"]


def demo_with_target(folder: Path) -> Path:
    """Build the demo lakes with a webhook that refuses all events, and return the configuration."""
    from gc_assets.demo.sample import ensure_demo

    config = ensure_demo(folder / "demo")
    document = yaml.safe_load(config.read_text())
    document["notify"] = [{"kind": "webhook", "name": "refused", "url": "http://127.0.0.1:9/"}]
    config.write_text(yaml.safe_dump(document))
    return config


def tick_sensor(count: int, folder: Path) -> Iterator[Memory]:
    """Evaluate the `notifications` sensor, and yield the memory of this process."""
    import dagster as dg

    from gc_assets.definitions import build_definitions
    from gc_assets.resources.collector import Collector
    from gc_assets.resources.platform import load_platform

    config = demo_with_target(folder)
    command = [sys.executable, "-m", "gc_assets", "run", "--config", str(config)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)  # a plan waits for approval
    platform = load_platform({}, str(config))
    definitions, every = build_definitions(platform), max(1, count // LINES)
    sensor, resources = definitions.resolve_sensor_def("notifications"), {"collector": Collector.of(platform)}
    with dg.DagsterInstance.ephemeral() as instance:
        for number in range(1, count + 1):
            started = perf_counter()
            sensor.evaluate_tick(dg.build_sensor_context(instance=instance, resources=resources, definitions=definitions))
            if number == 1 or number % every == 0:
                yield Memory.measure(os.getpid(), number, perf_counter() - started)


SESSIONS: Final = ("local", "service")


@click.command()
@click.argument("kind", type=click.Choice([*SESSIONS, "dagster", "sensor"]))
@click.option("--count", default=300, show_default=True, help="The number of sessions, runs or ticks.")
@click.option("--asset", help="For dagster: only this asset of each lake, for example commit_graph. Default: the `run` job.")
def main(kind: str, count: int, asset: str | None) -> None:
    """Print the memory of a long-lived server over many sessions, runs or ticks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        click.echo(HEADER)
        if kind in SESSIONS:
            found = open_sessions(kind, count, folder)
        else:
            found = tick_sensor(count, folder) if kind == "sensor" else run_jobs(count, folder, asset)
        for memory in found:
            click.echo(memory.line())


if __name__ == "__main__":
    main()
