"""Find live files that are missing from a listing.

After a new listing, usually no file is missing, which the counts prove. An earlier listing lacks
all files that were written after it. Comparing all live files with all objects would take longer
than listing the storage, so only hashes are compared. A collision does little harm, because it
hides a single file from checks that count missing files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import ROUTE, frame_from_arrow
from gc_assets.stages.mark.live_set import MAX_KEYS
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES, STORAGE_INVENTORY
from gc_assets.stores.protocol import LookUp

# Largest number of listed objects whose hashes the driver holds, with 8 bytes each, twice.
MAX_LISTED: Final = 20_000_000
# Executors look up larger numbers of files.
MAX_LOOKED_UP: Final = 20_000


@dataclass(frozen=True, slots=True)
class UnlistedFiles:
    """Live files of a storage whose keys are not in a listing.

    Attributes:
        hashes: Sorted hashes of the files' keys.
        rows: Files that must exist, but are missing or have another length than was decoded
            (columns of `live_files`), once for each lake that needs them. If there are too many to
            look up in the driver, all files that must exist.
    """

    hashes: NDArray[np.int64]
    rows: pa.Table

    @classmethod
    def find(cls, context: RunContext, keys: LiveKeys, inventory: PublishedTable, look_up: LookUp) -> Self | None:
        """Find live files whose hash is not listed, and look them up.

        The hashes of live files and listed objects are compared in the driver.

        Args:
            keys: The live keys of the storage.
            inventory: The listing.
            look_up: Looks up the unlisted files.

        Returns:
            The files, or None if there are too many of them.
        """
        hashes = find_unlisted_hashes(context, keys, inventory)
        return cls.read(keys, hashes, look_up) if hashes is not None and len(hashes) <= MAX_KEYS else None

    @classmethod
    def read(cls, keys: LiveKeys, hashes: NDArray[np.int64], look_up: LookUp) -> Self:
        """Look up the unlisted live files whose key hash is in `hashes` (sorted)."""
        required = read_unlisted_rows(keys, hashes).filter(pc.field("must_exist"))
        return cls(hashes, _without_found(required, look_up) if required.num_rows <= MAX_LOOKED_UP else required)

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
        """Return the files and an empty inventory, as frames of the same session."""
        session = choose_session(spark, self.rows.num_rows, 1)
        return frame_from_arrow(session, self.rows), frame_from_arrow(session, STORAGE_INVENTORY.schema.empty_table())

    def contains(self, keys: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return a mask of live keys that the inventory does not contain."""
        return is_in_sorted(xxhash64(keys), self.hashes)


def find_unlisted_hashes(context: RunContext, keys: LiveKeys, inventory: PublishedTable) -> NDArray[np.int64] | None:
    """Return the sorted hashes of live files that a listing does not contain.

    Returns None if the driver cannot hold the hashes of all live files and listed objects.
    """
    if inventory.rows > MAX_LISTED or not keys.runs_in_process:
        return None
    listed, found = _hash_inventory(context, inventory), [np.empty(0, np.int64)]
    for batch in keys.distinct():
        hashes = batch.column("key_hash").to_numpy()
        found.append(hashes[~is_in_sorted(hashes, listed)])
    return sort_distinct(np.concatenate(found))


def read_unlisted_rows(keys: LiveKeys, hashes: NDArray[np.int64]) -> pa.Table:
    """Return the live files with the given key hashes, one row for each lake that needs a file.

    Args:
        hashes: At most `MAX_KEYS` sorted hashes.

    Returns:
        Rows with the columns of `live_files`.
    """
    rows = [LIVE_FILES.schema.empty_table()]
    for item in keys.sets if len(hashes) else ():
        some = item.rows_of_hashes(keys.spark, hashes)
        mine = pc.and_(pc.equal(some.column("storage"), keys.storage), pc.equal(some.column(ROUTE), ""))
        rows.append(some.filter(mine).select(LIVE_FILES.schema.names))
    return pa.concat_tables(rows)


def _without_found(rows: pa.Table, look_up: LookUp) -> pa.Table:
    """Return the rows whose object is missing, or has another length than was decoded."""
    sizes, decoded = pa.array(look_up.look_up(rows.column("key").to_pylist()), pa.int64()), rows.column("container_size_bytes")
    is_as_long = pc.fill_null(pc.equal(pa.chunked_array([sizes]), decoded), fill_value=True)
    return rows.filter(pc.invert(pc.and_(pc.is_valid(sizes), is_as_long)))


def _hash_inventory(context: RunContext, inventory: PublishedTable) -> NDArray[np.int64]:
    """Return the sorted hashes of all listed keys."""
    schema = pa.schema([STORAGE_INVENTORY.schema.field("key")])
    scan = ParquetScan.of(context.state.files, schema, inventory.path, inventory.parts())
    hashes = [xxhash64(batch.column("key")) for batch in scan.read_batches()]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes]))
