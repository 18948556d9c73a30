"""Copy baseline rows with clean keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import digest
from gc_assets.core.plan import Amount
from gc_assets.engine.tables import Totals, add_totals, merge_written, report_parts
from gc_assets.engine.tasks import run_tasks
from gc_assets.stages.mark.incremental import BASELINE_DAMAGED, Baseline, BaselineInvalid
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, read_parts, read_verified
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.side_tables import DIRTY_KEYS

# Smaller parts are merged, so that the part count does not grow with every run.
SMALL_BYTES: Final = 4 * 2**20
# Bytes copied per task.
BUNDLE_BYTES: Final = 48 * 2**20


@dataclass(frozen=True, slots=True)
class ReusedRows:
    """Parts copied from a baseline.

    Attributes:
        parts: Parts of the table.
        side: Parts of the side tables.
        digest: Digest of the rows in `parts`.
        dropped: Totals of baseline rows that were not copied, by storage and kind.
        expected: Expected number of copied rows, including side tables.
        found: Actual number of copied rows.
    """

    parts: tuple[PartFile, ...]
    side: dict[str, tuple[PartFile, ...]]
    digest: int
    dropped: dict[tuple[str, ...], Totals]
    expected: int
    found: int

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def reuse_rows(spark: SparkSession, baseline: Baseline, run: TableRun, files: Files, dirty_keys: Sequence[str]) -> ReusedRows:
    """Copy the rows of clean keys into the run.

    Args:
        spark: Used only if the rows do not fit in this process.
        baseline: The baseline.
        run: Target run.
        files: The files of the state.
        dirty_keys: Paths of parts (columns `DIRTY_KEYS`).

    Raises:
        BaselineInvalid: If the baseline is damaged.
    """
    bundles = _bundle_parts(baseline.parts)
    task = _CopyRows(files, run, baseline.published.path, tuple(bundles), tuple(dirty_keys))
    size_bytes = sum(part.size_bytes for part in baseline.parts)
    written = merge_written(run_tasks(spark, task, len(bundles), size_bytes))
    if damaged := written.summary["damaged"]:
        raise BaselineInvalid(f"{BASELINE_DAMAGED}: {damaged[0]}")
    found = sum(part.rows for part in (*written.parts, *(part for parts in written.side.values() for part in parts)))
    own_digest = (int(baseline.published.receipt.digest, 16) - written.digest) % 2**64
    return ReusedRows(written.parts, written.side, own_digest, written.totals, baseline.rows - written.summary["dropped"], found)


def _bundle_parts(parts: Sequence[PartFile]) -> list[tuple[PartFile, ...]]:
    """Group the parts into tasks of about `BUNDLE_BYTES`."""
    bundles: list[list[PartFile]] = []
    room = 0
    for part in sorted(parts, key=lambda part: (part.name.rpartition("/")[0], part.size_bytes, part.name)):
        if not bundles or part.size_bytes > room:
            bundles.append([])
            room = BUNDLE_BYTES
        bundles[-1].append(part)
        room -= part.size_bytes
    return [tuple(bundle) for bundle in bundles]


@dataclass(frozen=True)
class _CopyRows:
    """Task that copies baseline parts without the rows of dirty keys.

    A part without dirty keys is copied byte by byte, unless it is small and has to be merged. The
    task reports digest and totals of the main table's rows that were not copied.
    """

    files: Files
    run: TableRun
    path: str
    bundles: tuple[tuple[PartFile, ...], ...]
    dirty_keys: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dirty = np.sort(read_parts(self.files, list(self.dirty_keys), DIRTY_KEYS, ["key_hash"]).column("key_hash").to_numpy())
        parts: list[PartFile] = []
        totals: dict[tuple[str, ...], Totals] = {}
        dropped_digest, dropped_rows = 0, 0
        damaged: list[str] = []
        for batch in batches:
            for number in batch.column("id").to_pylist():
                writers: dict[str, PartWriter] = {}
                for part in self.bundles[number]:
                    try:
                        content = read_verified(self.files, self.path, part)
                        dropped = self._copy_part(part, content, dirty, writers)
                    except (StateError, OSError, pa.ArrowException) as error:
                        damaged.append(str(error))
                        continue
                    if dropped is None:
                        parts.append(part)
                        continue
                    dropped_rows += dropped.num_rows
                    if "/" not in part.name:
                        dropped_digest = (dropped_digest + digest(dropped)) % 2**64
                        for rows in dropped.to_batches():
                            add_totals(totals, rows, ["storage", "kind"])
                parts += [part for writer in writers.values() for part in writer.close()]
        yield report_parts(parts, dropped_digest, totals, summary={"dropped": dropped_rows, "damaged": damaged})

    def _copy_part(self, part: PartFile, content: bytes, dirty: npt.NDArray[np.int64], writers: dict[str, PartWriter]) -> pa.Table | None:
        """Copy a part, and return the dropped rows, or None if it was copied byte by byte."""
        source = pq.ParquetFile(pa.BufferReader(content))
        if source.metadata.num_rows != part.rows:
            raise StateError(f"{self.path}/{part.name} has {source.metadata.num_rows:,} rows, but its receipt records {part.rows:,}")
        is_dirty = is_in_sorted(source.read(["key_hash"]).column("key_hash").to_numpy(), dirty)
        if not is_dirty.any() and (part.size_bytes >= SMALL_BYTES or not len(dirty)):
            self.files.replace(f"{self.run.path}/{part.name}", content)
            return None
        prefix = part.name.rpartition("/")[0]
        writer = writers.setdefault(prefix, PartWriter(self.files, self.run.path, LIVE_FILES.schema, prefix))
        dropped: list[pa.Table] = []
        first = 0
        for group in range(source.num_row_groups):
            rows = source.read_row_group(group).select(LIVE_FILES.schema.names).cast(LIVE_FILES.schema)
            is_dropped = is_dirty[first : first + rows.num_rows]
            first += rows.num_rows
            if is_dropped.any():
                dropped.append(rows.filter(pa.array(is_dropped)))
                rows = rows.filter(pa.array(~is_dropped))
            for batch in rows.to_batches():
                writer.write(batch)
        return pa.concat_tables([LIVE_FILES.schema.empty_table(), *dropped])


def is_in_sorted(values: npt.NDArray[np.int64], ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[at] == values


def amend_amounts(previous: Mapping[str, Amount], dropped: Mapping[str, Amount], new: Mapping[str, Amount]) -> dict[str, Amount]:
    """Subtract the amounts of dropped rows and add those of new rows.

    Raises:
        BaselineInvalid: If the dropped amounts exceed those of the baseline.
    """
    found: dict[str, Amount] = {}
    for name in sorted({*previous, *dropped, *new}):
        old, less, more = (amounts.get(name, Amount()) for amounts in (previous, dropped, new))
        files, size = old.files - less.files + more.files, old.bytes - less.bytes + more.bytes
        if old.files < less.files or old.bytes < less.bytes:
            raise BaselineInvalid(f"the previous run counts {old.files:,} files of {name!r}, but at least {less.files:,} were found")
        if files:
            found[name] = Amount(files=files, bytes=size)
    return found
