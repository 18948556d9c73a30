"""The Azure server of the demo. This is Azurite, Microsoft's emulator."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.demo.server import DemoServer, ensure_started, load_server

ACCOUNT: Final = "gcassetsdemo"
_PROGRAM: Final = "azurite-blob"


def ensure_running(folder: Path) -> DemoServer:
    """Return the server of `folder`, and start it if it is not running.

    Raises:
        UsageError: If Azurite is not installed.
        GcError: If the server does not start.
    """
    program = _find_program()
    server = load_server(folder, ACCOUNT)
    address = ("--blobHost", "127.0.0.1", "--blobPort", str(server.port), "--location", str(folder / "data"))
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--disableProductStyleUrl")
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{server.secret_key}"}
    ensure_started("Azure", folder, server.endpoint, lambda: [program, *address, *options], accounts)
    return server


def connection_string(server: DemoServer) -> str:
    account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={server.secret_key}"
    return f"{account};BlobEndpoint={endpoint_of(server)};"


def endpoint_of(server: DemoServer) -> str:
    return f"{server.endpoint}/{ACCOUNT}"


def _find_program() -> str:
    """Return the program on PATH, or the one installed by the test suite of a checkout."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets"
    installed = sorted(str(path) for path in cache.glob(f"azurite-*/node_modules/.bin/{_PROGRAM}"))
    found = shutil.which(_PROGRAM) or (installed[-1] if installed and shutil.which("node") is not None else None)
    if found is None:
        raise UsageError(
            f"the demo needs Azurite, Microsoft's emulator of Azure Blob Storage, but {_PROGRAM} is not installed. "
            "Install Node.js, run npm install --global azurite, then this command again."
        )
    return found
