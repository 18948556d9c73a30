"""Compute reachable nodes and strongly connected components of a graph, in linear time.

As in `CommitGraph`, the edges are given by two int32 arrays, of children and of their parents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gc_assets.core.chains import Chains, Ints, successor_lists


def reachable_nodes(nodes: int, child: Ints, parent: Ints, starts: Ints) -> NDArray[np.bool_]:
    """Return a mask that is true for the start nodes and all of their ancestors."""
    chains = Chains.of(nodes, child, parent, starts=starts)
    first, parents = successor_lists(len(chains), chains.child, chains.parent)
    # Each start is the newest node of its chain, even on a cycle, so a chain is reached either
    # completely or not at all. Chain -1 has no edges and is never reached.
    reached = np.zeros(len(chains) + 1, np.bool_)
    reached[chains.chain[starts]] = True
    pending = np.flatnonzero(reached).tolist()
    seen = bytearray(reached.tobytes())
    while pending:
        chain = pending.pop()
        for other in parents[first[chain] : first[chain + 1]]:
            if not seen[other]:
                seen[other] = 1
                pending.append(other)
    return np.frombuffer(seen, np.bool_)[chains.chain]


def strong_components(nodes: int, child: Ints, parent: Ints) -> Ints:
    """Find strongly connected components with Tarjan's algorithm.

    The algorithm visits each node with an edge in pure Python, so it is best to pass only edges
    that may be on a cycle.

    Returns:
        The component of each node, identified by its smallest node.
    """
    first, parents = successor_lists(nodes, child, parent)
    following = first.copy()
    component, order, low = [-1] * nodes, [-1] * nodes, [0] * nodes
    unassigned: list[int] = []
    visited = 0
    for root in np.unique(child).tolist():
        path = [root] if order[root] < 0 else []
        while path:
            node = path[-1]
            if order[node] < 0:
                order[node] = low[node] = visited
                visited += 1
                unassigned.append(node)
            if following[node] < first[node + 1]:
                other = parents[following[node]]
                following[node] += 1
                if order[other] < 0:
                    path.append(other)
                elif component[other] < 0:
                    low[node] = min(low[node], order[other])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[node])
            if low[node] == order[node]:
                members = [unassigned.pop()]
                while members[-1] != node:
                    members.append(unassigned.pop())
                smallest = min(members)
                for member in members:
                    component[member] = smallest
    found = np.array(component, np.int32)
    return np.where(found < 0, np.arange(nodes, dtype=np.int32), found)
