"""Make the Python environment of icechunk 2.x, which needs Python 3.12 or newer.

`python -m tests.lakes.icechunk.v2.environment` makes it with `requirements.txt`. `ICECHUNK_PYTHON` is an interpreter to use instead. With
`GC_ASSETS_TEST_ICECHUNK=required`, a missing environment fails the tests that need it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.debian import Unavailable, run_command, run_fetch
from tests.interpreters import find_interpreter

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OLDEST_PYTHON = (3, 12)
VERSIONS = ("3.12", "3.13", "3.14")
WITHOUT = "or run the suite without it: make test ICECHUNK=none"


def find_python() -> str:
    """Return an interpreter that can make the environment. Raises `Unavailable` if no interpreter is found."""
    for found in map(find_interpreter, VERSIONS):
        if found is not None:
            return str(found)
    raise Unavailable(f"icechunk 2 needs Python 3.12 or newer with venv: install one, or set ICECHUNK_PYTHON; {WITHOUT}")


def running_library_is_new() -> bool:
    try:
        return sys.version_info >= OLDEST_PYTHON and int(version("icechunk").partition(".")[0]) >= 2 and bool(version("zarr"))
    except PackageNotFoundError:
        return False


def interpreter() -> str:
    """Return the interpreter of an environment with icechunk 2.x, and make the environment first if necessary.

    Raises:
        Unavailable: This machine cannot make it.
    """
    if configured := os.environ.get("ICECHUNK_PYTHON"):
        return configured
    if running_library_is_new():
        return sys.executable
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / "icechunk"
    made = cache / digest
    if not works(made):
        make(find_python(), made)
    return str(made / "bin" / "python")


def works(environment: Path) -> bool:
    """Return False if the environment is missing, or its interpreter was removed since."""
    python = environment / "bin" / "python"
    return python.exists() and run_command([str(python), "-c", "import icechunk, zarr"]).returncode == 0


def make(python: str, environment: Path) -> None:
    """Make the environment under another name first, because several processes may do so at the same time."""
    making = environment.with_name(f".making-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    install = [str(making / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
    for command in ([python, "-m", "venv", str(making)], [*install, "-r", str(REQUIREMENTS)]):
        result = run_command(command)
        if result.returncode:
            shutil.rmtree(making, ignore_errors=True)
            raise Unavailable(f"{' '.join(command)} failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")
    try:
        making.rename(environment)
    except OSError:  # exists
        if not works(environment):
            shutil.rmtree(environment)
            making.rename(environment)
        shutil.rmtree(making, ignore_errors=True)


if __name__ == "__main__":
    run_fetch(interpreter)
