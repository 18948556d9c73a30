from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gc_assets.core.chains import Ints
from gc_assets.core.reachability import reachable_nodes, strong_components

Edges = tuple[Ints, Ints]


def closure(nodes: int, edges: Edges) -> NDArray[np.bool_]:
    """Return the reflexive and transitive closure of the graph as a matrix, by Warshall's algorithm."""
    reach = np.eye(nodes, dtype=np.bool_)
    reach[edges] = True
    for via in range(nodes):
        reach |= reach[:, via, None] & reach[None, via]
    return reach


def random_edges(rng: np.random.Generator, nodes: int) -> Edges:
    """Draw chains with branches, merges, self-loops, repeated edges and a few edges that close cycles."""
    chains = [(node, node - 1) for node in range(1, nodes) if rng.random() < 0.8]
    extra = rng.integers(0, nodes, (int(rng.integers(0, 1 + nodes // 2)), 2)) if nodes else np.empty((0, 2))
    older = [tuple(sorted(map(int, pair), reverse=True)) if rng.random() < 0.7 else tuple(map(int, pair)) for pair in extra]
    edges = np.array([*chains, *older, *older[:2]], np.int32).reshape(-1, 2)
    order = rng.permutation(nodes).astype(np.int32)
    return order[edges[:, 0]], order[edges[:, 1]]


def test_reachability_of_random_graphs_matches_transitive_closure() -> None:
    rng = np.random.default_rng(7)
    cyclic = 0
    for _ in range(1_500):
        nodes = int(rng.integers(0, 24))
        edges = random_edges(rng, nodes)
        reach = closure(nodes, edges)
        starts = rng.integers(0, nodes, int(rng.integers(0, 4)) if nodes else 0).astype(np.int32)
        assert reachable_nodes(nodes, *edges, starts).tolist() == reach[starts].any(axis=0).tolist()
        same = reach & reach.T
        assert strong_components(nodes, *edges).tolist() == (same.argmax(axis=1).tolist() if nodes else [])
        cyclic += bool((same.sum(axis=1) > 1).any())
    assert 200 < cyclic < 1_400


def test_cycle_is_reachable_from_node_on_it() -> None:
    ring = np.arange(5, dtype=np.int32), np.roll(np.arange(5, dtype=np.int32), 1)
    assert reachable_nodes(6, *ring, np.array([3, 3], np.int32)).tolist() == [True] * 5 + [False]
    assert reachable_nodes(6, *ring, np.array([5], np.int32)).tolist() == [False] * 5 + [True]


def test_deep_graph_causes_no_recursion_error() -> None:
    """A merge at each commit leaves no chain to contract."""
    nodes = np.arange(2, 50_000, dtype=np.int32)
    ladder = np.concatenate([nodes, nodes]), np.concatenate([nodes - 1, nodes - 2])
    assert reachable_nodes(50_000, *ladder, np.array([49_998], np.int32)).sum() == 49_999
    closed = tuple(np.append(*pair).astype(np.int32) for pair in zip(ladder, (0, 49_999), strict=True))
    assert np.unique(strong_components(50_000, closed[0], closed[1])).tolist() == [0, 1]
