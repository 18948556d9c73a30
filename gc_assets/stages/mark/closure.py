"""Find all containers that content roots reach.

Containers are metadata files, and content roots are the files that a commit references directly.
The walk is a single task. A lake has only thousands of containers, so one Spark join per level
would take longer. During the walk, numbers represent containers and roots, because their addresses
would take most of its time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.stages.mark.edges import CHILDREN, EdgeIndex, Numbers
from gc_assets.state.side_tables import ROOTS

# Columns by which roots are compared. If all are equal, the first container by address is stronger.
_STRENGTH: Final = ("rank", "commit_id", "table_uuid", "parent")
_OF_WITNESS: Final = ["rank", "commit_id", "table_uuid"]
# The strength of containers that no root reaches. Root 0 is the strongest.
_UNREACHED: Final = np.int32(2**31 - 1)


def closure(roots: pa.Table, edges: EdgeIndex) -> pa.Table:
    """Find all reachable containers, each with the strongest commit that needs it.

    The strongest root of a container is the one with the lowest rank. Ties are decided by commit
    id, table UUID and address. In the result, a container's `parent` precedes it on a shortest path
    from this root, and `size_bytes` is the largest size that any root or any edge of a reachable
    parent records. `must_exist` is true if a root, or an edge from a container that must exist,
    requires the container.

    Apart from its row order, the result does not depend on the order of roots and edges. It can
    also be computed for the roots of each table, followed by the closure of these results without
    edges.

    Args:
        roots: Content roots (`ROOTS` columns), of which only containers are followed.
        edges: Edges between containers.

    Returns:
        One row per container, with the `ROOTS` columns.
    """
    rows, number_of, count = _sort_by_strength(roots, edges)
    found = _WalkState.of_roots(roots.select(["size_bytes", "must_exist"]).take(pa.array(rows)), number_of, count)
    own = found.list_reached()
    own_rows = pa.array(rows[found.strength[own]])
    found.follow(own, edges)
    children = edges.containers
    del edges  # Without another reference, this frees most of the memory.
    others = np.setdiff1d(found.list_reached(), own, assume_unique=True)
    numbers = np.concatenate([own, others])
    size, parent = found.size[numbers], found.parent[numbers]
    containers = pa.concat_tables([roots.select(CHILDREN.names).take(own_rows).cast(CHILDREN), children.take(pa.array(others))])
    witnesses = roots.select(_OF_WITNESS).take(pa.array(rows[found.strength[numbers]]))
    own_parents = pa.chunked_array([*roots.column("parent").take(own_rows).chunks, pa.nulls(len(others), pa.string())])
    columns = {
        **dict(zip(CHILDREN.names, containers.columns, strict=True)),
        **dict(zip(_OF_WITNESS, witnesses.columns, strict=True)),
        "is_container": pa.repeat(True, len(numbers)),
        "size_bytes": pa.array(size, mask=size < 0),
        "must_exist": pa.array(found.must_exist[numbers]),
        "parent": pc.coalesce(children.column("address").take(pa.array(parent, mask=parent < 0)), own_parents),
    }
    return pa.table({name: columns[name] for name in ROOTS.names}, ROOTS)


def _sort_by_strength(roots: pa.Table, edges: EdgeIndex) -> tuple[NDArray[np.int64], Numbers, int]:
    """Sort the content roots that are containers by strength.

    Returns:
        The row positions of these roots, beginning with the strongest, the number of each root's
        container, and the count of container numbers.
    """
    rows = np.flatnonzero(roots.column("is_container").to_numpy())
    numbers, count = _number_roots(roots.column("address").take(pa.array(rows)), edges)
    keys = roots.select(_STRENGTH).take(pa.array(rows)).append_column("number", pa.array(numbers))
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy()
    return rows[order], numbers[order], count


def _number_roots(addresses: pa.ChunkedArray, edges: EdgeIndex) -> tuple[Numbers, int]:
    """Return the number of each root's container, and the count of container numbers.

    Containers that occur in no edge are numbered after those of the edge index.
    """
    encoded, known = addresses.combine_chunks().dictionary_encode(), edges.containers.num_rows
    found = pc.fill_null(pc.index_in(encoded.dictionary, edges.containers.column("address")), -1).to_numpy()
    numbers = np.where(found < 0, known + np.arange(len(found), dtype=np.int32), found)
    return numbers[encoded.indices.to_numpy()], known + len(found)


@dataclass(frozen=True, slots=True)
class _WalkState:
    """The findings of a walk so far, as arrays indexed by container number.

    Attributes:
        strength: The strongest root that reaches the container.
        parent: The container's parent on the path from this root, or -1 if it is the root.
        size: The largest recorded size in bytes, or -1 if none is recorded.
        must_exist: Whether a root or an edge requires the container.
    """

    strength: Numbers
    parent: Numbers
    size: NDArray[np.int64]
    must_exist: NDArray[np.bool_]

    @classmethod
    def of_roots(cls, roots: pa.Table, numbers: Numbers, count: int) -> Self:
        """Begin a walk at content roots.

        Args:
            roots: The columns size_bytes and must_exist of the roots, beginning with the strongest.
            numbers: The container of each root.
            count: The number of containers.
        """
        found = cls(np.full(count, _UNREACHED), np.full(count, -1, np.int32), np.full(count, -1), np.zeros(count, np.bool_))
        np.minimum.at(found.strength, numbers, np.arange(len(numbers), dtype=np.int32))
        np.maximum.at(found.size, numbers, pc.fill_null(roots.column("size_bytes"), -1).to_numpy())
        found.must_exist[numbers[roots.column("must_exist").to_numpy()]] = True
        return found

    def list_reached(self) -> Numbers:
        """Return the numbers of the containers that any root reaches."""
        return np.flatnonzero(self.strength < _UNREACHED).astype(np.int32)

    def follow(self, frontier: Numbers, edges: EdgeIndex) -> None:
        """Follow edges level by level from the containers of a frontier.

        A container is visited again if a stronger root reaches it on a longer path, or if such a
        path requires it to exist. Therefore, the walk ends even if there are cycles.
        """
        while len(frontier):
            # Strength and parent as one number, so that the strongest root and its first parent win.
            best = np.full(len(self.strength), np.int64(_UNREACHED) << 32)
            required = np.zeros(len(self.strength), np.bool_)
            for some in edges.follow(frontier[frontier < edges.containers.num_rows]):
                np.minimum.at(best, some.child, self.strength[some.parent].astype(np.int64) << 32 | some.parent)
                np.maximum.at(self.size, some.child, some.size)
                required[some.child[some.must_exist & self.must_exist[some.parent]]] = True
            is_stronger = best >> 32 < self.strength
            self.strength[is_stronger] = best[is_stronger] >> 32
            self.parent[is_stronger] = best[is_stronger] & 0xFFFF_FFFF
            frontier = np.flatnonzero(is_stronger | (required & ~self.must_exist)).astype(np.int32)
            self.must_exist[required] = True
