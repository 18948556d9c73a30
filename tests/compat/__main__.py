"""Run the marked tests in environments at both ends of the ranges of pyproject.toml: `python -m tests.compat`.

Every run of this program builds the shared lakes, and plans them in the environment of the checkout first. Its tables and plan ids are the
reference of all cells. The result of each cell replaces its row of `docs/compatibility.md`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.compat.cells import CELLS, Cell, cell_of_commit, select_cells
from tests.compat.environments import BUILD, CHECKOUT, NoEnvironment, installed_versions, make_environment
from tests.compat.page import Result, render, update_page
from tests.compat.scene import build_scene
from tests.depth import CELL_TURN, TURNS, commit_count
from tests.interpreters import find_interpreter

CHECKS: Final = "tests/compat/cell_checks.py"
TIMEOUT_SECONDS: Final = 1800
# A quick cell runs one of these shares of the marked files.
QUICK_SHARES: Final = 3
STOPPED_WITHIN_SECONDS: Final = 60
_MARK: Final = re.compile(r"\bpytest\.mark\.compat\b")


def main(arguments: Sequence[str]) -> int:
    """Run the selected cells. Return 1 if one failed."""
    options = _parse(arguments)
    if options.by_commit:
        if commit_count() % TURNS != CELL_TURN:
            sys.stdout.write("make compat: runs at another number of commits, in turn with the slow tests\n")
            return 0
        found = cell_of_commit(commit_count() // TURNS, find_interpreter)
        if found is None:
            sys.stdout.write("make compat: no Python of the cells is installed; skipped\n")
            return 0
        cells = [found]
    else:
        cells = select_cells(options.python, options.spark, options.cell)
    results = _run_cells(cells, is_quick=options.by_commit)
    sys.stdout.write(render(results))
    if not options.by_commit:
        update_page(CHECKOUT / "docs" / "compatibility.md", results)
    return int(any(result.is_failure for result in results))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--python", default="", help="only cells of this Python, such as python3.13")
    parser.add_argument("--spark", default="", help="only cells of this Spark version, such as 4.0")
    parser.add_argument("--cell", default="", help="only cells with this text in their name, such as lowest")
    parser.add_argument(
        "--by-commit",
        action="store_true",
        help="only the cell of the number of commits with a third of the tests, without changing the page",
    )
    return parser.parse_args(arguments)


def _run_cells(cells: Sequence[Cell], *, is_quick: bool) -> list[Result]:
    """Run one cell after the other. The next environment is made during the tests of a cell.

    Unless `is_quick`, a cell runs all marked files instead of a third of them, and the cells of a Spark version also use servers of Spark
    Connect and clusters.
    """
    # The remainder of the number of turns selects the cell.
    share = commit_count() // TURNS // len(CELLS) % QUICK_SHARES
    files = marked_files()[share::QUICK_SHARES] if is_quick else marked_files()
    with (
        ThreadPoolExecutor(max_workers=1) as pool,
        tempfile.TemporaryDirectory(prefix="gc-assets-compat-") as folder,
        build_scene(Path(folder)) as scene,
    ):
        environments = [(cell, pool.submit(make_environment, cell)) for cell in cells]
        scene.write(Path(folder, "scene.json"))
        _show("reference", fault := _pytest(Path(sys.executable), Path(folder), [CHECKS], "reference"))
        if fault:
            pool.shutdown(cancel_futures=True)
            raise SystemExit(f"the checks fail in the environment of this checkout: see {BUILD / 'reference.log'}")
        depths = {cell: "all" if cell.spark and not is_quick else "" for cell in cells}
        return [_run_cell(cell, made, Path(folder), [CHECKS, *files], depths[cell]) for cell, made in environments]


def _run_cell(cell: Cell, made: Future[Path], folder: Path, files: Sequence[str], depth: str) -> Result:
    start = time.monotonic()
    try:
        python = made.result()
    except NoEnvironment as error:
        missing = find_interpreter(cell.python) is None
        fault, versions = f"{'not run' if missing else 'failed'}: {error}", {}
    else:
        fault, versions = _pytest(python, folder, files, cell.name, depth), installed_versions(cell)
    _show(cell.name, fault, time.monotonic() - start)
    return Result(cell, fault, versions)


def marked_files() -> list[str]:
    """Return the test files that contain marked tests."""
    files = sorted((CHECKOUT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(CHECKOUT)) for path in files if _MARK.search(path.read_text())]


def _pytest(python: Path, folder: Path, files: Sequence[str], name: str, depth: str = "") -> str:
    """Run the marked tests of these files. Return an empty string, or the first failure."""
    BUILD.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{name}.log"
    # Without bytecode files, each process of the tests would compile Dagster and Spark.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "GC_ASSETS_COMPAT": str(folder), "GC_ASSETS_TEST_NESSIE": "required", "GC_ASSETS_TEST_DEPTH": depth}
    command = [str(python), "-m", "pytest", "-m", "compat", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    with log.open("w") as output, subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output) as running:
        try:
            code = running.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            return f"failed: no result within {TIMEOUT_SECONDS} s"
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                running.wait(STOPPED_WITHIN_SECONDS)  # the whole group gets the signal, and pytest stops its servers
            running.kill()
            raise
    if code == 0:
        return ""
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return f"failed: {len(failures)} tests, first {failures[0]}" if failures else f"failed: pytest ended with {code}, see {log.name}"


def _show(name: str, fault: str, seconds: float | None = None) -> None:
    sys.stdout.write(f"{name}: {fault or 'passed'}{'' if seconds is None else f' ({seconds:.0f} s)'}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
