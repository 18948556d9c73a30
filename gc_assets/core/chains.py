"""Long chains of a graph contracted to single nodes, so that what goes commit by commit goes chain
by chain.

History is deep and mostly linear: millions of levels, few branchings. A sweep in topological order
over chains costs Python only where history branches or merges; inside a chain numpy does the rest.
Knows edges, not commits.
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
    """A partition of nodes into chains. Within one, each node but the oldest has the next older one
    as its only parent.

    Of each node: `chain` (-1 on a ring, a cycle that nothing enters or leaves) and `depth`, its
    distance from the oldest of its chain. Of each chain: `length`. `child` and `parent` are the
    edges between chains: from the oldest node of one to the newest of another.
    """

    chain: Ints
    depth: Ints
    length: Ints
    child: Ints
    parent: Ints

    @classmethod
    def of(cls, nodes: int, child: Ints, parent: Ints, starts: Ints | None = None) -> Self:
        """Returns the longest chains in which each of `starts` is the newest of its own."""
        only_parent = np.bincount(child, minlength=nodes) == 1
        only_child = np.bincount(parent, minlength=nodes) == 1
        if starts is not None:
            only_child[starts] = False
        inner = only_parent[child] & only_child[parent]
        oldest = np.ones(nodes, np.bool_)
        oldest[child[inner]] = False

        # Pointer doubling: after round k everything knows its ancestor 2^k steps down the chain, or
        # the chain's oldest.
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


def forward(nodes: int, source: Ints, target: Ints) -> Iterator[tuple[int, list[int]]]:
    """Yields each node after all nodes that lead to it, with the nodes it leads to. Nodes on a
    cycle, or behind one, never come.
    """
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))]).tolist()
    targets = target[np.argsort(source, kind="stable")].tolist()
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
