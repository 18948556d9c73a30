"""Count missing live files by the hashes of their keys, if there are too many to join their names.

If a whole location is missing or is spelled differently, every live file is unlisted. Two passes
over the cached entries in the driver replace a join of all names. A collision of hashes can make
the count wrong by one, but it never makes a file a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Owner
from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import group_sorted, is_in_sorted, sort_distinct
from gc_assets.engine.tables import MAX_SAMPLES, collect_arrow
from gc_assets.stages.mark.container_scan import KIND_COUNT
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.sweep_checks import MissingLiveFiles
from gc_assets.state.parts import GROUP_ROWS, PartWriter

# Files that do not have to exist for a lake, or for any lake if `lake` is missing.
EXCUSED: Final = pa.schema([("lake", pa.string()), ("key_hash", pa.int64())])
# Hashes of keys, the strongest witness and kind of each file, and whether the file must exist.
_Files = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def hash_excused(quarantined: DataFrame, purged: DataFrame) -> pa.Table:
    """Hash the keys of files that do not have to exist.

    Args:
        quarantined: The quarantine ledger.
        purged: Keys purged because a rule of their lake allowed it (columns key, lake). They do not
            have to exist for that lake.

    Returns:
        Rows with the `EXCUSED` columns.
    """
    waiting = quarantined.select(F.lit(None).cast("string").alias("lake"), "key")
    rows = waiting.unionByName(purged.select("lake", "key"))
    return collect_arrow(rows.select("lake", F.xxhash64("key").alias("key_hash")), EXCUSED)


def count_missing(
    keys: LiveKeys, unlisted: NDArray[np.int64], broken: Collection[Owner], excused: pa.Table, writer: PartWriter
) -> MissingLiveFiles:
    """Count and record live files that must exist, but are neither listed nor excused.

    The result equals that of `find_unlisted` if no file needs to be looked up, because this run
    listed the storage itself.

    Args:
        keys: The live keys of all lakes, which the driver must be able to read.
        unlisted: Sorted hashes of the live keys that are not listed.
        broken: Tables and lakes whose files are not counted.
        excused: Files that do not have to exist (`EXCUSED` columns).
        writer: Writes the missing files (`MISSING_LIVE` columns).
    """
    missing, owners = [np.empty(0, np.int64)], dict[Owner, int]()
    for item, hashes in zip(keys.sets, keys.lakes, strict=True):
        mine = pc.fill_null(pc.equal(excused.column("lake"), item.lake), True)
        needed = unlisted[~is_in_sorted(unlisted, np.sort(excused.column("key_hash").filter(mine).to_numpy()))]
        found, found_owners = _find_required(item, hashes, keys.storage, needed, broken)
        _write_missing(writer, item.lake, found)
        missing.append(found)
        owners |= found_owners
    distinct = sort_distinct(np.concatenate(missing))
    return MissingLiveFiles(len(distinct), _find_first_keys(keys, distinct), owners, tuple(writer.close()))


def _write_missing(writer: PartWriter, lake: str, hashes: NDArray[np.int64]) -> None:
    lakes = pa.DictionaryArray.from_arrays(np.zeros(len(hashes), np.int8), [lake])  # takes a byte per row
    for batch in pa.table({"lake": lakes, "key_hash": hashes}).to_batches(max_chunksize=GROUP_ROWS):
        writer.write(batch)


def _find_required(
    live_set: LiveSet, hashes: LiveHashes, storage: str, wanted: NDArray[np.int64], broken: Collection[Owner]
) -> tuple[NDArray[np.int64], dict[Owner, int]]:
    """Select a lake's live files that must exist.

    Args:
        wanted: Sorted hashes of the keys of missing files. Other files are not selected.

    Returns:
        The hashes of their keys, and the tables that need them, with the number of files.
    """
    position, select = hashes.scan.storages.index(storage), hashes.live_keys(storage)
    key_hash, strongest, must_exist = _group_files(_hash_files(live_set.match(), position))
    tables = hashes.states.witnesses.sort_by("witness").column("table_uuid")
    uuids = [owner.table_uuid for owner in broken if owner.lake == live_set.lake]
    is_broken = pc.is_in(tables, pa.array(uuids, pa.string())).to_numpy() | (None in uuids)  # None means the whole lake
    witness = strongest // KIND_COUNT
    selected = must_exist & (strongest < select.first_released) & ~is_broken[witness]
    selected &= is_in_sorted(key_hash, wanted) & ~select.is_released(key_hash)
    by_table, counts = Counter[Owner](), np.bincount(witness[selected])
    for uuid, files in zip(tables.take(pa.array(np.flatnonzero(counts))).to_pylist(), counts[counts > 0].tolist(), strict=True):
        by_table[Owner(live_set.lake, uuid)] += files
    return key_hash[selected], by_table


def _hash_files(batches: Iterable[pa.RecordBatch], position: int) -> Iterator[_Files]:
    """Hash the keys of one storage's files, given in batches with the `KEYED` columns."""
    for batch in batches:
        mine = batch.filter(pc.equal(batch.column("storage"), position))
        must_exist = mine.column("must_exist").to_numpy(zero_copy_only=False)
        yield xxhash64(mine.column("key")), mine.column("strongest").to_numpy(), must_exist


def _group_files(rows: Iterable[_Files]) -> _Files:
    """Group the rows of each file by the hash of its key.

    A file must exist if it must exist according to any of its rows. Its witness is the strongest
    one.
    """
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    key_hash, strongest, must_exist = map(np.concatenate, zip(none, *rows, strict=True))
    order, first = group_sorted(key_hash)
    return key_hash[order[first]], np.minimum.reduceat(strongest[order], first), np.logical_or.reduceat(must_exist[order], first)


def _find_first_keys(keys: LiveKeys, hashes: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the alphabetically first live keys whose hash is in `hashes`, at most `MAX_SAMPLES`."""
    first = pa.array([], pa.string())
    for item, lake in zip(keys.sets, keys.lakes, strict=True) if len(hashes) else ():
        position = lake.scan.storages.index(keys.storage)
        for batch in item.match():
            found = batch.column("key").filter(pc.equal(batch.column("storage"), position))
            if len(first) == MAX_SAMPLES:
                found = found.filter(pc.less(found, first[-1]))
            found = found.filter(pa.array(is_in_sorted(xxhash64(found), hashes)))
            distinct = pc.unique(pa.concat_arrays([first, found]))
            first = distinct.take(pc.sort_indices(distinct)).slice(0, MAX_SAMPLES)
    return tuple(first.to_pylist())
