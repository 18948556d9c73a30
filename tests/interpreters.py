"""Find the Python interpreters of this machine: on PATH, of pyenv and of uv."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def find_interpreter(version: str) -> Path | None:
    """Return an interpreter of a minor version, such as `3.13`, that can make environments."""
    return next((path for path in _candidates(version) if _probe(path) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    yield Path("/usr/bin", name)
    if (found := shutil.which(name)) is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/{name}"), reverse=True)
    yield from sorted((Path.home() / ".local" / "share" / "uv" / "python").glob(f"cpython-{version}*/bin/{name}"), reverse=True)


def _probe(path: Path) -> str | None:
    """Return the minor version. None if it does not start, as the shims of pyenv for a version that is not selected."""
    try:
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
