"""Read the history edits of a plan."""

from __future__ import annotations

import pyarrow as pa

from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import EXPIRY_ACTIONS, EXPIRY_SIDE


def planned_actions(state: State, plan: PublishedTable) -> pa.Table:
    """Return the plan's history edits (columns `EXPIRY_ACTIONS`)."""
    return read_parts(state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS)
