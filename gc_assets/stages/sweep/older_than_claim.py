"""Remember foreign files that were older than the claim on their location (rule `new_claim`).

A copy of a bucket, a new storage class or a restored backup gives such files new modification
times, but they still do not belong to the lake. A run remembers the files that the last accepted
run remembered or that it finds itself. It forgets files that are no longer foreign, for example
because a user has accepted their prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.foreign import NEW_CLAIM, KeyHashes
from gc_assets.core.hashing import xxhash64
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.stored_hashes import StoredHashes
from gc_assets.engine.tables import WrittenParts, collect_arrow, spark_schema
from gc_assets.engine.tasks import table_fits_in_process
from gc_assets.stages.sweep.table_memory import find_accepted_sweep
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import OLDER_THAN_CLAIM, OLDER_THAN_CLAIM_SIDE

_DECIDED: Final = pa.schema([ORPHAN_FILES.schema.field(name) for name in ("key", "foreign_rule")])
_CHANGES: Final = pa.schema([("key_hash", pa.int64()), ("is_older", pa.bool_())])


def read_older_files(context: RunContext, storage_name: str) -> StoredHashes | None:
    """Return files that the last accepted run remembered as older than their claim, or None."""
    swept = find_accepted_sweep(context, storage_name)
    parts = () if swept is None else swept.parts(OLDER_THAN_CLAIM_SIDE)
    if swept is None or not parts:
        return None
    return StoredHashes(ParquetScan.of(context.state.files, OLDER_THAN_CLAIM, swept.path, parts), sum(part.rows for part in parts))


def update_older_files(spark: SparkSession, remembered: KeyHashes | None, written: WrittenParts, run: TableRun, files: Files) -> pa.Table:
    """Return the files to remember after a sweep (`OLDER_THAN_CLAIM` columns).

    Args:
        remembered: The files that the last accepted run remembered.
        written: The parts of `orphan_files` written by the sweep.
    """
    known = np.empty(0, np.int64) if remembered is None else remembered.read_sorted()
    if written.rows and (remembered is not None or any(rule == NEW_CLAIM for *_, rule in written.totals)):
        scan, task = ParquetScan.of(files, _DECIDED, run.path, written.parts), _FindChanges(remembered)
        if table_fits_in_process(spark, written.rows, len(scan.paths)):
            found = pa.Table.from_batches(task(scan.read_batches()), _CHANGES)
        else:
            found = collect_arrow(scan.map_arrow(spark, task, spark_schema(_CHANGES)), _CHANGES)
        is_older = found.column("is_older")
        older, decided = (found.filter(mask).column("key_hash").to_numpy() for mask in (is_older, pc.invert(is_older)))
        known = sort_distinct(np.concatenate([known, older]))
        known = known[~is_in_sorted(known, np.sort(decided))]
    return pa.table({"key_hash": known}, OLDER_THAN_CLAIM)


@dataclass(frozen=True)
class _FindChanges:
    """Find files older than their claim, and remembered files that are not foreign any more.

    It is pickled and sent to Spark executors.
    """

    remembered: KeyHashes | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rule, hashes = batch.column("foreign_rule"), xxhash64(batch.column("key"))
            is_older = pc.fill_null(pc.equal(rule, NEW_CLAIM), False)
            is_wanted = is_older
            if self.remembered is not None:
                is_wanted = pc.or_(is_older, pc.and_(pa.array(self.remembered.contains(hashes)), pc.is_null(rule)))
            yield pa.RecordBatch.from_arrays([pa.array(hashes), is_older], schema=_CHANGES).filter(is_wanted)
