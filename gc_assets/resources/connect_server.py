"""Use a separate local Spark Connect server for each environment and release.

pyspark itself keeps a single local server for each user, and only compares the version of Spark.
This is not enough, because a server's workers run the code of the environment that started it.

`python -m gc_assets.resources.connect_server --stop` stops the server of this environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import pyspark

import gc_assets
from gc_assets.core.errors import UsageError
from gc_assets.resources.spark_version import require_local_server

# pyspark stores the address of its local server in the file that this variable specifies.
DISCOVERY: Final = "SPARK_LOCAL_CONNECT_DISCOVERY"
_PREFIX: Final = "gc-assets-"
_FILE: Final = "connect-local.json"
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Usually, an idle server ends within a second. After this time, it is killed.
TERMINATION_SECONDS: Final = 7.0
_KILL_SECONDS: Final = 2.0


def identity() -> str:
    """Compute a digest that identifies the code run by workers of a local server.

    It depends on the environment and on the versions of Python, Spark and gc-assets. The name of
    the executable is not included, because `python` and `python3` of an environment are the same.
    """
    home = str(Path(gc_assets.__file__).resolve().parent)
    parts = [sys.prefix, sys.version, pyspark.__version__, pyspark.__file__, gc_assets.__version__, home]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def use_own_server(environment: MutableMapping[str, str]) -> Path:
    """Make pyspark use the local server of this Python environment and release.

    If the environment already specifies a discovery file, the server's directory is created next to
    it.

    Returns:
        The directory of the server.

    Raises:
        UsageError: If this pyspark cannot reuse a server, or if other users could read or replace
            the server's credentials.
    """
    require_local_server()
    directory, own = _server_directory(environment)
    for path in own:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(path)
    environment[DISCOVERY] = str(directory / _FILE)
    return directory


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A local server that is running.

    Attributes:
        directory: The directory of its address, logs and sessions.
        pid: Its process id.
    """

    directory: Path
    pid: int

    @classmethod
    def in_directory(cls, directory: Path) -> LocalServer | None:
        """Find the server that is recorded in a directory, or return None if its process has ended."""
        pid = _recorded_pid(directory)
        return cls(directory, pid) if pid is not None and _is_server(pid) else None

    def stop(self) -> bool:
        """Stop the server. If it does not end in time, it is killed.

        Returns:
            False if the process is still running.
        """
        for number, seconds in ((signal.SIGTERM, TERMINATION_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            deadline = monotonic() + seconds
            while monotonic() < deadline:
                if not _is_server(self.pid):
                    self._forget()
                    return True
                sleep(0.1)
        return False

    def _forget(self) -> None:
        """Remove the files of this server, unless another server has replaced them."""
        if _recorded_pid(self.directory) == self.pid:
            (self.directory / _FILE).unlink(missing_ok=True)
        for path in self.directory.glob("spark-*.pid"):
            if path.read_text().strip() == str(self.pid):
                path.unlink(missing_ok=True)


def _recorded_pid(directory: Path) -> int | None:
    try:
        return int(json.loads((directory / _FILE).read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe_server(environment: Mapping[str, str]) -> str:
    """Describe the local server that would be used, and count other servers, without starting any.

    Raises:
        UsageError: If this pyspark cannot reuse a server, or if other users could read or replace
            the server's credentials.
    """
    require_local_server()
    directory, own = _server_directory(environment)
    for path in own:
        if path.exists():
            _require_private(path)
    server = LocalServer.in_directory(directory)
    status = f"is running as process {server.pid}" if server is not None else "is started when it is needed"
    others = sum(other.directory != directory for other in _running_servers(directory.parent))
    exist = "1 other server exists" if others == 1 else f"{others:,} other servers exist"
    return f"the local server of this environment and release {status}; {exist}"


def _running_servers(parent: Path) -> Iterator[LocalServer]:
    for path in sorted(parent.glob(f"{_PREFIX}*/{_FILE}")):
        server = LocalServer.in_directory(path.parent)
        if server is not None:
            yield server


def _is_server(pid: int) -> bool:
    """Check whether a process is a Connect server, because another process may have got its id."""
    return _CLASS in _command_line(pid)


def _command_line(pid: int) -> str:
    """Return the command line of a process, or an empty string if it has ended."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            return ""
    return subprocess.run(["ps", "-ww", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607


def create_private(environment: Mapping[str, str]) -> Path:
    """Create a directory for files about servers, which only the current user can access.

    Raises:
        UsageError: If other users could read or replace files in it.
    """
    parent = _parent_directory(environment)
    if not environment.get(DISCOVERY):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(parent)
    return parent


def _parent_directory(environment: Mapping[str, str]) -> Path:
    named = environment.get(DISCOVERY)
    return Path(named).absolute().parent if named else Path(tempfile.gettempdir()) / f"{_PREFIX}connect-{os.getuid()}"


def _server_directory(environment: Mapping[str, str]) -> tuple[Path, tuple[Path, ...]]:
    """Return the directory of this environment's server, and which directories must be created."""
    parent = _parent_directory(environment)
    if parent.name == _PREFIX + identity():  # already set by this process or its parent
        return parent, ()
    directory = parent / (_PREFIX + identity())
    return directory, (directory,) if environment.get(DISCOVERY) else (parent, directory)


def _require_private(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"Cannot store credentials and sessions of Spark Connect servers in {path}: it is not a directory that only you can access. "
            f"Remove it, or set {DISCOVERY}."
        )


def main() -> None:
    """Stop local servers, as selected on the command line."""
    parser = argparse.ArgumentParser(prog="python -m gc_assets.resources.connect_server", description="Stop local Spark Connect servers.")
    parser.add_argument("--stop", action="store_true", required=True, help="Stop the server of this environment and release.")
    parser.add_argument("--all", action="store_true", help="Also stop your servers of other environments and releases.")
    options = parser.parse_args()
    try:
        require_local_server()
        directory, _ = _server_directory(os.environ)
    except UsageError as error:
        sys.exit(str(error))
    servers = list(_running_servers(directory.parent))
    chosen = [server for server in servers if options.all or server.directory == directory]
    for server in chosen:
        if not server.stop():
            sys.exit(f"The local Spark Connect server, process {server.pid}, still runs after SIGKILL.")
        print(f"Stopped the local Spark Connect server, process {server.pid}.")  # noqa: T201
    if not chosen:
        print(f"No local Spark Connect server of this environment and release runs (searched {directory}).")  # noqa: T201
    left = len(servers) - len(chosen)
    if left:
        found, them = ("1 server runs", "it") if left == 1 else (f"{left:,} servers run", "them")
        print(f"{found} for other environments or releases. To stop {them} too, add --all.")  # noqa: T201


if __name__ == "__main__":
    main()
