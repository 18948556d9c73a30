"""The rank of a content root depends on the state of its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED, RELEASED, SPARED, RootTables, read_content_roots
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import PINNED

NOW = Clock().now()


def tables(
    folder: Path,
    commits: list[dict[str, Any]],
    states: list[dict[str, Any]],
    expiry: Sequence[dict[str, Any]] = (),
    pinned: Sequence[dict[str, Any]] = (),
    *,
    edited: bool = True,
) -> RootTables:
    files = Files(str(folder))

    def write(name: str, schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
        writer = PartWriter(files, name, schema)
        for batch in pa.Table.from_pylist(list(rows), schema=schema).to_batches():
            writer.write(batch)
        return tuple(f"{name}/{part.name}" for part in writer.close())

    return RootTables(
        files,
        write("graph", COMMIT_GRAPH.schema, commits),
        write("reachable", REACHABLE_SNAPSHOTS.schema, states),
        write("expiry", EXPIRY_PLAN.schema, expiry),
        write("pinned", PINNED, pinned),
        edited,
    )


def root(address: str) -> dict[str, Any]:
    return {"address": address, "kind": "manifest_list", "is_container": True, "must_exist": True}


def commit(commit_id: str, *addresses: str, table: str | None = None) -> dict[str, Any]:
    return {"table_uuid": table, "commit_id": commit_id, "parents": [], "committed_at": NOW, "content_roots": [root(a) for a in addresses]}


def state(commit_id: str, state: str, refs_count: int = 0, table: str | None = None) -> dict[str, Any]:
    return {"table_uuid": table, "commit_id": commit_id, "state": state, "refs_count": refs_count}


def by_address(found: pa.Table) -> Mapping[str, int]:
    return {row["address"]: row["rank"] for row in found.to_pylist()}


def test_content_root_rank_depends_on_commit_state(tmp_path: Path) -> None:
    commits = [commit(name, f"/{name}") for name in ("head", "young", "old", "listed", "gone")]
    states = [
        state("head", "retained", 2),
        state("young", "retained"),
        state("old", "expired", 1),
        state("listed", "dangling"),
        state("gone", "dangling"),
    ]
    expiry = [{"snapshot_id": "listed", "action": "remove_snapshot"}, {"snapshot_id": "gone", "action": "edit_parent"}]
    found = by_address(read_content_roots(tables(tmp_path, commits, states, expiry)))
    assert found == {"/head": REACHED, "/young": SPARED, "/old": HELD, "/listed": HELD, "/gone": DEAD}


def test_files_of_expired_commits_may_be_deleted_if_history_is_never_edited(tmp_path: Path) -> None:
    states = [state("head", "retained", 1), state("old", "expired", 1)]
    found = by_address(read_content_roots(tables(tmp_path, [commit("head", "/head"), commit("old", "/old")], states, edited=False)))
    assert found == {"/head": REACHED, "/old": RELEASED}


def test_pinned_metadata_files_are_live_without_commit(tmp_path: Path) -> None:
    found = read_content_roots(tables(tmp_path, [], [], pinned=[{**root("/v3.metadata.json"), "is_container": False}]))
    assert [(row["address"], row["rank"], row["commit_id"]) for row in found.to_pylist()] == [("/v3.metadata.json", REACHED, None)]


def test_equal_commit_ids_in_two_tables_are_different_commits(tmp_path: Path) -> None:
    commits = [commit("1", "/a", table="A"), commit("1", "/b", table="B")]
    found = by_address(read_content_roots(tables(tmp_path, commits, [state("1", "retained", 1, "A"), state("1", "expired", 1, "B")])))
    assert found == {"/a": REACHED, "/b": HELD}


def test_commit_without_content_roots_has_no_rows(tmp_path: Path) -> None:
    states = [state("a", "retained", 1), state("b", "retained", 1)]
    assert by_address(read_content_roots(tables(tmp_path, [commit("a"), commit("b", "/b")], states))) == {"/b": REACHED}


def test_commit_without_retention_state_stops_run(tmp_path: Path) -> None:
    """Without a state it would have no rank, and its files would count as dangling."""
    with pytest.raises(StateError, match=r"reachable_snapshots has no valid state for 1 commits of commit_graph.*forgotten"):
        read_content_roots(tables(tmp_path, [commit("a", "/a"), commit("forgotten", "/b")], [state("a", "retained", 1)]))


def test_unknown_retention_state_stops_run(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"reachable_snapshots has no valid state for 1 commits of commit_graph"):
        read_content_roots(tables(tmp_path, [commit("a", "/a")], [state("a", "parked", 1)]))
