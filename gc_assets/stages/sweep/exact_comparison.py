"""Compare candidates with the live keys, after the live filter.

A candidate that equals a live key proves that the filter lost a live file. A candidate that differs
from a live key only in its spelling may be a live file.

See docs/adr/0001-exact-comparison-after-the-filter.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.hashing import xxhash64
from gc_assets.core.key_resolver import loosen_spelling
from gc_assets.core.sorted_hashes import is_in_sorted
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import map_arrow
from gc_assets.stages.mark.file_entries import loose_form
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CANDIDATES

# Largest compressed size of candidates (some millions of rows) that each worker holds in memory.
# More candidates are compared by a join.
IN_MEMORY_CANDIDATES: Final = 64 * 2**20


def may_hit(spark: SparkSession, context: RunContext, storage_name: str, live: list[PublishedTable], candidate_paths: list[str]) -> bool:
    """Check if any live key may equal a candidate, exactly or up to spelling.

    The check is one pass over the hashes of live keys. If there are too many candidates for the
    memory of a worker, the result is True without a check, and `find_hits` decides.
    """
    if not candidate_paths:
        return False
    size_bytes = sum(context.state.files.size(path) for path in candidate_paths)
    if size_bytes > IN_MEMORY_CANDIDATES:
        return True
    equal = _CountEqual(context.state.files, tuple(candidate_paths))
    found = LiveKeys.of(spark, context, storage_name, live).run_task(equal, "hits long", size_bytes)
    return sum(row["hits"] for row in found) > 0


def find_collisions(context: RunContext, storage_name: str, live: list[PublishedTable], candidate_paths: list[str]) -> pa.Array:
    """Return the candidates that may be live although their hash is that of a released file.

    The live keys leave out released files by their hashes, so they may lack such a candidate.
    """
    found = [pa.array([], pa.string())]
    for table in live:
        released = LiveSet(context, table).read_released(storage_name)
        hashes = np.unique(xxhash64(released)) if len(released) else np.empty(0, np.int64)
        for path in candidate_paths if len(hashes) else ():
            keys = read_parts(context.state.files, [path], CANDIDATES, ["key"]).column("key")
            keys = keys.filter(pa.array(is_in_sorted(xxhash64(keys), hashes)))
            found.append(keys.filter(pc.invert(pc.is_in(keys, released))).combine_chunks())
    return pa.concat_arrays(found)


def ignores_case(context: RunContext, storage_name: str) -> bool:
    """Return True if names that differ only in case may be one file, as on an SMB mount."""
    return context.store(storage_name).has_aliases


def find_hits(candidates: DataFrame, keys: DataFrame, *, ignore_case: bool) -> DataFrame:
    """Find the candidates that equal a live key (columns key, exact).

    `exact` is false if only the spelling-insensitive forms are equal. This is a join, so it runs
    only if `may_hit` returns True.
    """
    twins = find_twins(candidates, keys, ignore_case=ignore_case)
    return twins.groupBy("key").agg(F.max(F.col("key") == F.col("live_key")).alias("exact"))


def find_twins(candidates: DataFrame, keys: DataFrame, *, ignore_case: bool) -> DataFrame:
    """Join candidates and live keys by their spelling-insensitive form (columns key, live_key)."""
    spelled = map_arrow(candidates.select("key"), _AddLooseForm("key", ignore_case), _AddLooseForm.schema("key"))
    live_spelled = map_arrow(keys.select("key"), _AddLooseForm("live_key", ignore_case), _AddLooseForm.schema("live_key"))
    return spelled.join(live_spelled, "loose").select("key", "live_key")


@dataclass(frozen=True)
class _AddLooseForm:
    """Add the spelling-insensitive form of keys, and rename the key column to `name`."""

    name: str
    ignore_case: bool

    @staticmethod
    def schema(name: str) -> pa.Schema:
        return pa.schema([(name, pa.string()), ("loose", pa.string())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column(0)
            yield pa.RecordBatch.from_arrays([keys, _loosen(keys, self.ignore_case)], schema=self.schema(self.name))


@dataclass(frozen=True)
class _CountEqual:
    """Count the live entries that equal a candidate in their spelling-insensitive form.

    Keys that are exactly equal also have the same form.
    """

    files: Files
    candidates: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        candidates = _loose_hashes(self.files, self.candidates)
        hits = 0
        for batch in batches:
            hits += int(is_in_sorted(batch.column("loose_hash").to_numpy(), candidates).sum())
        yield pa.RecordBatch.from_pydict({"hits": [hits]})


@lru_cache(maxsize=1)
def _loose_hashes(files: Files, paths: tuple[str, ...]) -> NDArray[np.int64]:
    keys = read_parts(files, list(paths), CANDIDATES, ["key"]).column("key")
    return np.unique(xxhash64(loose_form(keys)))


def _loosen(keys: pa.Array, ignore_case: bool) -> pa.Array:
    loose = loosen_spelling(keys)
    return pc.utf8_lower(loose) if ignore_case else loose
