"""Puts the work of small lakes where that of large ones is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gc_assets.engine import sessions as few_rows
from gc_assets.engine import tasks as engine
from gc_assets.stages.mark import commit_graph
from gc_assets.stages.sweep import storage_inventory


@contextmanager
def all_remote() -> Iterator[None]:
    """Nothing is so little that a stage does it in this process, or joins it in the session for few rows."""
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(few_rows, "MAX_SMALL_ROWS", -1)
        for bound in ("MAX_IN_PROCESS_ROWS", "MAX_IN_PROCESS_BYTES", "MAX_TRIAL_ROWS", "MAX_IN_PROCESS_COLUMN_ROWS"):
            bounds.setattr(engine, bound, -1)
        bounds.setattr(commit_graph, "MAX_IN_PROCESS_SOURCES", -1)
        bounds.setattr(storage_inventory, "MAX_IN_PROCESS_SECONDS", -1.0)
        bounds.setattr(storage_inventory, "MAX_IN_PROCESS_ENTRIES", 1)
        yield
