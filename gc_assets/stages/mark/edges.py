"""Edges between containers, as dictionary indices.

Every manifest list names all manifests of its table, so edges outnumber containers by a hundred to
one. Strings are therefore dictionary-encoded, and the walk uses the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.state.files import Files
from gc_assets.state.side_tables import EDGES

# Edge columns read by the walk.
_COLUMNS: Final = ["container", "address", "kind", "storage", "key", "size_bytes", "snapshot_id", "must_exist"]
_STRINGS: Final = [name for name in _COLUMNS if EDGES.field(name).type == pa.string()]
# Child columns contained in an edge.
_CHILD_COLUMNS: Final = ["address", "kind", "storage", "key"]


def read_edges(files: Files, paths: Sequence[str]) -> pa.Table:
    """Read edges with dictionary-encoded strings, without the columns needed only by decoders."""
    parts = [pq.read_table(pa.BufferReader(content), columns=_COLUMNS, read_dictionary=_STRINGS) for content in files.contents(list(paths))]
    if not parts:
        return pa.schema([EDGES.field(name) for name in _COLUMNS]).empty_table()
    return pa.concat_tables(parts).unify_dictionaries()


class EdgeIndex:
    """Edges of a lake, indexed by parent."""

    def __init__(self, edges: pa.Table) -> None:
        self._edges = edges
        self._parents, self._parent_of = _encode(edges.column("container"))
        self._children, self._child_of = _encode(edges.column("address"))
        self._size = pc.fill_null(edges.column("size_bytes"), -1).to_numpy()
        self._must_exist = edges.column("must_exist").to_numpy()

    def children_of(self, frontier: pa.Table) -> pa.Table:
        """Return the distinct children of the containers in `frontier` (columns `ROOTS`).

        A child inherits from its strongest parent: lowest rank, then first commit id, then first
        address. Its size is the maximum over all edges. It must exist if a required parent requires
        it.
        """
        ordered = frontier.sort_by([("rank", "ascending"), ("commit_id", "ascending"), ("address", "ascending")])
        positions = pc.fill_null(pc.index_in(self._parents, ordered.column("address").combine_chunks()), -1)
        strength = positions.to_numpy(zero_copy_only=False)[self._parent_of]
        edges = np.flatnonzero(strength >= 0)
        strength, child, count = strength[edges], self._child_of[edges], len(self._children)
        strongest = np.full(count, ordered.num_rows, strength.dtype)
        np.minimum.at(strongest, child, strength)
        is_strongest = strength == strongest[child]
        first = np.full(count, len(self._parent_of), np.int64)
        np.minimum.at(first, child[is_strongest], edges[is_strongest])
        size = np.full(count, -1, np.int64)
        np.maximum.at(size, child, self._size[edges])
        must_exist = np.zeros(count, np.bool_)
        parent_must = ordered.column("must_exist").to_numpy()
        must_exist[child[self._must_exist[edges] & parent_must[strength]]] = True
        found = np.flatnonzero(strongest < ordered.num_rows)
        own = self._edges.select([*_CHILD_COLUMNS, "container"]).take(pa.array(first[found]))
        inherited = ordered.select(["rank", "commit_id", "table_uuid"]).take(pa.array(strongest[found]))
        columns = {name: own.column(name).cast(pa.string()) for name in _CHILD_COLUMNS} | {
            "is_container": pa.repeat(True, len(found)),
            "size_bytes": pa.array(size[found], mask=size[found] < 0),
            "must_exist": pa.array(must_exist[found]),
            "parent": own.column("container").cast(pa.string()),
            **{name: inherited.column(name) for name in inherited.column_names},
        }
        return pa.table({name: columns[name] for name in frontier.column_names}).cast(frontier.schema)


def _encode(column: pa.ChunkedArray) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Return the distinct strings of a column, and the index of each row's string."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    combined = encoded.unify_dictionaries().combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # a column without chunks
        return pa.array([], pa.string()), np.empty(0, np.int32)
    return combined.dictionary, combined.indices.to_numpy()
