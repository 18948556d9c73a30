"""Select the tests of a usual run, of the full suite, or of a fifth of what only the full suite has.

Every change must pass a usual run. `make test DEPTH=all` runs the full suite: more examples, and slow tests such as runs on clusters and in
buckets, the page of Dagster in a browser, and the lakes of the benchmarks. `make test DEPTH=fifth` is a usual run in which a fifth of the
test files run in full. The number of commits selects the fifth.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest

C = TypeVar("C")

FOLDER: Final = Path(__file__).parent
SHARES: Final = 5
DEPTH: Final = os.environ.get("GC_ASSETS_TEST_DEPTH", "")
_ADDITIONAL: Final = re.compile(r"from tests\.depth import|\bspark_cluster: Cluster\b")
ONLY_IN_FULL: Final = "only in the full suite: make test DEPTH=all"

# Marks a test of the full suite only.
full_suite_only = pytest.mark.full_suite_only


def in_full(file: str | Path) -> bool:
    """Return True if this run includes the additional tests of a file."""
    if DEPTH != "fifth":
        return DEPTH == "all"
    name = Path(file).resolve().relative_to(FOLDER).as_posix()
    return name in files_of_share(commit_count() % SHARES)


@functools.cache
def commit_count() -> int:
    """Return the number of commits, or 0 outside of a git repository."""
    done = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


@functools.cache
def files_of_share(number: int) -> frozenset[str]:
    """Return the files of a share: every fifth file with additional tests, in order of name."""
    candidates = {path for path in FOLDER.rglob("*.py") if _ADDITIONAL.search(path.read_text())} - {Path(__file__), FOLDER / "conftest.py"}
    return frozenset(sorted(path.relative_to(FOLDER).as_posix() for path in candidates)[number::SHARES])


def example_count(usual: int, full: int) -> int:
    """Return the number of examples, histories or kills. If it is a step width, `full` is the smaller one."""
    return full if in_full(_calling_file()) else usual


def select_cases(usual: Sequence[C], additional: Sequence[C]) -> list[C]:
    """Return the `usual` cases of a test, and the `additional` ones in the full suite."""
    return [*usual, *(additional if in_full(_calling_file()) else ())]


def _calling_file() -> str:
    return sys._getframe(2).f_code.co_filename
