"""Index the edges between containers by parent.

Every manifest list contains all manifests of its table, so a lake has about a hundred times more
edges than containers. To save memory, edges are stored as numbers, with about 9 bytes each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.state.files import Files
from gc_assets.state.parts import decode_each, open_part
from gc_assets.state.side_tables import EDGES

# Edge columns read by the walk.
_COLUMNS: Final = ["container", "address", "kind", "storage", "key", "size_bytes", "must_exist"]
_STRINGS: Final = [name for name in _COLUMNS if EDGES.field(name).type == pa.string()]
# Columns of a child, which its address determines.
CHILDREN: Final = pa.schema([EDGES.field(name) for name in ("address", "kind", "storage", "key")])
_DETAILS: Final = CHILDREN.remove(0)
# Maximum number of edges that are followed in one step, to limit its memory.
MAX_STEP_EDGES: Final = 1_000_000

Numbers = NDArray[np.int32]
_Positions = NDArray[np.int64]


class Edges(NamedTuple):
    """Edges between numbered containers, as columns of equal length. An unknown size is -1."""

    parent: Numbers
    child: Numbers
    size: _Positions
    must_exist: NDArray[np.bool_]


def read_edges(files: Files, paths: Sequence[str]) -> EdgeIndex:
    """Read the edges between containers from Parquet parts, one part at a time."""
    sources = list(decode_each(files, list(paths), lambda content: iter((open_part(content, _STRINGS),))))
    # Threads would keep memory for themselves.
    return EdgeIndex((source.read(_COLUMNS, use_threads=False) for source in sources), sum(source.metadata.num_rows for source in sources))


class EdgeIndex:
    """A lake's edges between containers, indexed by parent.

    Containers are numbered in the order of their addresses. Rows with the same address are assumed
    to have the same kind, storage and key.

    Attributes:
        containers: All containers that occur in edges, ordered by number (`CHILDREN` columns). If a
            container is no other's child, only its address is known.
    """

    def __init__(self, parts: Iterable[pa.Table], count: int) -> None:
        """Index edges.

        Args:
            parts: Edges (`EDGES` columns, without the columns that only decoders need).
            count: Number of edges.
        """
        self._child_of, self._size, self._must_exist = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.bool_)
        names, starts, parents = _Numbering(), [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        named, details = [np.empty(0, np.int32)], [_DETAILS.empty_table()]
        end = 0
        for part in filter(len, parts):
            start, end = end, end + len(part)
            parent, child = names.add(part.column("container")), names.add(part.column("address"))
            # A container's edges are adjacent. If it was decoded twice, it has two such runs.
            is_start = np.diff(parent, prepend=-1) != 0
            starts.append(np.flatnonzero(is_start) + start)
            parents.append(parent[is_start])
            first = _first_of_each(child)
            named.append(child[first])
            details.append(part.select(_DETAILS.names).take(pa.array(first)).cast(_DETAILS))
            size = pc.fill_null(part.column("size_bytes"), -1).to_numpy()
            if self._size.dtype == np.int32 and size.max() >= 2**31:
                self._size = self._size.astype(np.int64)
            self._child_of[start:end], self._size[start:end] = child, size
            self._must_exist[start:end] = part.column("must_exist").to_numpy()
        addresses, numbers = names.merge()
        for start in range(0, count, MAX_STEP_EDGES):
            some = self._child_of[start : start + MAX_STEP_EDGES]
            some[:] = numbers[some]
        start_of, parent_of = np.concatenate(starts), numbers[np.concatenate(parents)]
        by_parent = np.argsort(parent_of, kind="stable")
        self._starts, self._lengths = start_of[by_parent], np.diff(start_of, append=count)[by_parent]
        self._first_run = np.searchsorted(parent_of[by_parent], np.arange(len(addresses) + 1))
        row_of = np.full(len(addresses), -1, np.int64)
        row_of[numbers[np.concatenate(named)]] = np.arange(sum(map(len, named)))
        known = pa.concat_tables(details).take(pa.array(row_of, mask=row_of < 0))
        self.containers = pa.table([addresses, *known.columns], CHILDREN)

    def with_optional(self, addresses: pa.Array) -> EdgeIndex:
        """Return a copy of the index in which the given children do not have to exist."""
        optional = pc.is_in(self.containers.column("address"), addresses).to_numpy()
        changed = copy.copy(self)
        changed._must_exist = self._must_exist & ~optional[self._child_of]
        return changed

    def follow(self, parents: Numbers) -> Iterator[Edges]:
        """Yield the edges from the given parents, in steps of about `MAX_STEP_EDGES` edges."""
        counts = np.diff(self._first_run)[parents]
        runs, parent_of = _ranges(self._first_run[parents], counts), np.repeat(parents, counts)
        steps = np.cumsum(self._lengths[runs]) // MAX_STEP_EDGES
        for some in np.split(np.arange(len(runs)), np.flatnonzero(np.diff(steps)) + 1):
            lengths = self._lengths[runs[some]]
            at = _ranges(self._starts[runs[some]], lengths)
            yield Edges(np.repeat(parent_of[some], lengths), self._child_of[at], self._size[at].astype(np.int64), self._must_exist[at])


class _Numbering:
    """Number the strings of several columns, which are added one at a time."""

    def __init__(self) -> None:
        self._dictionaries = [pa.array([], pa.string())]
        self._count = 0

    def add(self, column: pa.ChunkedArray) -> Numbers:
        """Return a preliminary number for each row. The same string has another one in each column."""
        encoded = (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries().combine_chunks()
        numbers = encoded.indices.to_numpy() + np.int32(self._count)
        self._dictionaries.append(encoded.dictionary)
        self._count += len(encoded.dictionary)
        return numbers

    def merge(self) -> tuple[pa.Array, Numbers]:
        """Return the sorted distinct strings, and the final number for each preliminary number."""
        strings = pa.concat_arrays(self._dictionaries)
        self._dictionaries.clear()
        order = pc.sort_indices(strings)
        strings, order = strings.take(order), order.to_numpy()
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = pc.not_equal(strings[1:], strings[:-1]).to_numpy(zero_copy_only=False)
        numbers = np.empty(len(order), np.int32)
        numbers[order] = np.cumsum(is_first) - 1
        return strings.filter(pa.array(is_first)), numbers


def _first_of_each(numbers: Numbers) -> _Positions:
    """Return the position of the first occurrence of each number."""
    low = numbers.min()
    first = np.full(numbers.max() - low + 1, -1, np.int64)
    first[numbers[::-1] - low] = np.arange(len(numbers) - 1, -1, -1)
    return first[first >= 0]


def _ranges(starts: _Positions, lengths: _Positions) -> _Positions:
    """Concatenate the numbers of all ranges with these starts and lengths."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
