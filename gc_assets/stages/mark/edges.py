"""Containers inside containers, as numbers: who names whom.

Every manifest list names all manifests of its table, so there are a hundred times more edges than
containers. Their texts are read as numbers into a dictionary, and the walk goes over the numbers.
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

# What the walk asks of an edge.
_COLUMNS: Final = ["container", "address", "kind", "storage", "key", "size_bytes", "snapshot_id", "must_exist"]
_TEXTS: Final = [name for name in _COLUMNS if EDGES.field(name).type == pa.string()]
# The columns of a child that come from the edge itself.
_OWN: Final = ["address", "kind", "storage", "key"]


def read_edges(files: Files, paths: Sequence[str]) -> pa.Table:
    """Returns the edges of segments, without the columns that only a decoder asks for. Texts are
    dictionaries.
    """
    parts = [pq.read_table(pa.BufferReader(content), columns=_COLUMNS, read_dictionary=_TEXTS) for content in files.contents(list(paths))]
    if not parts:
        return pa.schema([EDGES.field(name) for name in _COLUMNS]).empty_table()
    return pa.concat_tables(parts).unify_dictionaries()


class EdgeIndex:
    """The edges of a walk, level by level."""

    def __init__(self, edges: pa.Table) -> None:
        self._edges = edges
        self._parents, self._parent_of = _numbered(edges.column("container"))
        self._children, self._child_of = _numbered(edges.column("address"))
        self._size = pc.fill_null(edges.column("size_bytes"), -1).to_numpy()
        self._must_exist = edges.column("must_exist").to_numpy()

    def below(self, frontier: pa.Table) -> pa.Table:
        """Returns the containers inside those of `frontier` (columns `ROOTS`), each once, as the
        strongest container that names it passes them on.

        That is the one of the lowest rank, then of the first commit id, then of the first address.
        The size is known if any of the edges knows it. The object must exist if it must by any edge
        below a container that must.
        """
        ordered = frontier.sort_by([("rank", "ascending"), ("commit_id", "ascending"), ("address", "ascending")])
        places = pc.fill_null(pc.index_in(self._parents, ordered.column("address").combine_chunks()), -1)
        strength = places.to_numpy(zero_copy_only=False)[self._parent_of]
        edges = np.flatnonzero(strength >= 0)
        strength, child, count = strength[edges], self._child_of[edges], len(self._children)
        strongest = np.full(count, ordered.num_rows, strength.dtype)
        np.minimum.at(strongest, child, strength)
        of_strongest = strength == strongest[child]
        first = np.full(count, len(self._parent_of), np.int64)
        np.minimum.at(first, child[of_strongest], edges[of_strongest])
        size = np.full(count, -1, np.int64)
        np.maximum.at(size, child, self._size[edges])
        must_exist = np.zeros(count, np.bool_)
        parent_must = ordered.column("must_exist").to_numpy()
        must_exist[child[self._must_exist[edges] & parent_must[strength]]] = True
        found = np.flatnonzero(strongest < ordered.num_rows)
        own = self._edges.select([*_OWN, "container"]).take(pa.array(first[found]))
        passed_on = ordered.select(["rank", "commit_id", "table_uuid"]).take(pa.array(strongest[found]))
        columns = {name: own.column(name).cast(pa.string()) for name in _OWN} | {
            "is_container": pa.repeat(True, len(found)),
            "size_bytes": pa.array(size[found], mask=size[found] < 0),
            "must_exist": pa.array(must_exist[found]),
            "parent": own.column("container").cast(pa.string()),
            **{name: passed_on.column(name) for name in passed_on.column_names},
        }
        return pa.table({name: columns[name] for name in frontier.column_names}).cast(frontier.schema)


def _numbered(column: pa.ChunkedArray) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Returns the distinct texts of a column, and the place of each row's text among them."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = encoded.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no chunk at all
        return pa.array([], pa.string()), np.empty(0, np.int32)
    return whole.dictionary, whole.indices.to_numpy()
