"""Which local Spark Connect server is ours: one of this environment and of this version.

pyspark keeps one such server per user, whoever asks, and compares the version of Spark only. A
server runs its own environment's code in its workers, so each environment and version has its own.
`python -m gc_assets.resources.connect_server --stop` ends that of this environment.
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

# pyspark's own: whether a local server is kept for later commands, and the file that says where it
# listens.
REUSE: Final = "SPARK_LOCAL_CONNECT_REUSE"
DISCOVERY: Final = "SPARK_LOCAL_CONNECT_DISCOVERY"
_PREFIX: Final = "gc-assets-"
_FILE: Final = "connect-local.json"


def identity() -> str:
    """Returns a digest of whose code the workers of a server started here run: the environment, the
    versions of Python and Spark, and which gc-assets.
    """
    home = str(Path(gc_assets.__file__).resolve().parent)
    told = [sys.prefix, sys.executable, sys.version, pyspark.__version__, pyspark.__file__, gc_assets.__version__, home]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def use_own_server(environment: MutableMapping[str, str]) -> Path:
    """Makes pyspark look for a server of this identity only, and returns its directory. A directory
    that the environment names is the one in which they lie.

    Raises `UsageError` where somebody else could read or replace what says how to log in.
    """
    directory, own = _server_directory(environment)
    for path in own:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(path)
    environment[DISCOVERY] = str(directory / _FILE)
    return directory


def describe_server(environment: Mapping[str, str]) -> str:
    """Says in words which local server would be used, and how many of others are there. Makes
    nothing. Raises `UsageError` as `keep_apart` does.
    """
    directory, own = _server_directory(environment)
    for path in own:
        if path.exists():
            _require_private(path)
    is_there = "runs" if (directory / _FILE).exists() else "is started when it is needed"
    others = [path for path in directory.parent.glob(f"{_PREFIX}*/{_FILE}") if path.parent != directory]
    return f"the local server of this environment and version {is_there}; {len(others):,} of others are left alone"


def _server_directory(environment: Mapping[str, str]) -> tuple[Path, tuple[Path, ...]]:
    """Returns the directory of this identity, and which of those on its way are ours to make."""
    named = environment.get(DISCOVERY)
    parent = Path(named).absolute().parent if named else Path(tempfile.gettempdir()) / f"{_PREFIX}connect-{os.getuid()}"
    if parent.name == _PREFIX + identity():  # kept apart before, by this process or the one that started it
        return parent, ()
    directory = parent / (_PREFIX + identity())
    return directory, (directory,) if named else (parent, directory)


def _require_private(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(f"{path} must be a directory that only you may enter, for Spark's local server; remove it, or set {DISCOVERY}")


def main() -> None:
    from pyspark.sql.connect.local_server import main as manage

    use_own_server(os.environ)
    manage()


if __name__ == "__main__":
    main()
