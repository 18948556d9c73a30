"""Look up the contents of a Nessie server by id or by metadata file.

A content id identifies a table or view regardless of its key and branch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.stages.mark.content_roots import RootTables
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LIVE_CONTENTS

_COLUMNS = ("content_id", "metadata_location")


@dataclass(frozen=True)
class ContentIndex:
    """The live contents of a lake. The index is empty if the lake's kind has no contents.

    Attributes:
        rows: The contents' ids and metadata files (columns content_id, metadata_location).
    """

    rows: pa.Table

    @classmethod
    def read(cls, roots: RootTables) -> Self:
        """Read the table `live_contents` of a run."""
        return cls(read_parts(roots.files, list(roots.contents or ()), LIVE_CONTENTS.schema, list(_COLUMNS)))

    def addresses_of(self, ids: Collection[str]) -> pa.Array:
        """Return the addresses of the metadata files of the given contents."""
        is_own = pc.is_in(self.rows.column("content_id"), pa.array(sorted(ids), pa.string()))
        return self.rows.column("metadata_location").filter(is_own).combine_chunks()

    def ids_of(self, address: str) -> frozenset[str]:
        """Return the ids of all contents that use a metadata file.

        The result is empty if the id of one of these contents is unknown.
        """
        found = self._ids.get(address, frozenset())
        return frozenset(item for item in found if item is not None) if None not in found else frozenset()

    @cached_property
    def _ids(self) -> Mapping[str, frozenset[str | None]]:
        found: dict[str, set[str | None]] = {}
        for content_id, address in zip(*(self.rows.column(name).to_pylist() for name in _COLUMNS), strict=True):
            found.setdefault(address, set()).add(content_id)
        return {address: frozenset(ids) for address, ids in found.items()}
