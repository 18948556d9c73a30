"""Compare candidates with the live keys, after the live filter.

If a candidate equals a live key, the filter has lost a live file. If it differs from a live key
only in its spelling, such as percent-encoding or Unicode composition, it may be a live file too.

See docs/adr/0001-exact-comparison-after-the-filter.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.hashing import xxhash64
from gc_assets.core.key_resolver import loosen_spelling
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import map_arrow
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.files import Files
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CANDIDATES


def find_collisions(files: Files, keys: LiveKeys, candidate_paths: Sequence[str]) -> pa.Array:
    """Return candidates that may be live although they have the same hash as a released file.

    Files that lifecycle rules release are removed from the live keys by hash. A live file with the
    same hash is then missing from the live keys too, and would look like garbage.
    """
    found = [pa.array([], pa.string())]
    for item in keys.sets:
        released = item.read_released(keys.storage)
        hashes = sort_distinct(xxhash64(released)) if len(released) else np.empty(0, np.int64)
        for path in candidate_paths if len(hashes) else ():
            candidates = read_parts(files, [path], CANDIDATES, ["key"]).column("key")
            candidates = candidates.filter(pa.array(is_in_sorted(xxhash64(candidates), hashes)))
            found.append(candidates.filter(pc.invert(pc.is_in(candidates, released))).combine_chunks())
    return pa.concat_arrays(found)


def ignores_case(context: RunContext, storage_name: str) -> bool:
    """Check whether names that differ only in case may refer to one file, as on an SMB mount."""
    return context.store(storage_name).has_aliases


def find_hits(candidates: DataFrame, keys: DataFrame, *, ignore_case: bool) -> DataFrame:
    """Find candidates that equal a live key, exactly or except for spelling.

    Since this is an expensive join, it only runs if a candidate and a live key have the same hash
    (`candidate_matches.py`).

    Args:
        keys: The live keys.
        ignore_case: True if keys that differ only in case may refer to the same file.

    Returns:
        A frame with the columns key and exact. `exact` is false if only the spelling differs.
    """
    twins = find_twins(candidates, keys, ignore_case=ignore_case)
    return twins.groupBy("key").agg(F.max(F.col("key") == F.col("live_key")).alias("exact"))


def find_twins(candidates: DataFrame, keys: DataFrame, *, ignore_case: bool) -> DataFrame:
    """Join candidates with the live keys that they equal, exactly or except for spelling.

    Returns:
        A frame with the columns key and live_key.
    """
    spelled = map_arrow(candidates.select("key"), _AddLooseForm("key", ignore_case), _AddLooseForm.schema("key"))
    live_spelled = map_arrow(keys.select("key"), _AddLooseForm("live_key", ignore_case), _AddLooseForm.schema("live_key"))
    return spelled.join(live_spelled, "loose").select("key", "live_key")


@dataclass(frozen=True)
class _AddLooseForm:
    """Add a column with the normalized spelling of keys, and rename the key column to `name`."""

    name: str
    ignore_case: bool

    @staticmethod
    def schema(name: str) -> pa.Schema:
        return pa.schema([(name, pa.string()), ("loose", pa.string())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column(0)
            yield pa.RecordBatch.from_arrays([keys, _loosen(keys, self.ignore_case)], schema=self.schema(self.name))


def _loosen(keys: pa.Array, ignore_case: bool) -> pa.Array:
    loose = loosen_spelling(keys)
    return pc.utf8_lower(loose) if ignore_case else loose
