"""Start servers for the demo on the loopback interface. They store their objects in a directory.

A server keeps running after the command that started it has ended, for use by later commands.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gc_assets.core.errors import GcError

_STARTED_WITHIN_SECONDS: Final = 20
PID: Final = "pid"


@dataclass(frozen=True, slots=True)
class DemoServer:
    """The port of a server and the keys of its only user. They stay the same after a restart."""

    port: int
    access_key: str
    secret_key: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def load_server(folder: Path, user: str) -> DemoServer:
    """Load the settings of a folder's server. If they do not exist, create them with new keys."""
    settings = folder / "server.json"
    if not settings.exists():
        (folder / "data").mkdir(parents=True, exist_ok=True)
        new_server = DemoServer(_free_port(), user, secrets.token_hex(16))  # also valid as base64, as required for keys of Azure
        with os.fdopen(os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(new_server), file)
    return DemoServer(**json.loads(settings.read_text()))


def ensure_started(title: str, folder: Path, endpoint: str, command: Callable[[], Sequence[str]], variables: Mapping[str, str]) -> None:
    """Start a server, unless it already responds.

    Raises:
        GcError: If the server does not start.
    """
    if answers(endpoint):
        return
    log = folder / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: S603 - a program found on this machine, with fixed arguments
            command(),
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    (folder / PID).write_text(f"{process.pid}\n")
    deadline = time.monotonic() + _STARTED_WITHIN_SECONDS
    while not answers(endpoint):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise GcError(f"the {title} server of the demo did not start at {endpoint}. End of {log}: {log.read_text()[-500:].strip()}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(endpoint: str) -> bool:
    """Return True if a server responds, whatever the status."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
