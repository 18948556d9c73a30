"""Run on an existing Spark Connect server: with a token, over TLS, and without an installed gc-assets."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
import yaml
from click.testing import CliRunner

import gc_assets
from gc_assets.cli.main import cli
from gc_assets.core.errors import GcError
from gc_assets.engine.executor_info import EXECUTOR_DDL, describe_executor
from gc_assets.engine.tables import collect
from gc_assets.resources import connect_service as connect
from gc_assets.resources.spark import SparkRuntime
from gc_assets.resources.spark_version import minor
from tests.connect_service import TOKEN, Service, run_service
from tests.depth import full_suite_only
from tests.ports import free_port
from tests.process_kills import CHECKOUT

pytest.importorskip("grpc", reason="Spark Connect needs grpcio (pip install 'pyspark[connect]')")
pytestmark = full_suite_only

ANOTHER_SPARK = "4.1.0" if minor(pyspark.__version__) != "4.1" else "4.2.0"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with run_service(tmp_path_factory.mktemp("service")) as started:
        yield started


def start_process(service: Service, verb: str, *arguments: str, checkout: Path = CHECKOUT) -> subprocess.Popen[str]:
    """Start a process without a classic session, with the gc-assets of a checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stages.test_connect_service", verb, service.remote, *arguments],
        cwd=checkout,
        env={**clean, **service.environment, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_result(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-4000:]
    return json.loads(output.splitlines()[-1])


def test_two_releases_on_one_connect_server_are_isolated(service: Service, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(CHECKOUT / "gc_assets", other / "gc_assets", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "tests", other / "tests", ignore=shutil.ignore_patterns("__pycache__", "data"))
    package = other / "gc_assets" / "_version.py"
    package.write_text(package.read_text().replace(f'"{gc_assets.__version__}"', '"0.2.99"'))
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(service.python.parents[1], ".")
    processes = [
        start_process(service, "run-concurrently", str(tmp_path), "one"),
        start_process(service, "run-concurrently", str(tmp_path), "two", str(archive), checkout=other),
    ]
    one, two = map(read_result, processes)
    python = str(service.python)
    assert one == {"versions": [gc_assets.__version__], "pythons": [python], "views": ["of_one"], "both_present": True}
    assert two == {"versions": ["0.2.99"], "pythons": two["pythons"], "views": ["of_two"], "both_present": True}
    assert all(path.endswith("/environment/bin/python3") for path in two["pythons"])


@pytest.fixture(scope="module")
def results(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return read_result(start_process(service, "collect-results", str(tmp_path_factory.mktemp("collect-results"))))


def test_doctor_passes_on_connect_server(service: Service, results: dict[str, Any]) -> None:
    versions, found = results["doctor"]
    assert versions["found"] == f"this process has pyspark {pyspark.__version__} and Python {platform.python_version()}"
    assert (found["check"], found["verdict"]) == ("executors", "ok")
    server = service.remote.partition(";")[0]
    ours = f"Spark {pyspark.__version__}, Python {platform.python_version()} and this release of gc-assets"
    assert found["found"] == f"the executors of {server} run {ours}"


def test_two_platforms_in_one_process_share_connect_session(results: dict[str, Any]) -> None:
    """A server keeps a Python daemon for each session."""
    assert results["sessions"] == 1


@pytest.mark.parametrize(
    "fault, message",
    [
        ("no server", "no Spark Connect server answered at sc://localhost"),
        ("without TLS", "that both sides use TLS or neither does"),
        ("wrong token", "Check `spark.token`."),
        ("another Spark", f"but this process has pyspark {ANOTHER_SPARK}. The minor versions must be equal"),
        ("another release", f"import gc-assets {gc_assets.__version__} instead of the driver's release 9.9.9"),
        ("another Python", "run Python 3.11, but this process runs"),
    ],
)
def test_unusable_connect_server_is_refused(results: dict[str, Any], fault: str, message: str) -> None:
    assert message in results[fault]
    assert TOKEN not in results[fault]
    assert "hunter2" not in results[fault]


def run_concurrently(remote: str, folder: str, name: str, archive: str | None = None) -> dict[str, Any]:
    """Return the release, Python and views that a run has while another run is on the server."""
    sent = {"python": "environment/bin/python3", "conf": {"spark.archives": f"{archive}#environment"}} if archive is not None else {}
    spark = SparkRuntime.model_validate({"mode": "connect", "remote": remote, "token": TOKEN, **sent}).session()
    spark.range(1).createOrReplaceTempView(f"of_{name}")
    (Path(folder) / f"{name}.started").touch()
    deadline = time.monotonic() + 300
    while not (both_present := len(list(Path(folder).glob("*.started"))) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    versions = {row["version"] for row in collect(spark.range(0, 2, 1, 2).mapInArrow(describe_executor, EXECUTOR_DDL))}
    pythons = {row["python"] for row in collect(spark.range(1).mapInArrow(_report_python, "python string"))}
    views = [table.name for table in spark.catalog.listTables()]
    return {"versions": sorted(versions), "pythons": sorted(pythons), "views": views, "both_present": both_present}


def _report_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (pa.RecordBatch.from_pydict({"python": [sys.executable]}) for _ in batches)


def run_doctor(remote: str, folder: str) -> list[dict[str, str]]:
    """Return the findings of `gc-assets doctor` on Spark."""
    (Path(folder) / "lake").mkdir()
    location = f"file://{folder}/lake/"
    lakes = [{"name": "weather", "kind": "icechunk", "location": location}]
    spark = {"mode": "connect", "remote": remote, "token": "${GC_TOKEN}"}
    document = {"state": f"{folder}/state", "storages": [{"name": "warehouse", "location": location}], "lakes": lakes, "spark": spark}
    (Path(folder) / "lakes.yaml").write_text(yaml.safe_dump(document))
    command = ["doctor", "--config", f"{folder}/lakes.yaml", "--format", "json"]
    result = CliRunner().invoke(cli, command, env={"GC_TOKEN": TOKEN})
    return [finding for finding in json.loads(result.stdout) if finding["subject"] == "spark"]


def collect_results(remote: str, folder: str) -> dict[str, Any]:
    """Return the findings of doctor, and the errors for unusable servers."""
    results: dict[str, Any] = {"doctor": run_doctor(remote, folder)}
    connect.ANSWER_SECONDS = 2.0

    def check(fault: str, location: str, token: str = TOKEN) -> None:
        try:
            SparkRuntime(mode="connect", remote=location, token=token).session()
        except GcError as error:
            results[fault] = str(error)

    check("no server", f"sc://localhost:{free_port()}/;x-proxy-key=hunter2")
    sessions = [SparkRuntime(mode="connect", remote=remote, token=TOKEN).session() for _ in range(2)]
    results["sessions"] = len({spark._session_id for spark in sessions})  # type: ignore[attr-defined]
    for spark in sessions:
        spark.stop()
    check("without TLS", remote.partition(";")[0])
    check("wrong token", remote, "another token")
    ours, pyspark.__version__ = pyspark.__version__, ANOTHER_SPARK
    check("another Spark", remote)
    pyspark.__version__ = ours
    sent, gc_assets.__version__ = gc_assets.__version__, "9.9.9"
    check("another release", remote)
    gc_assets.__version__ = sent
    sys.version_info = (3, 9, 0)  # type: ignore[assignment,misc]
    check("another Python", remote)
    return results


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    sys.stdout.write(json.dumps({"run-concurrently": run_concurrently, "collect-results": collect_results}[verb](*arguments)) + "\n")
    sys.stdout.flush()
    os._exit(0)
