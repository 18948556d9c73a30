"""Select the tests of a usual run or of the full suite.

Every change must pass a usual run. `make test DEPTH=all` runs the full suite: more examples, and slow tests such as runs on clusters and in
buckets, the page of Dagster in a browser, and the lakes of the benchmarks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

C = TypeVar("C")

FULL = os.environ.get("GC_ASSETS_TEST_DEPTH") == "all"
ONLY_IN_FULL = "only in the full suite: make test DEPTH=all"

# Marks a test of the full suite only.
full_suite_only = pytest.mark.skipif(not FULL, reason=ONLY_IN_FULL)


def example_count(usual: int, full: int) -> int:
    """Return the number of examples, histories or kills. If it is a step width, `full` is the smaller one."""
    return full if FULL else usual


def select_cases(usual: Sequence[C], additional: Sequence[C]) -> list[C]:
    """Return the `usual` cases of a test, and the `additional` ones in the full suite."""
    return [*usual, *(additional if FULL else ())]
