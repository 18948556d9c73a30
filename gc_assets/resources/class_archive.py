"""Make Spark start faster with class data sharing (JEP 310, JEP 350).

Spark's classes are parsed once and stored in an archive, which the JVM maps at later starts. `make
env` creates the archive with `python -m gc_assets.resources.class_archive`. It can never become
outdated, because the JVM ignores it unless the JVM's version, the class path, and the size and time
of each jar are the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

from gc_assets.core.errors import UsageError
from gc_assets.resources.java import ensure_java_home

COMMAND: Final = "python -m gc_assets.resources.class_archive"
_WARM_UP: Final = "gc_assets.resources.warm_up"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_TIMEOUT_SECONDS: Final = 300.0  # seconds
_MIN_BYTES: Final = 1 << 20  # smaller archives contain only a header


def archive_path(home: str) -> Path:
    """Return the path of the archive for the Java in `home`. The file may not exist."""
    environment_key = "\0".join((os.path.realpath(home), pyspark.__version__, str(Path(pyspark.__file__).resolve())))
    return Path(sys.prefix) / "share" / "gc-assets" / f"classes-{sha256(environment_key.encode()).hexdigest()[:16]}.jsa"


def jvm_options(home: str) -> str:
    """Return the options that make the JVM map the class archive, or "" if there is no archive."""
    path = archive_path(home)
    # A path with a space does not work, because Spark's launcher splits options at spaces.
    if not path.is_file() or " " in str(path):
        return ""
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def write_archive(home: str) -> Path:
    """Start Spark, run typical queries, and archive all classes that were loaded.

    This takes about a minute. An existing archive is replaced only when the new one is complete.

    Raises:
        UsageError: If Java did not write the archive. The message contains the end of its output.
    """
    path = archive_path(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".classes-") as directory:
        new_archive = Path(directory) / path.name
        environment = os.environ | {"JAVA_HOME": home}
        command = [sys.executable, "-m", _WARM_UP, str(new_archive)]
        try:
            done = subprocess.run(  # noqa: S603  (this Python and a module of ours, without a shell)
                command, env=environment, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"{COMMAND}: Java at {home} did not write a class archive within {_TIMEOUT_SECONDS:.0f} s. Runs start slower without it."
            ) from error
        if done.returncode or not new_archive.is_file() or new_archive.stat().st_size < _MIN_BYTES:
            raise UsageError(
                f"Java at {home} did not write a class archive. Runs start slower without it. Output: {(done.stdout + done.stderr)[-2000:]}"
            )
        new_archive.replace(path)
    return path


def main() -> None:
    """Write the archive, unless it already exists."""
    try:
        home = ensure_java_home()
        if not archive_path(home).is_file():
            sys.stdout.write("Writing an archive of Spark's classes to shorten later starts (about a minute) ...\n")
            sys.stdout.flush()
            write_archive(home)
    except UsageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
