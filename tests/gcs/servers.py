"""Servers of Google Cloud Storage on loopback: our own one, and `fake-gcs-server`, which lies.

`python -m tests.gcs.servers` installs `fake-gcs-server`. With `GC_ASSETS_TEST_GCS=required`, a
missing server fails the tests that need it. With `none`, they are skipped. Our own one is always
there, in the process of the tests.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud.storage import Client

from gc_assets.config.gcs import GcsConfig
from gc_assets.demo.server import answers
from tests.debian import Unavailable, run_command, run_fetch
from tests.gcs import server as honest
from tests.ports import free_port
from tests.s3.daemons import daemons

FAKE = "github.com/fsouza/fake-gcs-server@v1.56.1"
CHECKOUT = Path(__file__).parents[2]
WITHOUT = "or run the suite without it: GC_ASSETS_TEST_GCS=none"
# The credentials file of the tests is that of this account.
ACCOUNT = "collector@project.iam.gserviceaccount.com"


@dataclass(frozen=True)
class GcsServer:
    """A running server. It pickles, so that other processes can use it."""

    kind: str
    endpoint: str

    @property
    def settings(self) -> GcsConfig:
        """Return the server as `gcs:` in `lakes.yaml`."""
        return GcsConfig(endpoint=self.endpoint)

    def client(self) -> Client:
        """Return a client of the library without code of this project."""
        return Client(project="project", client_options={"api_endpoint": self.endpoint})

    def bucket(self, **settings: Any) -> str:
        """Create a bucket and return its name. `settings` are fields of the Buckets resource."""
        name = f"b-{uuid.uuid4().hex[:16]}"
        body = json.dumps({"name": name, **settings}).encode()
        request = urllib.request.Request(  # noqa: S310  (loopback)
            f"{self.endpoint}/storage/v1/b?project=project", body, {"Content-Type": "application/json"}
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
        return name

    def set_updated(self, bucket: str, name: str, at: float) -> None:
        """Set the time of an object of our own server."""
        url = f"{self.endpoint}/of-tests/{bucket}/{quote(name, safe='')}/updated/{at}"
        request = urllib.request.Request(url, b"", method="POST")  # noqa: S310  (loopback)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which a process finds a service account of these servers.

    Our own server writes the file when it starts.
    """
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / "service-account.json"), "NO_GCE_CHECK": "true"}


def _write_credentials(endpoint: str) -> None:
    """Write the key file of a service account.

    Its tokens come from our own server, so that google-auth signs and renews as for Google.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    account = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "key",
        "private_key": pem,
        "client_email": ACCOUNT,
        "client_id": "1",
        "token_uri": f"{endpoint}/token",
    }
    Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).write_text(json.dumps(account))


@functools.cache
def _start_own(process: int) -> tuple[GcsServer, honest.Cloud, type[honest.Handler]]:
    del process
    cloud = honest.Cloud()
    running, handler = honest.start(cloud)
    endpoint = f"http://127.0.0.1:{running.server_address[1]}"
    _write_credentials(endpoint)
    return GcsServer("own", endpoint), cloud, handler


_starting = threading.Lock()


def own_server() -> GcsServer:
    """Return our own server. It runs in threads of this process."""
    with _starting:
        return _start_own(os.getpid())[0]


def own_cloud() -> honest.Cloud:
    """Return the buckets of our own server."""
    own_server()
    return _start_own(os.getpid())[1]


def own_handler() -> type[honest.Handler]:
    """Return the handler of our own server, with its hooks `before` and `after`."""
    own_server()
    return _start_own(os.getpid())[2]


@contextmanager
def own_process(folder: Path) -> Iterator[GcsServer]:
    """Run our own server in a process of its own."""
    own_server()  # it answers requests for tokens
    port = free_port()
    running = GcsServer("own", f"http://127.0.0.1:{port}")
    with daemons(folder / "log", {"PYTHONPATH": str(CHECKOUT)}) as group:
        group.start(sys.executable, "-m", "tests.gcs.server", str(port))
        group.wait(lambda: answers(f"{running.endpoint}/_internal/healthcheck"))
        yield running


@contextmanager
def fake_gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Run `fake-gcs-server`, which deletes an object although its generation is another.

    Raises:
        Unavailable: The program is not installed.
    """
    program = fake_program()
    if program is None:
        raise Unavailable(f"there is no fake-gcs-server: GOBIN={_bin()} go install {FAKE}, {WITHOUT}")
    port = free_port()
    running = GcsServer("fake", f"http://127.0.0.1:{port}")
    with daemons(folder / "log", {}) as group:
        group.start(
            program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory", "-external-url", running.endpoint
        )
        group.wait(lambda: answers(f"{running.endpoint}/_internal/healthcheck"))
        yield running


def fake_server() -> GcsServer:
    """Return the `fake-gcs-server` that the process shares. It stops at the end of the process."""
    mode = os.environ.get("GC_ASSETS_TEST_GCS")
    if mode == "none":
        pytest.skip("GC_ASSETS_TEST_GCS=none: fake-gcs-server is disabled")
    own_server()  # it answers requests for tokens
    try:
        with _starting:
            return _start_fake(os.getpid())
    except Unavailable as error:
        if mode == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))


@functools.cache
def _start_fake(process: int) -> GcsServer:
    with ExitStack() as starting:
        folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="gc-assets-gcs-", ignore_cleanup_errors=True)))
        running = starting.enter_context(fake_gcs_server(folder))
        atexit.register(_stop, starting.pop_all(), process)
    return running


def _stop(running: ExitStack, process: int) -> None:
    """Stop a server in the process that started it, and not in a fork."""
    if os.getpid() == process:
        running.close()


def _bin() -> Path:
    return Path(sys.executable).parent


def fake_program() -> str | None:
    """Return the path of fake-gcs-server, next to this Python or on the PATH."""
    local = _bin() / "fake-gcs-server"
    return str(local) if local.is_file() else shutil.which("fake-gcs-server")


def fetch() -> None:
    """Install `fake-gcs-server` if it is missing.

    Raises:
        Unavailable: This user or machine cannot install it.
    """
    if fake_program() is not None:
        return
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"fake-gcs-server is missing, and there is no go to install it; {WITHOUT}")
    result = run_command([go, "install", FAKE], GOBIN=str(_bin()))
    if result.returncode:
        raise Unavailable(f"go install {FAKE} failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")


if __name__ == "__main__":
    run_fetch(fetch)
