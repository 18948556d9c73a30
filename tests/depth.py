"""Select the tests of a usual run, of the full suite, or of a share of what costs most.

Every change must pass a usual run (`make test DEPTH=usual`). `make test` leaves out most of the files whose tests are marked `in_turn`:
whole protocols, kills and other slow tests of rules that quick tests check, too. Their turns and one for a cell of `make compat` alternate.
`make test DEPTH=all` runs the full suite: more examples, and slower tests, such as runs on clusters and in buckets, and the page of Dagster
in a browser. `make test DEPTH=fifth` is a usual run in which a fifth of the files run in full. The number of commits selects the shares.
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
TURNS: Final = 13
# The turn of a cell of `make compat`, which takes as long as the slow tests of another turn.
CELL_TURN: Final = TURNS - 1
DEPTH: Final = os.environ.get("GC_ASSETS_TEST_DEPTH", "")
# Whether this run includes tests of the full suite.
INCLUDES_FULL: Final = DEPTH in {"fifth", "all"}
_ADDITIONAL: Final = re.compile(r"from tests\.depth import|\bspark_cluster: Cluster\b")
_IN_TURN: Final = re.compile(r"\bin_turn\b")
ONLY_IN_FULL: Final = "only in the full suite: make test DEPTH=all"
NOT_ITS_TURN: Final = "runs at another number of commits: make test DEPTH=usual"

# Marks a test of the full suite only.
full_suite_only = pytest.mark.full_suite_only
# Marks a slow test that `make test` runs at one of thirteen numbers of commits.
in_turn = pytest.mark.in_turn


def in_full(file: str | Path) -> bool:
    """Return True if this run includes the additional tests of a file."""
    if DEPTH != "fifth":
        return DEPTH == "all"
    return _name(file) in files_of_share(commit_count() % SHARES)


def has_turn(file: str | Path) -> bool:
    """Return True if this run includes the tests of a file that are marked `in_turn`."""
    return DEPTH != "turns" or _name(file) in files_of_turn(commit_count() % TURNS)


def _name(file: str | Path) -> str:
    return Path(file).resolve().relative_to(FOLDER).as_posix()


@functools.cache
def commit_count() -> int:
    """Return the number of commits, or 0 outside of a git repository."""
    done = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


@functools.cache
def files_of_share(number: int) -> frozenset[str]:
    """Return the files of a share: every fifth file with additional tests, in order of name."""
    return frozenset(_files_with(_ADDITIONAL)[number::SHARES])


@functools.cache
def files_of_turn(number: int) -> frozenset[str]:
    """Return the files of a turn: a twelfth of those with tests that are marked `in_turn`.

    They are dealt out by size, back and forth, so that all turns take about as long.
    """
    by_size = sorted(_files_with(_IN_TURN), key=lambda name: (-(FOLDER / name).stat().st_size, name))
    positions = (place % (2 * CELL_TURN) for place in range(len(by_size)))
    turns = [min(position, 2 * CELL_TURN - 1 - position) for position in positions]
    return frozenset(name for name, turn in zip(by_size, turns, strict=True) if turn == number)


def _files_with(pattern: re.Pattern[str]) -> list[str]:
    """Return the names of the test files that contain a pattern, in order."""
    candidates = set(FOLDER.rglob("*.py")) - {Path(__file__), FOLDER / "conftest.py"}
    return sorted(path.relative_to(FOLDER).as_posix() for path in candidates if pattern.search(path.read_text()))


def example_count(usual: int, full: int) -> int:
    """Return the number of examples, histories or kills. If it is a step width, `full` is the smaller one."""
    return full if in_full(_calling_file()) else usual


def select_cases(usual: Sequence[C], additional: Sequence[C]) -> list[C]:
    """Return the `usual` cases of a test, and the `additional` ones in the full suite."""
    return [*usual, *(additional if in_full(_calling_file()) else ())]


def _calling_file() -> str:
    return sys._getframe(2).f_code.co_filename
