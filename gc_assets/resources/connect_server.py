"""Select the local Spark Connect server of this environment and release.

pyspark keeps one local server per user and compares only the version of Spark. The workers of a
server run the code of its environment, so each environment and release needs its own server.
`python -m gc_assets.resources.connect_server --stop` stops the server of this environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import pyspark

import gc_assets
from gc_assets.core.errors import UsageError
from gc_assets.resources.spark_version import require_local_server

# Variables of pyspark: whether to keep a local server for later commands, and the file with its
# address.
REUSE: Final = "SPARK_LOCAL_CONNECT_REUSE"
DISCOVERY: Final = "SPARK_LOCAL_CONNECT_DISCOVERY"
_PREFIX: Final = "gc-assets-"
_FILE: Final = "connect-local.json"


def identity() -> str:
    """Return a digest of the code that the workers of a local server run: environment, Python,
    Spark, gc-assets.
    """
    home = str(Path(gc_assets.__file__).resolve().parent)
    parts = [sys.prefix, sys.executable, sys.version, pyspark.__version__, pyspark.__file__, gc_assets.__version__, home]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def use_own_server(environment: MutableMapping[str, str]) -> Path:
    """Make pyspark use only a server with this identity, and return its directory.

    If the environment names a discovery file, the directories are created next to it.

    Raises:
        UsageError: If pyspark has no such server, or if other users can read or replace its
            credentials.
    """
    require_local_server()
    directory, own = _server_directory(environment)
    for path in own:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(path)
    environment[DISCOVERY] = str(directory / _FILE)
    return directory


def describe_server(environment: Mapping[str, str]) -> str:
    """Describe the local server that would be used, and count the others. Creates nothing.

    Raises:
        UsageError: If pyspark has no such server, or if other users can read or replace its
            credentials.
    """
    require_local_server()
    directory, own = _server_directory(environment)
    for path in own:
        if path.exists():
            _require_private(path)
    status = "is running" if (directory / _FILE).exists() else "is started when it is needed"
    others = [path for path in directory.parent.glob(f"{_PREFIX}*/{_FILE}") if path.parent != directory]
    return f"the local server of this environment and release {status}; {len(others):,} other servers exist"


def _server_directory(environment: Mapping[str, str]) -> tuple[Path, tuple[Path, ...]]:
    """Return the directory of this identity, and the directories that must be created for it."""
    named = environment.get(DISCOVERY)
    parent = Path(named).absolute().parent if named else Path(tempfile.gettempdir()) / f"{_PREFIX}connect-{os.getuid()}"
    if parent.name == _PREFIX + identity():  # already set by this process or its parent
        return parent, ()
    directory = parent / (_PREFIX + identity())
    return directory, (directory,) if named else (parent, directory)


def _require_private(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(f"{path} must be a directory that only you can access, for Spark's local server. Remove it, or set {DISCOVERY}.")


def main() -> None:
    try:
        use_own_server(os.environ)
    except UsageError as error:
        sys.exit(str(error))
    from pyspark.sql.connect.local_server import main as manage

    manage()


if __name__ == "__main__":
    main()
