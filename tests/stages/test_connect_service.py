"""Runs on a Spark Connect server that others keep: with a token, behind TLS, and with no gc-assets of its own."""

from __future__ import annotations

import json
import os
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
from tests.connect_service import TOKEN, Service, run_service
from tests.depth import full_suite_only
from tests.ports import free_port
from tests.process_kills import CHECKOUT

pytest.importorskip("grpc", reason="Spark Connect needs grpcio (pip install 'pyspark[connect]')")
pytestmark = full_suite_only


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with run_service(tmp_path_factory.mktemp("service")) as started:
        yield started


def begun(service: Service, verb: str, *arguments: str, checkout: Path = CHECKOUT) -> subprocess.Popen[str]:
    """A process that has no classic session, with the gc-assets of a checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stages.test_connect_service", verb, service.remote, *arguments],
        cwd=checkout,
        env={**clean, **service.environment, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-4000:]
    return json.loads(output.splitlines()[-1])


def test_two_releases_at_once_on_one_server_each_run_their_own_code_and_see_nothing_of_each_other(service: Service, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(CHECKOUT / "gc_assets", other / "gc_assets", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "tests", other / "tests", ignore=shutil.ignore_patterns("__pycache__", "data"))
    package = other / "gc_assets" / "_version.py"
    package.write_text(package.read_text().replace(f'"{gc_assets.__version__}"', '"0.2.99"'))
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(service.python.parents[1], ".")
    both = [begun(service, "beside", str(tmp_path), "one"), begun(service, "beside", str(tmp_path), "two", str(archive), checkout=other)]
    one, two = map(ended, both)
    python = str(service.python)
    assert one == {"versions": [gc_assets.__version__], "pythons": [python], "views": ["of_one"], "met": True}
    assert two == {"versions": ["0.2.99"], "pythons": two["pythons"], "views": ["of_two"], "met": True}
    assert all(path.endswith("/environment/bin/python3") for path in two["pythons"])


@pytest.fixture(scope="module")
def alone(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ended(begun(service, "alone", str(tmp_path_factory.mktemp("alone"))))


def test_doctor_says_that_the_server_is_fit(service: Service, alone: dict[str, Any]) -> None:
    (found,) = alone["doctor"]
    assert (found["check"], found["verdict"]) == ("executors", "ok")
    assert found["found"] == f"those of {service.remote.partition(';')[0]} run Spark {pyspark.__version__} and this release of gc-assets"


def test_each_of_two_platforms_in_one_process_has_a_session_of_its_own(alone: dict[str, Any]) -> None:
    """Else the second would work on the first one's server, by its token."""
    assert alone["sessions"] == 2


@pytest.mark.parametrize(
    "fault, words",
    [
        ("nobody there", "no Spark Connect server answered at sc://localhost"),
        ("without TLS", "that both sides use TLS or neither does"),
        ("wrong token", "Check `spark.token`."),
        ("another Spark", "but this process has pyspark 4.2.1. The minor versions must be equal"),
        ("another release", f"import gc-assets {gc_assets.__version__} instead of the sent release 9.9.9"),
        ("another Python", "run Python 3.11, but this process runs"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_with_a_sentence(alone: dict[str, Any], fault: str, words: str) -> None:
    assert words in alone[fault]
    assert TOKEN not in alone[fault]
    assert "hunter2" not in alone[fault]


def beside(remote: str, folder: str, name: str, archive: str | None = None) -> dict[str, Any]:
    """What a run sees while another one is on the server: of tasks and views."""
    sent = {"python": "environment/bin/python3", "conf": {"spark.archives": f"{archive}#environment"}} if archive is not None else {}
    spark = SparkRuntime.model_validate({"mode": "connect", "remote": remote, "token": TOKEN, **sent}).session()
    spark.range(1).createOrReplaceTempView(f"of_{name}")
    (Path(folder) / f"{name}.here").touch()
    deadline = time.monotonic() + 300
    while not (met := len(list(Path(folder).glob("*.here"))) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    versions = {row["version"] for row in collect(spark.range(0, 2, 1, 2).mapInArrow(describe_executor, EXECUTOR_DDL))}
    pythons = {row["python"] for row in collect(spark.range(1).mapInArrow(_its_python, "python string"))}
    views = [table.name for table in spark.catalog.listTables()]
    return {"versions": sorted(versions), "pythons": sorted(pythons), "views": views, "met": met}


def _its_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (pa.RecordBatch.from_pydict({"python": [sys.executable]}) for _ in batches)


def looked_at(remote: str, folder: str) -> list[dict[str, str]]:
    """What `gc-assets doctor` finds of Spark."""
    (Path(folder) / "lake").mkdir()
    place = f"file://{folder}/lake/"
    lakes = [{"name": "weather", "kind": "icechunk", "location": place}]
    spark = {"mode": "connect", "remote": remote, "token": "${GC_TOKEN}"}
    document = {"state": f"{folder}/state", "storages": [{"name": "warehouse", "location": place}], "lakes": lakes, "spark": spark}
    (Path(folder) / "lakes.yaml").write_text(yaml.safe_dump(document))
    command = ["doctor", "--config", f"{folder}/lakes.yaml", "--format", "json"]
    told = CliRunner().invoke(cli, command, env={"GC_TOKEN": TOKEN})
    return [finding for finding in json.loads(told.stdout) if finding["subject"] == "spark"]


def alone_there(remote: str, folder: str) -> dict[str, Any]:
    """What doctor says of the server, and what is said of servers that cannot be used."""
    told: dict[str, Any] = {"doctor": looked_at(remote, folder)}
    connect.ANSWER_SECONDS = 2.0

    def ask(fault: str, place: str, token: str = TOKEN) -> None:
        try:
            SparkRuntime(mode="connect", remote=place, token=token).session()
        except GcError as error:
            told[fault] = str(error)

    ask("nobody there", f"sc://localhost:{free_port()}/;x-proxy-key=hunter2")
    both = [SparkRuntime(mode="connect", remote=remote, token=TOKEN).session() for _ in range(2)]
    told["sessions"] = len({spark._session_id for spark in both})  # type: ignore[attr-defined]
    for spark in both:
        spark.stop()
    ask("without TLS", remote.partition(";")[0])
    ask("wrong token", remote, "another token")
    ours, pyspark.__version__ = pyspark.__version__, "4.2.1"
    ask("another Spark", remote)
    pyspark.__version__ = ours
    sent, gc_assets.__version__ = gc_assets.__version__, "9.9.9"
    ask("another release", remote)
    gc_assets.__version__ = sent
    sys.version_info = (3, 9, 0)  # type: ignore[assignment,misc]
    ask("another Python", remote)
    return told


if __name__ == "__main__":
    asked, *given = sys.argv[1:]
    sys.stdout.write(json.dumps({"beside": beside, "alone": alone_there}[asked](*given)) + "\n")
    sys.stdout.flush()
    os._exit(0)
