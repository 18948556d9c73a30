"""Index the edges between containers by parent.

Every manifest list names all manifests of its table, so a lake has about a hundred times more edges
than containers. To save memory, edges are stored as numbers, with about 14 bytes each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.state.files import Files
from gc_assets.state.parts import open_part
from gc_assets.state.side_tables import EDGES

# Edge columns read by the walk.
_COLUMNS: Final = ["container", "address", "kind", "storage", "key", "size_bytes", "must_exist"]
_STRINGS: Final = [name for name in _COLUMNS if EDGES.field(name).type == pa.string()]
# Columns that are determined by the child's address.
_CHILD_COLUMNS: Final = ["address", "storage", "key"]
# Maximum number of edges that are followed in one step, to limit its memory.
MAX_STEP_EDGES: Final = 1_000_000

_Ids = npt.NDArray[np.int32]
_Numbers = npt.NDArray[np.int64]


def read_edges(files: Files, paths: Sequence[str]) -> EdgeIndex:
    """Read the edges of these parts, one part at a time."""
    sources = [open_part(content, _STRINGS) for content in files.contents(list(paths))]
    return EdgeIndex((source.read(_COLUMNS) for source in sources), sum(source.metadata.num_rows for source in sources))


class EdgeIndex:
    """A lake's edges between containers, indexed by parent.

    Rows with the same address are assumed to have the same storage and key, because a single
    resolver resolved all of them.
    """

    def __init__(self, parts: Iterable[pa.Table], count: int) -> None:
        """Index edges.

        Args:
            parts: Edges (columns `EDGES`, without the columns that only decoders need).
            count: Number of edges.
        """
        parents, addresses, kinds = _Encoder(count), _Encoder(count), _Encoder(count)
        self._size, self._must_exist = np.empty(count, np.int32), np.empty(count, np.bool_)
        children = [pa.schema([EDGES.field(name) for name in _CHILD_COLUMNS]).empty_table()]
        end = 0
        for part in parts:
            start, end = end, end + part.num_rows
            size = pc.fill_null(part.column("size_bytes"), -1).to_numpy()
            if self._size.dtype == np.int32 and size.max(initial=0) >= 2**31:
                self._size = self._size.astype(np.int64)
            self._size[start:end], self._must_exist[start:end] = size, part.column("must_exist").to_numpy()
            parents.add(part.column("container"))
            kinds.add(part.column("kind"))
            children.append(_first_of_each(part.select(_CHILD_COLUMNS), addresses.add(part.column("address"))))
        self._kinds, kind_of = kinds.merge()
        self._kind_of = kind_of.astype(np.int8)
        distinct, self._child_of = addresses.merge()
        known = pa.concat_tables(children)
        self._children = known.take(pc.index_in(distinct, known.column("address").combine_chunks()))
        self._parents, parent_of = parents.merge()
        # A container's edges are adjacent. If it was decoded twice, it has two such ranges.
        is_start = np.ones(count, np.bool_)
        np.not_equal(parent_of[1:], parent_of[:-1], out=is_start[1:])
        starts = np.flatnonzero(is_start)
        by_parent = np.argsort(parent_of[starts], kind="stable")
        self._starts, self._lengths = starts[by_parent], np.diff(starts, append=count)[by_parent]
        self._first_run = np.searchsorted(parent_of[starts][by_parent], np.arange(len(self._parents) + 1))

    def with_optional(self, addresses: pa.Array) -> EdgeIndex:
        """Return a copy in which children with these addresses do not have to exist."""
        optional = pc.is_in(self._children.column("address"), addresses).to_numpy()
        changed = copy.copy(self)
        changed._must_exist = self._must_exist & ~optional[self._child_of]
        return changed

    def children_of(self, frontier: pa.Table) -> pa.Table:
        """Return the distinct children of the containers in `frontier`.

        A child inherits from its strongest parent, which has the lowest rank, then the first commit
        id, then the first address. The child's size is the maximum over all edges. It must exist if
        any required parent requires it.

        Args:
            frontier: Containers with the columns `ROOTS`, which the result has too.
        """
        ordered = frontier.sort_by([("rank", "ascending"), ("commit_id", "ascending"), ("address", "ascending")])
        parent_must, count = ordered.column("must_exist").to_numpy(), self._children.num_rows
        first, strongest = np.full(count, -1, np.int64), np.zeros(count, np.int32)
        size, must_exist = np.full(count, -1, np.int64), np.zeros(count, np.bool_)
        for edges, strength in self._follow(ordered.column("address").combine_chunks()):
            child = self._child_of[edges]
            new = first[child] < 0
            # If several edges lead to a child, the first one wins, because it is assigned last.
            first[child[new][::-1]], strongest[child[new][::-1]] = edges[new][::-1], strength[new][::-1]
            np.maximum.at(size, child, self._size[edges].astype(np.int64))
            must_exist[child[self._must_exist[edges] & parent_must[strength]]] = True
        found = np.flatnonzero(first >= 0)
        own = self._children.take(pa.array(found))
        inherited = ordered.select(["address", "rank", "commit_id", "table_uuid"]).take(pa.array(strongest[found]))
        columns = {name: own.column(name) for name in _CHILD_COLUMNS} | {
            "kind": self._kinds.take(pa.array(self._kind_of[first[found]])),
            "is_container": pa.repeat(True, len(found)),
            "size_bytes": pa.array(size[found], mask=size[found] < 0),
            "must_exist": pa.array(must_exist[found]),
            "parent": inherited.column("address"),
            **{name: inherited.column(name) for name in ("rank", "commit_id", "table_uuid")},
        }
        return pa.table({name: columns[name] for name in frontier.column_names}).cast(frontier.schema)

    def _follow(self, ordered: pa.Array) -> Iterator[tuple[_Numbers, _Ids]]:
        """Yield edges and the position of each edge's parent, ordered by position."""
        found = pc.index_in(ordered, self._parents)
        positions = np.flatnonzero(found.is_valid())
        parents = found.drop_null().to_numpy()
        first, runs_of = self._first_run[parents], np.diff(self._first_run)[parents]
        runs, position_of = _ranges(first, runs_of), np.repeat(positions.astype(np.int32), runs_of)
        steps = np.cumsum(self._lengths[runs]) // MAX_STEP_EDGES
        for some in np.split(np.arange(len(runs)), np.flatnonzero(np.diff(steps)) + 1):
            lengths = self._lengths[runs[some]]
            yield _ranges(self._starts[runs[some]], lengths), np.repeat(position_of[some], lengths)


def _ranges(starts: _Numbers, lengths: _Numbers) -> _Numbers:
    """Concatenate the numbers of all ranges."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


class _Encoder:
    """Encode the strings of a column as numbers, in row order."""

    def __init__(self, count: int) -> None:
        self._ids = np.empty(count, np.int32)
        self._rows = self._values = 0
        self._dictionaries = [pa.array([], pa.string())]

    def add(self, column: pa.ChunkedArray) -> _Ids:
        """Add rows, and return numbers that are only valid among these rows."""
        if not len(column):
            return np.empty(0, np.int32)
        encoded = (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries().combine_chunks()
        indices = encoded.indices.to_numpy()
        np.add(indices, self._values, out=self._ids[self._rows : self._rows + len(indices)])
        self._rows += len(indices)
        self._values += len(encoded.dictionary)
        self._dictionaries.append(encoded.dictionary)
        return indices

    def merge(self) -> tuple[pa.Array, _Ids]:
        """Return the distinct strings of all rows, and for each row the number of its string."""
        merged = pa.concat_arrays(self._dictionaries).dictionary_encode()
        new_ids = merged.indices.to_numpy()
        for start in range(0, len(self._ids), MAX_STEP_EDGES):
            some = self._ids[start : start + MAX_STEP_EDGES]
            some[:] = new_ids[some]
        return merged.dictionary, self._ids


def _first_of_each(children: pa.Table, ids: _Ids) -> pa.Table:
    """Return the first row for each number, with decoded strings."""
    _, first = np.unique(ids, return_index=True)
    rows = children.take(pa.array(first))
    return pa.table({name: rows.column(name).cast(pa.string()) for name in _CHILD_COLUMNS})
