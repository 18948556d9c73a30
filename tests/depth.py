"""How much of the suite a run plays. A usual run is what every change has to pass. `make test DEPTH=all` plays more of the same, and what
costs most: whole nights where they run elsewhere and in buckets, a browser on Dagster's page, and the lakes of the benchmarks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

C = TypeVar("C")

FULL = os.environ.get("GC_ASSETS_TEST_DEPTH") == "all"
ONLY_IN_FULL = "a part of the full suite: make test DEPTH=all"

# Marks a test that a usual run leaves out.
full_suite_only = pytest.mark.skipif(not FULL, reason=ONLY_IN_FULL)


def example_count(usual: int, full: int) -> int:
    """A number of examples, of histories or of moments to be killed at. For a step between them the full one is the smaller."""
    return full if FULL else usual


def select_cases(usual: Sequence[C], beyond: Sequence[C]) -> list[C]:
    """Cases of a test: `usual` of them always, and those `beyond` that keep the same promise once more."""
    return [*usual, *(beyond if FULL else ())]
