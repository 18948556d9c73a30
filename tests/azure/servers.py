"""Azurite, Microsoft's emulator of Azure Blob Storage, on loopback. It keeps blobs in memory.

`python -m tests.azure.servers` installs it with npm. With `GC_ASSETS_TEST_AZURE=required`, a missing
server fails the tests that need it. With `none`, they are skipped.

It has no versions, no soft delete and no hierarchical namespace.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient

from gc_assets.config.azure import AzureConfig
from gc_assets.demo.server import answers
from tests.azure.credentials import ACCOUNT, APPLY_KEY, APPLY_VARIABLE, KEY, READ_VARIABLE
from tests.debian import Unavailable, install, run_command, run_fetch
from tests.ports import free_port
from tests.s3.daemons import daemons

AZURITE = "azurite@3.37.0"
WITHOUT = "or run the suite without Azure: make test AZURE=none"


@dataclass(frozen=True)
class AzureServer:
    """A running server. It pickles, so that other processes can use it. `log` has its logs."""

    endpoint: str
    log: Path

    def client(self, **more: Any) -> BlobServiceClient:
        """Return a client of Microsoft's library."""
        return BlobServiceClient(self.endpoint, credential=AzureNamedKeyCredential(ACCOUNT, KEY), **more)

    def container(self) -> str:
        """Create a container and return its name."""
        name = f"c-{uuid.uuid4().hex[:16]}"
        self.client().create_container(name)
        return name

    @property
    def settings(self) -> AzureConfig:
        """Return the server as `azure:` in `lakes.yaml`, with an identity for each role."""
        return AzureConfig(endpoint=self.endpoint, secret_variable=READ_VARIABLE, apply_secret_variable=APPLY_VARIABLE)

    def behind(self, endpoint: str) -> AzureServer:
        """Return the same server behind a proxy."""
        return replace(self, endpoint=endpoint)


@contextmanager
def azurite(folder: Path) -> Iterator[AzureServer]:
    """Run Azurite.

    Raises:
        Unavailable: It is not installed.
    """
    node, program = shutil.which("node"), _program()
    if node is None or not program.is_file():
        raise Unavailable(f"there is no Azurite: python -m tests.azure.servers, {WITHOUT}")
    port, log = free_port(), folder / "log"
    server = AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}", log)
    options = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--disableProductStyleUrl")
    quiet = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--extentMemoryLimit", "2048")
    with daemons(log, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}:{APPLY_KEY}"}) as group:
        group.start(node, str(program), *options, *quiet)
        group.wait(lambda: answers(server.endpoint))
        yield server


_starting = threading.Lock()


def shared_server() -> AzureServer:
    """Return the server that the process shares. It stops at the end of the process.

    Skips the test if this machine cannot run it, or fails it if the server is required.
    """
    mode = os.environ.get("GC_ASSETS_TEST_AZURE")
    if mode == "none":
        pytest.skip("GC_ASSETS_TEST_AZURE=none: servers of Azure are disabled")
    try:
        with _starting:
            return _start_shared()
    except Unavailable as error:
        if mode == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))


@functools.cache
def _start_shared() -> AzureServer:
    with ExitStack() as starting:
        folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="gc-assets-azurite-", ignore_cleanup_errors=True)))
        server = starting.enter_context(azurite(folder))
        atexit.register(_stop, starting.pop_all(), os.getpid())
    return server


def _stop(running: ExitStack, process: int) -> None:
    """Stop a server in the process that started it, and not in a fork."""
    if os.getpid() == process:
        running.close()


def _folder() -> Path:
    """Return the program's folder in the cache of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / AZURITE.replace("@", "-")


def _program() -> Path:
    return _folder() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def fetch() -> None:
    """Install Azurite if it is missing.

    Raises:
        Unavailable: This user or machine cannot install it.
    """
    if _program().is_file() and shutil.which("node") is not None:
        return
    if shutil.which("npm") is None:
        install("Azurite", "nodejs npm", WITHOUT)
    _folder().mkdir(parents=True, exist_ok=True)
    result = run_command(["npm", "install", "--prefix", str(_folder()), "--no-fund", "--no-audit", "--omit=optional", AZURITE])
    if result.returncode or not _program().is_file():
        raise Unavailable(f"npm install {AZURITE} failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")


if __name__ == "__main__":
    run_fetch(fetch)
