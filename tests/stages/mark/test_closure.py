"""Containers reachable from content roots, compared with a search that shares no code with the
stage.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.stages.mark import edges as edges_module
from gc_assets.stages.mark.closure import closure as closure_of
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED
from gc_assets.stages.mark.edges import EdgeIndex, read_edges
from gc_assets.state.side_tables import EDGES, ROOTS
from tests.depth import example_count
from tests.stages.mark.random_edges import ADDRESSES, build_edges, describe_child, write_edges

Row = dict[str, Any]


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


def closure(roots: pa.Table, edges: pa.Table) -> dict[str, Row]:
    return by_address(closure_of(roots, EdgeIndex([edges], edges.num_rows)))


def by_address(found: pa.Table) -> dict[str, Row]:
    assert found.schema == ROOTS
    rows = {row["address"]: row for row in found.to_pylist()}
    assert len(rows) == found.num_rows
    return rows


def ranks(found: dict[str, Row]) -> dict[str, int]:
    return {address: row["rank"] for address, row in found.items()}


def build_roots(rng: random.Random) -> list[Row]:
    """Return roots of four tables and of commits without a table. Tables share some containers."""
    return [
        {
            **describe_child(rng.choice(ADDRESSES)),
            "is_container": rng.random() < 0.9,
            "size_bytes": rng.choice([None, 1, 3]),
            "must_exist": rng.random() < 0.5,
            "rank": rng.randrange(REACHED, DEAD + 1),
            "commit_id": rng.choice(["x", "y", "z", None]),
            "table_uuid": rng.choice(["t", "u", "v", "w", None]),
            "parent": None,
        }
        for _ in range(rng.randrange(8))
    ]


def order_of(root: Row) -> tuple[Any, ...]:
    """Return a key by which the strongest root is the first one. None comes last."""
    values = [root[name] for name in ("rank", "commit_id", "table_uuid", "address")]
    return tuple((value is None, value) for value in values)


def find_distances(start: str, edges: list[Row]) -> dict[str, int]:
    """Return the number of edges on the shortest path to each container."""
    found, level = {start: 0}, [start]
    while level:
        names = sorted({edge["address"] for edge in edges if edge["container"] in level} - found.keys())
        found |= dict.fromkeys(names, found[level[0]] + 1)
        level = names
    return found


def search(roots: list[Row], edges: list[Row]) -> dict[str, Row]:
    """Search from each root for all containers that it reaches, and compare these roots."""
    containers = sorted((root for root in roots if root["is_container"]), key=order_of)
    reached = [find_distances(root["address"], edges) for root in containers]
    required = {root["address"] for root in containers if root["must_exist"]}
    while more := {edge["address"] for edge in edges if edge["must_exist"] and edge["container"] in required} - required:
        required |= more
    sizes = defaultdict[str, list[int]](list)
    for row in [*containers, *(edge for edge in edges if any(edge["container"] in distances for distances in reached))]:
        sizes[row["address"]].extend([] if row["size_bytes"] is None else [row["size_bytes"]])
    found: dict[str, Row] = {}
    for address in {address for distances in reached for address in distances}:
        witness, distances = next(pair for pair in zip(containers, reached, strict=True) if address in pair[1])
        parents = [edge["container"] for edge in edges if edge["address"] == address and edge["container"] in distances]
        nearest = sorted(parent for parent in parents if distances[parent] == distances[address] - 1)
        found[address] = {
            **describe_child(address),
            "is_container": True,
            "size_bytes": max(sizes[address], default=None),
            "must_exist": address in required,
            **{name: witness[name] for name in ("rank", "commit_id", "table_uuid")},
            "parent": nearest[0] if nearest else None,
        }
    return found


def test_reachable_containers_equal_search_from_each_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(example_count(150, 3_000)):
        rng = random.Random(seed)
        monkeypatch.setattr(edges_module, "MAX_STEP_EDGES", rng.choice([1, 7, 1_000]))
        edges, points = build_edges(rng, rng.choice([0, 5, 20, 60])), build_roots(rng)
        cut = rng.randrange(len(edges) + 1)
        index = read_edges(*write_edges(tmp_path / str(seed), [edges[:cut], edges[cut:]]))
        expected = search(points, edges)
        assert by_address(closure_of(pa.Table.from_pylist(points, ROOTS), index)) == expected, f"seed {seed}"
        rng.shuffle(points)
        optional = rng.sample(ADDRESSES, 4)
        changed = [{**edge, "must_exist": edge["must_exist"] and edge["address"] not in optional} for edge in edges]
        found = closure_of(pa.Table.from_pylist(points, ROOTS), index.with_optional(pa.array(optional)))
        assert by_address(found) == search(points, changed), f"seed {seed}"


def test_order_and_chunks_of_edges_do_not_change_reachable_containers(tmp_path: Path) -> None:
    for seed in range(example_count(60, 1_000)):
        rng = random.Random(seed)
        edges, points = build_edges(rng, 40), pa.Table.from_pylist(build_roots(rng), ROOTS)
        shuffled = rng.sample(edges, len(edges))
        single = EdgeIndex([pa.Table.from_pylist(edges, EDGES)], len(edges))
        divided = read_edges(*write_edges(tmp_path / str(seed), [shuffled[start::5] for start in range(5)]))
        assert by_address(closure_of(points, single)) == by_address(closure_of(points, divided)), f"seed {seed}"


def test_merged_results_of_table_groups_equal_one_search() -> None:
    """Tables of two groups share containers."""
    for seed in range(example_count(100, 2_000)):
        rng = random.Random(seed)
        edges, points = build_edges(rng, 40), build_roots(rng)
        index = EdgeIndex([pa.Table.from_pylist(edges, EDGES)], len(edges))
        group_of = {uuid: rng.randrange(3) for uuid in ("t", "u", "v", "w", None)}
        groups = [[root for root in points if group_of[root["table_uuid"]] == group] for group in range(3)]
        found = [closure_of(pa.Table.from_pylist(group, ROOTS), index) for group in groups]
        merged = by_address(closure_of(pa.concat_tables(found), EdgeIndex([], 0)))
        undivided = by_address(closure_of(pa.Table.from_pylist(points, ROOTS), index))
        assert merged == undivided, f"seed {seed}"


def test_search_ends_at_container_that_references_itself() -> None:
    assert ranks(closure(roots([("a", HELD, "x")]), edges([("a", "a"), ("a", "b"), ("b", "a")]))) == {"a": HELD, "b": HELD}


def test_retained_commit_found_later_makes_children_reachable() -> None:
    """The expired commit reaches `d` one level before the retained one."""
    found = closure(roots([("a", HELD, "old"), ("b", REACHED, "new")]), edges([("a", "d"), ("b", "c"), ("c", "d"), ("d", "e")]))
    assert ranks(found) == {"a": HELD, "b": REACHED, "c": REACHED, "d": REACHED, "e": REACHED}


def test_first_commit_is_witness_even_if_path_is_longer() -> None:
    found = closure(roots([("a", REACHED, "2"), ("b", REACHED, "1")]), edges([("a", "d"), ("b", "c"), ("c", "d"), ("d", "e")]))
    assert {address: (row["commit_id"], row["parent"]) for address, row in found.items()} == {
        "a": ("2", None),
        "b": ("1", None),
        "c": ("1", "b"),
        "d": ("1", "c"),
        "e": ("1", "d"),
    }


def test_only_containers_are_followed() -> None:
    leaf = roots([("a", REACHED, "x")]).set_column(2, "is_container", pa.array([False]))
    assert not closure(leaf, edges([("a", "b")]))


def test_no_container_is_reachable_without_content_roots() -> None:
    assert not closure(roots([]), edges([("a", "b")]))


def test_container_size_is_taken_from_any_edge_that_records_it() -> None:
    both = pa.concat_tables([edges([("a", "c")]), edges([("b", "c")], size_bytes=7)])
    assert closure(roots([("a", REACHED, "x"), ("b", REACHED, "x")]), both)["c"]["size_bytes"] == 7


@pytest.mark.parametrize("weaker", [REACHED, DEAD])
@pytest.mark.parametrize("names", [[("b", "c"), ("c", "d")], [("b", "d")]])
def test_container_is_required_if_one_commit_requires_it(weaker: int, names: list[tuple[str, str]]) -> None:
    """Another commit allows the container to be absent."""
    optional = edges([("a", "d")], must_exist=False)
    for optional_rank, required_rank in ((weaker, REACHED), (REACHED, weaker)):
        points = roots([("a", optional_rank, "x"), ("b", required_rank, "y")])
        assert closure(points, pa.concat_tables([optional, edges(names)]))["d"]["must_exist"]
