"""Make the environment of a cell with uv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gc_assets.resources.spark_version import NEWEST, OLDEST
from tests.compat.cells import Cell
from tests.interpreters import find_interpreter

CHECKOUT: Final = Path(__file__).parents[2]
BUILD: Final = CHECKOUT / "build" / "compat"
# Their ranges are proved. The packages of the tests are the newest that fit.
EXTRAS: Final = ("iceberg", "icechunk", "lakefs", "nessie", "azure", "gcs", "databricks", "java")
TOOLS: Final = (
    "pytest>=9.2,<10",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
    "hypothesis>=6.140",
    "fastavro[zstandard]>=1.12",
    "icechunk<2",
    "zarr>=3.1",
    "psutil>=7",
)
_RESOLUTIONS: Final = {"lowest": "lowest-direct", "newest": "highest"}
# Names of the packages whose versions the table shows.
REPORTED_PACKAGES: Final = ("pyspark", "pandas", "numpy", "pyarrow", "dagster", "pydantic", "click", "pyiceberg")


class NoEnvironment(Exception):
    """The environment of a cell cannot be made. The message gives the reason."""


def make_environment(cell: Cell) -> Path:
    """Resolve the cell, synchronize its environment in `build/compat`, and return its Python.

    Raises:
        NoEnvironment: If the machine lacks this Python, or the ranges have no solution.
    """
    interpreter = find_interpreter(cell.python)
    if interpreter is None:
        raise NoEnvironment(f"Python {cell.python} not found on PATH or in ~/.pyenv/versions")
    folder = BUILD / cell.name
    python, stamp = folder / "bin" / "python", folder / "resolved"
    if not stamp.exists() or stamp.read_text() != _inputs(cell):
        BUILD.mkdir(parents=True, exist_ok=True)
        _uv("venv", "-q", "--clear", "-p", str(interpreter), str(folder))
        _install(cell, python)
        stamp.write_text(_inputs(cell))
    return python


def _inputs(cell: Cell) -> str:
    """Return a digest of what a resolution depends on. The packages that PyPI offers are read once a day."""
    project = (CHECKOUT / "pyproject.toml").read_text()
    return hashlib.sha256(repr((cell, EXTRAS, TOOLS, project, datetime.now(UTC).date())).encode()).hexdigest()


def _install(cell: Cell, python: Path) -> None:
    product, tools, bounds, everything = (BUILD / f"{cell.name}.{part}" for part in ("product.txt", "tools.in", "bounds.txt", "txt"))
    tools.write_text("\n".join(TOOLS) + "\n")
    wheel = _spark_wheel(cell)
    bounds.write_text(f"pyspark=={wheel.name.split('-')[1]}\n")
    options = ["-p", str(python), "--only-binary", ":all:", "--find-links", str(wheel.parent)]
    compile_command = ["pip", "compile", "-q", "--no-annotate", "--no-header", *options]
    extras = [option for extra in EXTRAS for option in ("--extra", extra)]
    resolution = ["--resolution", _RESOLUTIONS[cell.resolution]]
    _uv(*compile_command, *resolution, *extras, "-c", str(bounds), "pyproject.toml", "-o", str(product), "--upgrade")
    _uv(*compile_command, str(product), str(tools), "-o", str(everything), "--upgrade")
    _uv("pip", "sync", "-q", *options, str(everything))
    _uv("pip", "install", "-q", "-p", str(python), "--no-deps", "-e", ".")


def installed_versions(cell: Cell) -> dict[str, str]:
    """Return the versions of the packages in `REPORTED_PACKAGES`."""
    lines = (BUILD / f"{cell.name}.txt").read_text().splitlines()
    pins = dict(line.partition(" ")[0].split("==") for line in lines if "==" in line)
    return {name: pins.get(name, "-") for name in REPORTED_PACKAGES}


def _spark_wheel(cell: Cell) -> Path:
    """Build a wheel of the cell's pyspark, which PyPI has as a source only.

    uv would download and unpack the source (1.2 GB) again for each of its commands, and keep all copies.
    """
    lowest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    wanted = f"{cell.spark}.*" if cell.spark else lowest if cell.resolution == "lowest" else f"{newest}.*"
    folder = BUILD / "wheels" / wanted.removesuffix(".*")
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--use-pep517", "--no-deps", "-w", str(folder), f"pyspark=={wanted}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _uv(*arguments: str) -> None:
    program = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise NoEnvironment("uv is missing: run make env")
    _run(program, *arguments)


def _run(*command: str) -> None:
    # Output of the environment of the tool would change that of the cell.
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEnvironment(f"{' '.join(command[:4])}: {done.stderr.strip()[-2000:]}")
