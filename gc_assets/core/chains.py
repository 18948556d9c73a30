"""Contract linear graph chains to single nodes.

Commit history is deep and mostly linear, with millions of levels and few branches. Sweeping over
chains in topological order needs Python only at branches and merges, while numpy processes the
nodes inside a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chains:
    """Partition of nodes into chains. The only parent of each node except the oldest is the next
    older node.

    Attributes:
        chain: Chain number per node; -1 on a cycle without branches.
        depth: Distance per node from the oldest node in its chain.
        length: Chain lengths.
        child: Start of each edge between chains, at the oldest node of the starting chain.
        parent: End of each edge between chains, at the newest node of the ending chain.
    """

    chain: Ints
    depth: Ints
    length: Ints
    child: Ints
    parent: Ints

    @classmethod
    def of(cls, nodes: int, child: Ints, parent: Ints, starts: Ints | None = None) -> Self:
        """Build the longest chains in which each of `starts` is the newest node."""
        only_parent = np.bincount(child, minlength=nodes) == 1
        only_child = np.bincount(parent, minlength=nodes) == 1
        if starts is not None:
            only_child[starts] = False
        inner = only_parent[child] & only_child[parent]
        oldest = np.ones(nodes, np.bool_)
        oldest[child[inner]] = False

        # Pointer doubling: after round k each node points to its ancestor 2^k steps down the chain,
        # or to the oldest node in the chain.
        root = np.arange(nodes, dtype=np.int32)
        root[child[inner]] = parent[inner]
        depth = (~oldest).astype(np.int32)
        open_ = np.flatnonzero(~oldest[root])
        for _ in range(nodes.bit_length()):
            if not len(open_):
                break
            via = root[open_]
            depth[open_] += depth[via]
            root[open_] = root[via]
            open_ = open_[~oldest[root[open_]]]

        number = np.full(nodes, -1, np.int32)
        number[oldest] = np.arange(np.count_nonzero(oldest), dtype=np.int32)
        chain = np.where(oldest[root], number[root], np.int32(-1))
        length = np.bincount(chain[chain >= 0], minlength=int(np.count_nonzero(oldest))).astype(np.int32)
        return cls(chain, depth, length, chain[child[~inner]], chain[parent[~inner]])

    def __len__(self) -> int:
        return len(self.length)


def successor_lists(nodes: int, source: Ints, target: Ints) -> tuple[list[int], list[int]]:
    """Return the edges by source node.

    Returns:
        The position of each node's first edge, with the number of edges as last element, and the
        targets of all edges.
    """
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))]).tolist()
    return start, target[np.argsort(source, kind="stable")].tolist()


def topological_order(nodes: int, source: Ints, target: Ints) -> Iterator[tuple[int, list[int]]]:
    """Yield each node after all its predecessors, together with its successors.

    Nodes that are on a cycle or only reachable through one are skipped.
    """
    start, targets = successor_lists(nodes, source, target)
    awaited = np.bincount(target, minlength=nodes)
    ready = np.flatnonzero(awaited == 0).tolist()
    waiting = awaited.tolist()
    while ready:
        node = ready.pop()
        following = targets[start[node] : start[node + 1]]
        yield node, following
        for other in following:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
