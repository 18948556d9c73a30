"""Dangling and expired snapshots with missing manifests do not stop a plan.

The collectors of the formats leave such dangling snapshots.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.engine.tables import merge_written, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.stages.mark.live_walk import CachePaths, LiveWalk
from gc_assets.state.journal import State, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CONTAINERS, EDGES, STATES, STATES_SIDE, UNREADABLE_CONTAINERS

LOCATION = {"storage": "warehouse", "must_exist": True}


def walk_snapshot(root: Path, *, refs: int, absent: bool, state: str = "retained") -> dict[str, bool]:
    """Walk a snapshot with an unreadable manifest, and return `must_exist` by key."""
    files, run = State.at(str(root)).files, TableRun("weather", "live_files", date(2026, 1, 1), "run")

    def parts(name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> tuple[str, ...]:
        return tuple(f"{run.path}/{part.name}" for part in write_parts(pa.Table.from_pylist(rows, schema), run, files, name))

    snapshot = {**LOCATION, "address": "s", "key": "s", "kind": Kind.SNAPSHOT, "is_container": True, "size_bytes": 1}
    commit = {"commit_id": "s", "parents": [], "committed_at": datetime(2026, 1, 1, tzinfo=UTC), "content_roots": [snapshot], "summary": []}
    retained = {"commit_id": "s", "state": state, "refs": [], "refs_count": refs, "reason": "r"}
    manifest = {**LOCATION, "address": "m", "key": "m", "kind": Kind.CHUNK_MANIFEST}
    walk = LiveWalk(
        "weather",
        RootTables(
            files,
            parts("graph", [commit], COMMIT_GRAPH.schema),
            parts("reachable", [retained], REACHABLE_SNAPSHOTS.schema),
            (),
            (),
            edited=True,
        ),
        CachePaths(
            parts("edges", [{**manifest, "container": "s", "container_size_bytes": 1, "size_bytes": 7}], EDGES),
            parts("decoded", [{"container": "s", "kind": Kind.SNAPSHOT, "container_size_bytes": 1, "entries": 1}], CONTAINERS),
            parts("failed", [{"address": "m", "kind": Kind.CHUNK_MANIFEST, "error": "gone", "absent": absent}], UNREADABLE_CONTAINERS),
            (),
        ),
        {},
        run,
        (),
        None,
        {},
    )
    report = merge_written([row for batch in walk(iter([pa.RecordBatch.from_pydict({"id": [0]})])) for row in batch.to_pylist()])
    rows = read_parts(files, report.paths(run, STATES_SIDE), STATES).to_pylist()
    return {row["key"]: row["must_exist"] for row in rows}


@pytest.mark.parametrize("state", ["retained", "expired"])
def test_missing_manifest_of_an_unreachable_snapshot_is_optional(tmp_path: Path, state: str) -> None:
    assert walk_snapshot(tmp_path, refs=0, absent=True, state=state) == {"s": True, "m": False}


@pytest.mark.parametrize("refs, absent, state", [(1, True, "retained"), (0, False, "retained"), (0, False, "expired")])
def test_unreadable_manifest_stops_run_unless_unreachable_and_absent(tmp_path: Path, refs: int, absent: bool, state: str) -> None:
    with pytest.raises(LakeUnreadable, match="gone"):
        walk_snapshot(tmp_path, refs=refs, absent=absent, state=state)
