"""Look up the decoded objects of the containers that a walk found.

Addresses are compared once. After that, a container is a row number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.arrow_rows import exclude_rows
from gc_assets.state.side_tables import IDENTITY_SEPARATOR

# Columns of `CONTAINERS` that `DecodedContainers` needs.
DECODED_COLUMNS: Final = ("container", "container_size_bytes", "entries", "etag", "digest", "files")


@dataclass(frozen=True, slots=True)
class DecodedContainers:
    """Decoded objects, matched with the containers that have the same address.

    Attributes:
        objects: One row per object (columns container_size_bytes, etag, digest, files).
        row_of: The row number of each object's container.
        longest: The length in bytes of each container's longest object, or -1 if it was never
            decoded.
    """

    objects: pa.Table
    row_of: NDArray[np.int32]
    longest: NDArray[np.int64]

    @classmethod
    def match(cls, index: pa.Table, containers: pa.Table) -> Self:
        """Match decoded objects with containers.

        Args:
            index: Decoded objects (`DECODED_COLUMNS` columns).
            containers: The containers (`ROOTS` columns), which are distinct.
        """
        row_of = pc.index_in(index.column("container"), containers.column("address"))
        objects = exclude_rows(index.select(["container_size_bytes", "etag", "digest", "files"]), pc.is_null(row_of))
        rows, longest = row_of.drop_null().to_numpy(), np.full(containers.num_rows, -1)
        np.maximum.at(longest, rows, objects.column("container_size_bytes").to_numpy())
        return cls(objects, rows, longest)

    def find_lengths(self, recorded: pa.ChunkedArray) -> pa.Array:
        """Return the length in bytes of each container's decoded object.

        The value is missing if the container was not decoded.

        Args:
            recorded: The length that the object of each container must have. If it is missing, the
                longest object is used.
        """
        expected = pc.fill_null(recorded, -1).to_numpy()
        matches = self.row_of[self.objects.column("container_size_bytes").to_numpy() == expected[self.row_of]]
        lengths = np.full(len(expected), -1)
        lengths[matches] = expected[matches]
        lengths = np.where(expected < 0, self.longest, lengths)
        return pa.array(lengths, mask=lengths < 0)

    def count_files(self) -> pa.Array:
        """Return the number of file entries of each container."""
        counts = np.zeros(len(self.longest), np.int64)
        np.add.at(counts, self.row_of, pc.fill_null(self.objects.column("files"), 0).to_numpy())
        return pa.array(counts)

    def join_identities(self, lengths: pa.Array | pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
        """Join the ETags and digests of those objects of each container that have the given length."""
        wanted = pc.fill_null(lengths, -1).to_numpy()
        is_wanted = self.objects.column("container_size_bytes").to_numpy() == wanted[self.row_of]
        rows = self.objects.select(["etag", "digest"]).append_column("row", pa.array(self.row_of)).filter(pa.array(is_wanted))
        by = rows.group_by("row", use_threads=False).aggregate([("etag", "distinct"), ("digest", "distinct")])
        at = pc.index_in(pa.array(np.arange(len(wanted), dtype=np.int32)), by.column("row"))
        return {name: pc.binary_join(by.column(f"{name}_distinct"), IDENTITY_SEPARATOR).take(at) for name in ("etag", "digest")}
