"""Contract linear chains of a commit graph to single nodes.

Commit history is mostly linear, with millions of levels but few branches. If chains are processed
in topological order, Python code runs only for branches and merges, and NumPy handles all nodes
within a chain.
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
    """A partition of the nodes of a graph into chains.

    In a chain, every node except the oldest has exactly one parent, which is the next older node.

    Attributes:
        chain: The number of each node's chain, or -1 if the node is on a cycle without branches.
        depth: The distance of each node from the oldest node in its chain.
        length: The number of nodes in each chain.
        child: For each edge between chains, the chain whose oldest node is the child.
        parent: For each edge between chains, the chain whose newest node is the parent.
    """

    chain: Ints
    depth: Ints
    length: Ints
    child: Ints
    parent: Ints

    @classmethod
    def of(cls, nodes: int, child: Ints, parent: Ints, starts: Ints | None = None) -> Self:
        """Partition the nodes into chains that are as long as possible.

        Args:
            starts: Nodes that have to be the newest node of their chain.
        """
        only_parent = np.bincount(child, minlength=nodes) == 1
        only_child = np.bincount(parent, minlength=nodes) == 1
        if starts is not None:
            only_child[starts] = False
        inner = only_parent[child] & only_child[parent]
        oldest = np.ones(nodes, np.bool_)
        oldest[child[inner]] = False

        # By pointer doubling, each node points to its ancestor 2^k steps down the chain after round
        # k, or to the oldest node in the chain.
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
    """Group the edges of a graph by source node.

    Returns:
        The position of each node's first edge, followed by the number of all edges, and the targets
        of all edges.
    """
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))]).tolist()
    return start, target[np.argsort(source, kind="stable")].tolist()


def topological_order(nodes: int, source: Ints, target: Ints) -> Iterator[tuple[int, list[int]]]:
    """Yield each node with its successors, after all of its predecessors.

    Nodes on a cycle, and nodes that follow a cycle, are skipped.
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
