"""Prometheus' promtool, unpacked from Debian's package without an installation.

`python -m tests.promtool` downloads it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.browser import WANTED, WITHOUT
from tests.debian import Unavailable, run_command, run_fetch, skip_or_fail

CACHE = Path(__file__).parents[1] / "build" / "promtool"
_PROGRAM = CACHE / "usr" / "bin" / "promtool"


def run_promtool(*arguments: str) -> str:
    """Return the output of promtool. Skip or fail the test if it is missing. Fail it if promtool does."""
    try:
        program = fetch_promtool()
    except Unavailable as unavailable:
        skip_or_fail(str(unavailable), WANTED)
    result = subprocess.run([str(program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.returncode == 0, result.stdout
    return result.stdout


def fetch_promtool() -> Path:
    """Return the path of promtool. Download the package if it is neither installed nor in the cache.

    Raises:
        Unavailable: This machine cannot download the package.
    """
    if (found := shutil.which("promtool")) is not None:
        return Path(found)
    if not _PROGRAM.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unavailable(f"promtool is missing: install Prometheus, {WITHOUT}")
        CACHE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as name:
            _unpack(Path(name))
    return _PROGRAM


def _unpack(folder: Path) -> None:
    # apt-get downloads into the working directory only.
    download = ["sh", "-c", 'cd "$1" && apt-get -qq download prometheus', "sh", str(folder)]
    if run_command(download).returncode:
        run_command(["apt-get", "-qq", "update"])
        result = run_command(download)
        if result.returncode:
            raise Unavailable(f"apt-get download prometheus failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")
    (package,) = folder.glob("prometheus_*.deb")
    result = run_command(["dpkg-deb", "-x", str(package), str(folder / "unpacked")])
    if result.returncode:
        raise Unavailable(f"dpkg-deb failed: {result.stdout.strip()[-2000:]}; {WITHOUT}")
    if not CACHE.exists():
        (folder / "unpacked").replace(CACHE)


if __name__ == "__main__":
    run_fetch(fetch_promtool)
