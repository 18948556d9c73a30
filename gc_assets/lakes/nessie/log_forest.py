"""The logs of all refs as one forest of first parents, stored in arrays.

Commits are numbered so that the descendants of each commit form an interval. Therefore, two array
comparisons find all ancestors of a commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.chains import Chains, Ints
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.graph import CommitGraph
from gc_assets.state.arrow_types import TIMESTAMP

Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LogForest:
    """A forest of the commits of all refs. Arrays are indexed by the position of a commit.

    Attributes:
        graph: The commits, with first parents only.
        times: Commit times in microseconds since 1970.
        depth: Number of ancestors of each commit.
        number: Number of each commit. It and its descendants have the numbers `[number, end)`.
        end: Exclusive end of this interval for each commit.
    """

    graph: CommitGraph
    times: Longs
    depth: Ints
    number: Ints
    end: Ints

    @classmethod
    def of(cls, lake: str, ids: pa.Array, parents: pa.Array, times: Longs) -> Self:
        """Build the forest.

        Args:
            lake: Name of the lake.
            ids: Hashes of the commits.
            parents: Parents of each commit as a list column, first parent first.
            times: Commit times in microseconds since 1970.

        Raises:
            LakeUnreadable: If a log has a cycle, which is impossible for content hashes.
        """
        first_parents = pc.list_slice(parents, 0, 1)
        graph = CommitGraph.build(ids, first_parents, pa.array(times).cast(TIMESTAMP))
        chains = Chains.of(len(graph), graph.child, graph.parent)
        if (chains.chain < 0).any() or (graph.generation < 0).any():
            raise LakeUnreadable(
                f"lake {lake}: the log of commits has a cycle ({graph.problems[0]}); the data of the server is damaged, restore "
                "it from a backup"
            )
        start, end, base_depth = _number_chains(chains)
        return cls(graph, times, base_depth[chains.chain] + chains.depth, start[chains.chain] + chains.depth, end[chains.chain])

    def __len__(self) -> int:
        return len(self.times)

    def select_log(self, head: int) -> Bools:
        """Return a mask that selects the given head commit and its ancestors."""
        return (self.number <= self.number[head]) & (self.number[head] < self.end)


def _number_chains(chains: Chains) -> tuple[Ints, Ints, Ints]:
    """Assign numbers to the commits of all chains (runs of commits without a fork).

    Returns:
        For each chain, the number of its oldest commit, the end of the interval of its descendants,
        and how many ancestors its oldest commit has.
    """
    count = len(chains)
    children: list[list[int]] = [[] for _ in range(count)]
    for child, parent in zip(chains.child.tolist(), chains.parent.tolist(), strict=True):
        children[parent].append(child)
    lengths = chains.length.tolist()
    start, end, base_depth = ([0] * count for _ in range(3))
    has_parent = set(chains.child.tolist())
    pending = [chain for chain in range(count) if chain not in has_parent]
    numbered = 0
    while pending:
        chain = pending.pop()
        if chain < 0:
            end[~chain] = numbered
            continue
        start[chain] = numbered
        numbered += lengths[chain]
        pending.append(~chain)
        for child in children[chain]:
            base_depth[child] = base_depth[chain] + lengths[chain]
            pending.append(child)
    return np.array(start, np.int32), np.array(end, np.int32), np.array(base_depth, np.int32)
