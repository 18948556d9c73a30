"""Class data sharing: the classes that Spark's JVM loads, parsed once per environment and mapped at
every later start (JEP 310, JEP 350).

`make env` writes the archive by `python -m gc_assets.resources.class_archive`. A JVM that finds no
archive, or one of another Java or Spark, starts as it would without: it compares the class path and
every jar's size and time by itself.
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
_MIN_BYTES: Final = 1 << 20  # bytes; an archive of nothing but a header is none


def archive_path(home: str) -> Path:
    """Returns where the archive of this environment lies for the Java at `home`, if there is one."""
    told = "\0".join((os.path.realpath(home), pyspark.__version__, str(Path(pyspark.__file__).resolve())))
    return Path(sys.prefix) / "share" / "gc-assets" / f"classes-{sha256(told.encode()).hexdigest()[:16]}.jsa"


def jvm_options(home: str) -> str:
    """Returns what a JVM from `home` is started with to map the archive: nothing where there is
    none.
    """
    path = archive_path(home)
    # The options go through Spark's launcher, which splits them at spaces.
    if not path.is_file() or " " in str(path):
        return ""
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def write_archive(home: str) -> Path:
    """Starts Spark once, lets it do what a night does, and writes the archive of the classes that
    it loaded. Takes about a minute.

    Raises `UsageError` with the end of what Java said where no archive came of it. What was there
    before stays until the new one is whole.
    """
    path = archive_path(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".classes-") as place:
        made = Path(place) / path.name
        environment = os.environ | {"JAVA_HOME": home}
        command = [sys.executable, "-m", _WARM_UP, str(made)]
        try:
            done = subprocess.run(  # noqa: S603  (this Python and a module of ours, without a shell)
                command, env=environment, cwd=place, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"{COMMAND}: Java at {home} wrote no class archive in {_TIMEOUT_SECONDS:.0f} s; nights run without it"
            ) from error
        if done.returncode or not made.is_file() or made.stat().st_size < _MIN_BYTES:
            raise UsageError(
                f"Java at {home} wrote no class archive; nights run without it. It said: {(done.stdout + done.stderr)[-2000:]}"
            )
        made.replace(path)
    return path


def main() -> None:
    """Writes the archive where there is none."""
    try:
        home = ensure_java_home()
        if not archive_path(home).is_file():
            sys.stdout.write("Writing an archive of Spark's classes (a minute), which shortens every later start ...\n")
            sys.stdout.flush()
            write_archive(home)
    except UsageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
