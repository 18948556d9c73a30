"""A commit graph in memory, with reachability queries and consistency checks.

A commit is represented by its index in the input. Edges lead from children to parents and are
stored in int32 arrays, so that graphs with up to 1e8 commits are possible. Contradictions are
reported in `problems`: a missing parent, a child that is older than its parent, or a cycle. They do
not prevent queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.chains import Chains, Ints, topological_order
from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.reachability import reachable_nodes, strong_components
from gc_assets.core.ref_sets import reaching_sets

MISSING_PARENT: Final = "missing_parent"
CHILD_OLDER: Final = "child_older_than_parent"
CYCLE: Final = "cycle"
ProblemKind = Literal["missing_parent", "child_older_than_parent", "cycle"]

MAX_SAMPLES: Final = 20
MAX_REFS: Final = 100
# Number of commits in a chunk of ref lists, because an Arrow list array is limited to 2 GiB.
_LIST_ROWS: Final = 2**16

_Column = pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class GraphProblem:
    """A kind of contradiction in the commit history, with examples.

    Attributes:
        what: The kind.
        count: Number of occurrences.
        samples: Up to 20 occurrences. Each is a pair of child and parent, or up to 20 commits of a
            cycle.
    """

    what: ProblemKind
    count: int
    samples: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        first = self.samples[0]
        if self.what == CYCLE:
            return f"{self.count:,} cycle(s) in the history, for example through {', '.join(first)}"
        finding = "a parent that is not in the graph" if self.what == MISSING_PARENT else "a younger parent"
        return f"{self.count:,} edge(s) to {finding}, for example {first[0]} to its parent {first[1]}"


@dataclass(frozen=True, eq=False)
class CommitGraph:
    """Commits, identified by index, and those of their parents that are in the graph.

    Attributes:
        child: The child of each edge. Edges are sorted by child, then by the order of its parents.
        parent: The parent of each edge.
        first_parent: The first parent of each commit, or -1 if it has none or the parent is unknown.
        generation: Topological level of each commit. It is 0 without known parents, otherwise one
            more than the highest level of a parent, and -1 for commits on or after a cycle.
        problems: Contradictions in the history.
    """

    commit_ids: pa.Array
    child: Ints
    parent: Ints
    first_parent: Ints
    generation: Ints
    problems: tuple[GraphProblem, ...]

    @classmethod
    def build(
        cls, commit_ids: pa.Array | pa.ChunkedArray, parents: pa.Array | pa.ChunkedArray, committed_at: pa.Array | pa.ChunkedArray
    ) -> Self:
        """Build the graph and check it for contradictions.

        Args:
            parents: For each commit, the ids of its parents in order.

        Raises:
            FormatError: If a commit id is missing or occurs twice.
        """
        ids, lists, times = _one_array(commit_ids), _one_array(parents), _one_array(committed_at)
        _check_unique(ids)
        of_child = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int32)
        named = pc.list_flatten(lists)
        found = pc.index_in(named, ids)
        known = found.is_valid().to_numpy(zero_copy_only=False)
        target = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)

        first_parent = np.full(len(ids), -1, np.int32)
        is_first = np.diff(of_child, prepend=-1) != 0
        first_parent[of_child[is_first]] = target[is_first]
        child, parent = of_child[known], target[known]
        generation = _generations(len(ids), child, parent)
        missing = np.flatnonzero(~known)
        problems = [
            _edges(MISSING_PARENT, ids.take(of_child[missing[:MAX_SAMPLES]]), named.take(missing[:MAX_SAMPLES]), len(missing)),
            _older_children(ids, times, child, parent),
            _cycles(ids, child, parent, generation),
        ]
        return cls(ids, child, parent, first_parent, generation, tuple(problem for problem in problems if problem is not None))

    def __len__(self) -> int:
        return len(self.commit_ids)

    def index_of(self, commits: Sequence[str]) -> Ints:
        """Look up the indices of commit ids.

        Raises:
            LakeUnreadable: If an id is not in the graph. The message contains an example.
        """
        # Hash the heads and look up the commits of the graph in them. Hashing the whole graph would
        # take longer.
        wanted = pa.array(commits, self.commit_ids.type)
        distinct = pc.unique(wanted)
        found = pc.fill_null(pc.index_in(self.commit_ids, distinct), -1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(found >= 0).astype(np.int32)
        index = np.full(len(distinct), -1, np.int32)
        index[found[rows]] = rows
        unknown = distinct.filter(pa.array(index < 0))
        if len(unknown):
            raise LakeUnreadable(
                f"{len(unknown):,} head(s) are missing from the {len(self):,} commits of the graph, for example {unknown[0]}: "
                "the history was read only in part, or changed during the run; run again"
            )
        return index[pc.index_in(wanted, distinct).to_numpy(zero_copy_only=False)]

    def reachable(self, heads: Iterable[str]) -> NDArray[np.bool_]:
        """Return a mask that is true for all heads and their ancestors.

        Raises:
            LakeUnreadable: If a head is not in the graph.
        """
        return reachable_nodes(len(self), self.child, self.parent, self.index_of(list(heads)))

    def reaching_refs(self, heads: Mapping[str, str]) -> tuple[pa.ChunkedArray, pa.Array]:
        """Find the refs that reach each commit.

        Args:
            heads: The head of each ref.

        Returns:
            A `list<string>` column with the first 100 names in alphabetical order, and an int32
            column with the number of all refs.
        """
        names = sorted(heads)
        starts = self.index_of([heads[name] for name in names])
        # The same refs reach all commits on a cycle, so a single node represents these commits.
        node = _components(self.child, self.parent, self.generation)
        child, parent = node[self.child], node[self.parent]
        between = child != parent
        sets = reaching_sets(int(node.max(initial=-1)) + 1, child[between], parent[between], node[starts], MAX_REFS)
        set_of = sets.set_of[node]
        lists = sets.lists(pa.array(names, pa.string()))
        chunks = [lists.take(pa.array(set_of[row : row + _LIST_ROWS])) for row in range(0, len(set_of), _LIST_ROWS)]
        return pa.chunked_array(chunks, lists.type), pa.array(sets.counts[set_of], pa.int32())


def merge_parents(listed: Iterable[Sequence[str] | None]) -> tuple[list[str], bool]:
    """Combine the parents of a commit that was read several times.

    In Iceberg, the same snapshot may have a parent in one metadata file but not in another, because
    pyiceberg removes parents when it expires history.

    Returns:
        All parents, and True if the commit was read with different parents.
    """
    readings = [tuple(parents or ()) for parents in listed]
    return list(dict.fromkeys(parent for parents in readings for parent in parents)), len(set(readings)) > 1


def _one_array(values: _Column) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _components(child: Ints, parent: Ints, generation: Ints) -> Ints:
    """Find the strongly connected component of each commit. Without cycles, all are distinct."""
    unleveled = (generation[child] < 0) & (generation[parent] < 0)
    if not unleveled.any():
        return np.arange(len(generation), dtype=np.int32)
    return strong_components(len(generation), child[unleveled], parent[unleveled])


def _check_unique(ids: pa.Array) -> None:
    if ids.null_count:
        raise FormatError(f"{ids.null_count:,} of {len(ids):,} commits have no id; expected one each")
    if len(pc.unique(ids)) < len(ids):
        counted = pc.value_counts(ids)
        repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        samples = ", ".join(repeated.slice(0, MAX_SAMPLES).to_pylist())
        raise FormatError(f"{len(repeated):,} commit id(s) occur more than once: {samples}; expected each once; merge their rows first")


def _generations(count: int, child: Ints, parent: Ints) -> Ints:
    chains = Chains.of(count, child, parent)
    lengths = chains.length.tolist()
    reached = [0] * len(chains)
    level = np.full(len(chains) + 1, -1, np.int32)  # the last element is for cycles, which are chain -1
    for chain, following in topological_order(len(chains), chains.parent, chains.child):
        level[chain] = reached[chain]
        above = reached[chain] + lengths[chain]
        for other in following:
            reached[other] = max(reached[other], above)
    oldest = level[chains.chain]
    return np.where(oldest >= 0, oldest + chains.depth, np.int32(-1)).astype(np.int32)


def _edges(kind: ProblemKind, children: pa.Array, parents: pa.Array, count: int) -> GraphProblem | None:
    samples = tuple((str(child), str(parent)) for child, parent in zip(children.to_pylist(), parents.to_pylist(), strict=True))
    return GraphProblem(kind, count, samples) if count else None


def _older_children(ids: pa.Array, times: pa.Array, child: Ints, parent: Ints) -> GraphProblem | None:
    known = times.is_valid().to_numpy(zero_copy_only=False)
    at = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    older = np.flatnonzero((at[child] < at[parent]) & known[child] & known[parent])
    some = older[:MAX_SAMPLES]
    return _edges(CHILD_OLDER, ids.take(child[some]), ids.take(parent[some]), len(older))


def _cycles(ids: pa.Array, child: Ints, parent: Ints, generation: Ints) -> GraphProblem | None:
    component = _components(child, parent, generation)
    on_cycle = np.unique(component[child][component[child] == component[parent]])
    samples = [ids.take(np.flatnonzero(component == cycle)[:MAX_SAMPLES]).to_pylist() for cycle in on_cycle[:MAX_SAMPLES]]
    return GraphProblem(CYCLE, len(on_cycle), tuple(tuple(sample) for sample in samples)) if len(on_cycle) else None
