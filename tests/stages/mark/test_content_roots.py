"""Ranks of content roots and containers, compared with a walk that shares no code with the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED, RELEASED, SPARED, RootTables, read_content_roots
from gc_assets.stages.mark.content_roots import closure as closure_of
from gc_assets.stages.mark.edges import EdgeIndex
from gc_assets.state.files import Files
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import EDGES, PINNED, ROOTS

NOW = Clock().now()


def roots(rows: list[tuple[str, int, str | None]]) -> pa.Table:
    """Return containers from rows of (address, rank, commit)."""
    containers = [
        {"address": address, "kind": "manifest", "is_container": True, "must_exist": True, "rank": rank, "commit_id": commit}
        for address, rank, commit in rows
    ]
    return pa.Table.from_pylist(containers, schema=ROOTS)


def edges(rows: list[tuple[str, str]], **more: Any) -> pa.Table:
    children = [{"container": parent, "address": child, "kind": "manifest", "must_exist": True, **more} for parent, child in rows]
    return pa.Table.from_pylist(children, schema=EDGES)


def closure(roots: pa.Table, edges: pa.Table) -> pa.Table:
    return closure_of(roots, EdgeIndex([edges], edges.num_rows))


def ranks(found: pa.Table) -> dict[str, int]:
    assert found.schema == ROOTS
    assert len(set(found.column("address").to_pylist())) == found.num_rows
    return dict(zip(found.column("address").to_pylist(), found.column("rank").to_pylist(), strict=True))


@dataclass(frozen=True)
class Forest:
    """Content roots with ranks, and edges between containers, including cycles."""

    points: tuple[tuple[str, int, str | None], ...]
    names: tuple[tuple[str, str], ...]

    def reachable(self, address: str) -> set[str]:
        found, pending = {address}, [address]
        while pending:
            current = pending.pop()
            for parent, child in self.names:
                if parent == current and child not in found:
                    found.add(child)
                    pending.append(child)
        return found


ADDRESSES = st.sampled_from([f"c{number}" for number in range(9)])
FORESTS = st.builds(
    Forest,
    st.lists(st.tuples(ADDRESSES, st.integers(REACHED, DEAD), st.sampled_from(["x", "y", "z", None])), max_size=7).map(tuple),
    st.lists(st.tuples(ADDRESSES, ADDRESSES), max_size=16).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(FORESTS)
def test_container_has_the_strongest_rank_and_a_commit_of_that_rank(forest: Forest) -> None:
    reaching: dict[str, list[tuple[int, str | None]]] = {}
    for address, rank, commit in forest.points:
        for container in forest.reachable(address):
            reaching.setdefault(container, []).append((rank, commit))
    found = closure(roots(list(forest.points)), edges(list(forest.names)))
    assert ranks(found) == {address: min(rank for rank, _ in needed) for address, needed in reaching.items()}
    for row in found.to_pylist():
        assert (row["rank"], row["commit_id"]) in reaching[row["address"]]
        assert row["parent"] is None or (row["parent"], row["address"]) in forest.names


@settings(max_examples=50, deadline=None)
@given(FORESTS, st.randoms())
def test_order_of_rows_does_not_change_ranks(forest: Forest, random: Any) -> None:
    points, names = list(forest.points), list(forest.names)
    expected = ranks(closure(roots(points), edges(names)))
    random.shuffle(points)
    random.shuffle(names)
    assert ranks(closure(roots(points), edges(names))) == expected


def test_walk_ends_at_a_container_that_names_itself() -> None:
    assert ranks(closure(roots([("a", HELD, "x")]), edges([("a", "a"), ("a", "b"), ("b", "a")]))) == {"a": HELD, "b": HELD}


def test_stronger_commit_found_later_raises_the_ranks_of_children() -> None:
    """The expired commit reaches `d` one level before the retained one."""
    found = closure(roots([("a", HELD, "old"), ("b", REACHED, "new")]), edges([("a", "d"), ("b", "c"), ("c", "d"), ("d", "e")]))
    assert ranks(found) == {"a": HELD, "b": REACHED, "c": REACHED, "d": REACHED, "e": REACHED}


def test_files_are_not_followed() -> None:
    leaf = roots([("a", REACHED, "x")]).set_column(2, "is_container", pa.array([False]))
    assert closure(leaf, edges([("a", "b")])).num_rows == 0


def test_no_roots_give_no_containers() -> None:
    assert closure(roots([]), edges([("a", "b")])).num_rows == 0


def test_container_has_the_size_that_any_edge_records() -> None:
    both = pa.concat_tables([edges([("a", "c")]), edges([("b", "c")], size_bytes=7)])
    found = closure(roots([("a", REACHED, "x"), ("b", REACHED, "x")]), both)
    assert {row["address"]: row["size_bytes"] for row in found.to_pylist()}["c"] == 7


@pytest.mark.parametrize("weaker", [REACHED, DEAD])
def test_container_that_one_commit_requires_must_exist(weaker: int) -> None:
    """Another commit, which reaches it first, allows it to be absent."""
    optional = edges([("a", "d")], must_exist=False)
    found = closure(roots([("a", weaker, "x"), ("b", REACHED, "y")]), pa.concat_tables([optional, edges([("b", "c"), ("c", "d")])]))
    assert {row["address"]: row["must_exist"] for row in found.to_pylist()}["d"]


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


def test_rank_of_a_root_follows_from_the_state_of_its_commit(tmp_path: Path) -> None:
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


def test_expired_roots_are_released_if_history_is_never_edited(tmp_path: Path) -> None:
    states = [state("head", "retained", 1), state("old", "expired", 1)]
    found = by_address(read_content_roots(tables(tmp_path, [commit("head", "/head"), commit("old", "/old")], states, edited=False)))
    assert found == {"/head": REACHED, "/old": RELEASED}


def test_pinned_files_are_live_without_a_commit(tmp_path: Path) -> None:
    found = read_content_roots(tables(tmp_path, [], [], pinned=[{**root("/v3.metadata.json"), "is_container": False}]))
    assert [(row["address"], row["rank"], row["commit_id"]) for row in found.to_pylist()] == [("/v3.metadata.json", REACHED, None)]


def test_equal_commit_ids_of_two_tables_are_two_commits(tmp_path: Path) -> None:
    commits = [commit("1", "/a", table="A"), commit("1", "/b", table="B")]
    found = by_address(read_content_roots(tables(tmp_path, commits, [state("1", "retained", 1, "A"), state("1", "expired", 1, "B")])))
    assert found == {"/a": REACHED, "/b": HELD}


def test_commit_without_content_roots_gives_no_rows(tmp_path: Path) -> None:
    states = [state("a", "retained", 1), state("b", "retained", 1)]
    assert by_address(read_content_roots(tables(tmp_path, [commit("a"), commit("b", "/b")], states))) == {"/b": REACHED}


def test_commit_without_a_state_stops_the_mark(tmp_path: Path) -> None:
    """Without a state it would have no rank, and its files would count as dangling."""
    with pytest.raises(StateError, match=r"1 commits of commit_graph are neither retained .*forgotten"):
        read_content_roots(tables(tmp_path, [commit("a", "/a"), commit("forgotten", "/b")], [state("a", "retained", 1)]))


def test_unknown_state_stops_the_mark(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"1 commits of commit_graph are neither retained nor expired nor dangling"):
        read_content_roots(tables(tmp_path, [commit("a", "/a")], [state("a", "parked", 1)]))
