"""Every commit gets exactly one state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from gc_assets.core.errors import StateError
from gc_assets.lakes.protocol import RETAINED
from gc_assets.stages.mark.reachable_snapshots import verify_states
from gc_assets.state.schemas import COMMIT_GRAPH, REACHABLE_SNAPSHOTS

COMMITS = [("orders", "1"), ("orders", "2"), ("items", "1"), (None, "1")]


def commits_of(keys: Sequence[tuple[str | None, str]]) -> pa.Table:
    return pa.Table.from_pylist([{"table_uuid": uuid, "commit_id": commit} for uuid, commit in keys], COMMIT_GRAPH.schema)


def states_of(keys: Sequence[tuple[str | None, str]]) -> pa.Table:
    rows = [{"table_uuid": uuid, "commit_id": commit, "state": RETAINED} for uuid, commit in keys]
    return pa.Table.from_pylist(rows, REACHABLE_SNAPSHOTS.schema)


def test_snapshot_states_may_be_in_any_order() -> None:
    verify_states("sales", commits_of(COMMITS), states_of(COMMITS[::-1]))


def test_lake_without_commits_needs_no_snapshot_states() -> None:
    verify_states("sales", commits_of([]), states_of([]))


@pytest.mark.parametrize(
    "keys",
    [COMMITS[1:], [*COMMITS, COMMITS[0]], [*COMMITS[1:], COMMITS[1]], [*COMMITS, ("items", "2")], [*COMMITS, ("lost", "9"), ("lost", "9")]],
    ids=["missing", "repeated", "repeated instead of another", "unknown", "unknown and repeated"],
)
def test_states_are_refused_unless_there_is_one_per_commit(keys: list[tuple[str | None, str]]) -> None:
    with pytest.raises(StateError, match=f"returned {len(keys)} states for 4 commits"):
        verify_states("sales", commits_of(COMMITS), states_of(keys))
