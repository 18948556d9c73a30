"""How often a test plays what it can play again and again: a share in a usual run, all of it by `make test DEPTH=all`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

C = TypeVar("C")

FULL = os.environ.get("GC_ASSETS_TEST_DEPTH") == "all"


def times(usual: int, full: int) -> int:
    """A number of examples, of histories or of moments to be killed at. For a step between them the full one is the smaller."""
    return full if FULL else usual


def some(usual: Sequence[C], beyond: Sequence[C]) -> list[C]:
    """Cases of a test: `usual` of them always, and those `beyond` that keep the same promise once more."""
    return [*usual, *(beyond if FULL else ())]
