"""Describe damaged runs of the state, and how the user can repair them.

This module is pure: it knows the names of tables, but reads no files.
"""

from __future__ import annotations

from typing import Final

from gc_assets.core.errors import StateError
from gc_assets.state.summaries import DeletionLogSummary, ExpiryLogSummary

# These tables record deletions, so no run can compute them again.
RECORDS: Final = frozenset({DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
RESTORE_BACKUP: Final = "restore it from a backup of the state, because it records deletions and cannot be computed again"


class DamagedRunError(StateError):
    """A file of a run is missing, or its content differs from the published content."""


def describe_next_step(path: str) -> str:
    """Return the next step for a missing or damaged file of a run.

    Args:
        path: The path of the file, which contains the name of its table.
    """
    if any(f"/{table}/" in path for table in RECORDS):
        return RESTORE_BACKUP
    return "run `gc-assets doctor --repair` and start the run again"
