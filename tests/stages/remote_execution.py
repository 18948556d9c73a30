"""Run the stages of small lakes on executors, like those of large lakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gc_assets.engine import sessions, tasks
from gc_assets.stages.mark import commit_graph, live_hashes, live_set, manifest_entries
from gc_assets.stages.sweep import storage_inventory, sweep_checks


@contextmanager
def all_remote() -> Iterator[None]:
    """Set all limits so low that no stage works in-process or uses the session for small runs."""
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(sessions, "MAX_SMALL_ROWS", -1)
        in_process = ("MAX_IN_PROCESS_BYTES", "MAX_IN_PROCESS_ROWS", "MAX_IN_PROCESS_COLUMN_ROWS")
        for bound in (*in_process, "MAX_TRIAL_ROWS", "MAX_FIRST_SCAN_ROWS", "MAX_LOCAL_ROWS", "MAX_LOCAL_TASK_ROWS"):
            bounds.setattr(tasks, bound, -1)
        for bound in ("MAX_IN_PROCESS_HASHES", "MAX_LOCAL_HASHES"):
            bounds.setattr(live_hashes, bound, -1)
        bounds.setattr(live_set, "MAX_IN_PROCESS_ENTRIES", -1)
        bounds.setattr(sweep_checks, "MAX_IN_PROCESS_SUSPECTS", -1)
        bounds.setattr(manifest_entries, "MAX_FIRST_BYTES", -1)
        bounds.setattr(commit_graph, "MAX_IN_PROCESS_SOURCES", -1)
        for seconds in ("MAX_IN_PROCESS_SECONDS", "MAX_FIRST_LISTING_SECONDS"):
            bounds.setattr(storage_inventory, seconds, -1.0)
        bounds.setattr(storage_inventory, "MAX_IN_PROCESS_ENTRIES", 1)
        yield
