"""Local Spark Connect servers of other environments and releases are not used, and the own one stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gc_assets
from gc_assets.core.errors import UsageError
from gc_assets.resources import connect_server
from gc_assets.resources.connect_server import DISCOVERY, LocalServer, describe_server, identity, use_own_server
from tests.process_kills import CHECKOUT

pytest.importorskip("pyspark.sql.connect.local_server", reason="pyspark 4.3 has the first reusable local server")

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SLEEP = "import signal, sys, time; signal.signal(signal.SIGTERM, getattr(signal, sys.argv[1])); print(flush=True); time.sleep(60)"


@contextmanager
def recorded_process(directory: Path, at_sigterm: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run a process with these arguments that is recorded as the server of a directory."""
    directory.mkdir(mode=0o700, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", SLEEP, at_sigterm, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (directory / "connect-local.json").write_text(json.dumps({"pid": process.pid}))
        (directory / "spark-local-connect-1.pid").write_text(f"{process.pid}\n")
        try:
            yield process
        finally:
            process.kill()


def own_directory(root: Path) -> Path:
    return root / f"gc-assets-{identity()}"


def stop_servers(root: Path, *options: str, program: str = sys.executable) -> str:
    done = subprocess.run(
        [program, "-m", "gc_assets.resources.connect_server", "--stop", *options],
        cwd=CHECKOUT,
        env={**os.environ, DISCOVERY: str(root / "connect-local.json")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def discovery(root: Path) -> str:
    environment = {DISCOVERY: str(root / "connect-local.json")}
    use_own_server(environment)
    return environment[DISCOVERY]


def test_each_environment_and_release_uses_a_separate_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = discovery(tmp_path)
    assert discovery(tmp_path) == ours
    seen = {ours}
    for place, name, value in (
        (gc_assets, "__version__", "0.0.1"),
        (gc_assets, "__file__", "/elsewhere/gc_assets/__init__.py"),
        (sys, "prefix", "/another/environment"),
        (sys, "version", "3.99"),
    ):
        with monkeypatch.context() as other:
            other.setattr(place, name, value)
            seen.add(discovery(tmp_path))
    assert len(seen) == 5


def test_server_of_another_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded server is alive and has the same Spark version. pyspark compares only that."""
    monkeypatch.setenv(DISCOVERY, str(tmp_path / "connect-local.json"))
    from pyspark.sql.connect.local_server import Discovery, LocalConnectServer

    with Discovery() as theirs:
        theirs.save({"host": "localhost", "port": 1, "token": "t", "pid": os.getpid(), "spark_version": "4"})
        assert LocalConnectServer(theirs).pid == os.getpid()
    use_own_server(os.environ)
    with Discovery() as ours:
        assert LocalConnectServer(ours).pid is None


def test_child_process_uses_the_server_directory_of_the_parent(tmp_path: Path) -> None:
    environment = {DISCOVERY: str(tmp_path / "connect-local.json")}
    first = use_own_server(environment)
    assert use_own_server(environment) == first
    assert first.name.endswith(identity())
    assert first.stat().st_mode & 0o777 == 0o700


def test_directory_with_open_permissions_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"gc-assets-{identity()}").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="is not a directory that only you can access"):
        discovery(tmp_path)


def test_python_started_under_another_name_uses_the_same_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = identity()
    monkeypatch.setattr(sys, "executable", str(Path(sys.executable).with_name("python-of-another-name")))
    assert identity() == ours


def test_stop_ends_server_started_by_python_under_another_name(tmp_path: Path) -> None:
    other = next(path for path in Path(sys.executable).parent.glob("python3*") if path.name != Path(sys.executable).name)
    directory = own_directory(tmp_path)
    with recorded_process(directory, "SIG_DFL", CLASS) as process:
        assert stop_servers(tmp_path, program=str(other)) == f"Stopped the local Spark Connect server, process {process.pid}.\n"
        assert process.wait(60) != 0
    assert list(directory.iterdir()) == []
    assert stop_servers(tmp_path) == f"No local Spark Connect server of this environment and release runs (searched {directory}).\n"


def test_server_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect_server.TERMINATION_SECONDS <= 7
    monkeypatch.setattr(connect_server, "TERMINATION_SECONDS", 0.2)
    with recorded_process(tmp_path, "SIG_IGN", CLASS) as process:
        server = LocalServer.in_directory(tmp_path)
        assert server is not None
        assert server.stop()
        assert process.wait(60) == -9


def test_recorded_process_of_another_program_is_not_stopped(tmp_path: Path) -> None:
    with recorded_process(own_directory(tmp_path), "SIG_DFL") as process:
        assert "No local Spark Connect server" in stop_servers(tmp_path, "--all")
        assert process.poll() is None


def test_servers_of_other_environments_stop_only_on_request(tmp_path: Path) -> None:
    with recorded_process(tmp_path / "gc-assets-other", "SIG_DFL", CLASS) as process:
        assert stop_servers(tmp_path).endswith("1 server runs for other environments or releases. To stop it too, add --all.\n")
        assert describe_server({DISCOVERY: str(tmp_path / "connect-local.json")}).endswith("; 1 other server exists")
        assert process.poll() is None
        assert stop_servers(tmp_path, "--all") == f"Stopped the local Spark Connect server, process {process.pid}.\n"


def test_stop_does_not_delete_the_record_of_a_newer_server(tmp_path: Path) -> None:
    with recorded_process(tmp_path, "SIG_DFL", CLASS):
        server = LocalServer.in_directory(tmp_path)
        assert server is not None
        (tmp_path / "connect-local.json").write_text(json.dumps({"pid": 1}))
        assert server.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["connect-local.json"]
