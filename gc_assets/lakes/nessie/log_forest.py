"""The logs of all refs as one forest of first parents, in arrays: who descends from whom, how deep,
how old.

Pure: knows commits by position, no policy and no contents. Positions are numbered so that a
commit's descendants form one interval. To find all ancestors of a commit takes two comparisons of
whole arrays.
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
    """The forest. `graph` has first parents only. `times` are microseconds since 1970. `depth`
    counts the commits below on the same log.

    The descendants of a commit, itself included, are the commits whose `number` lies in [its
    `number`, its `end`).
    """

    graph: CommitGraph
    times: Longs
    depth: Ints
    number: Ints
    end: Ints

    @classmethod
    def of(cls, lake: str, ids: pa.Array, parents: pa.Array, times: Longs) -> Self:
        """Builds the forest. `parents` lists the parents of each commit; the commit before it on
        its ref comes first.

        Raises `LakeUnreadable` for a log that runs in a circle. Hashes of contents cannot form one.
        """
        before = pc.list_slice(parents, 0, 1)
        graph = CommitGraph.build(ids, before, pa.array(times).cast(TIMESTAMP))
        chains = Chains.of(len(graph), graph.child, graph.parent)
        if (chains.chain < 0).any() or (graph.generation < 0).any():
            raise LakeUnreadable(f"lake {lake}: the log of commits runs in a circle ({graph.problems[0]}); the server is damaged")
        start, end, below = _intervals(chains)
        return cls(graph, times, below[chains.chain] + chains.depth, start[chains.chain] + chains.depth, end[chains.chain])

    def __len__(self) -> int:
        return len(self.times)

    def log(self, head: int) -> Bools:
        """Returns True for the head and for all that came before it on its ref."""
        return (self.number <= self.number[head]) & (self.number[head] < self.end)


def _intervals(chains: Chains) -> tuple[Ints, Ints, Ints]:
    """Returns for each chain the number of its oldest commit, the end of what descends from it, and
    how many commits lie below it.
    """
    count = len(chains)
    children: list[list[int]] = [[] for _ in range(count)]
    for child, parent in zip(chains.child.tolist(), chains.parent.tolist(), strict=True):
        children[parent].append(child)
    lengths = chains.length.tolist()
    start, end, below = ([0] * count for _ in range(3))
    has_parent = set(chains.child.tolist())
    pending = [chain for chain in range(count) if chain not in has_parent]
    reached = 0
    while pending:
        chain = pending.pop()
        if chain < 0:
            end[~chain] = reached
            continue
        start[chain] = reached
        reached += lengths[chain]
        pending.append(~chain)
        for child in children[chain]:
            below[child] = below[chain] + lengths[chain]
            pending.append(child)
    return np.array(start, np.int32), np.array(end, np.int32), np.array(below, np.int32)
