"""Select cached entries by container or key, so that Spark does not join the whole cache.

Entries are copied unchanged; `witnesses.py` decides which of them are relevant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from gc_assets.engine.state_scan import group_by_size, may_contain, read_errors
from gc_assets.engine.tables import merge_written, report_parts
from gc_assets.engine.tasks import run_tasks
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import PartWriter, add_missing_columns, missing_columns, read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.side_tables import SELECTED_ENTRIES

# Every task holds all values in memory. Longer lists are joined by Spark.
MAX_VALUES: Final = 500_000


def select_entries(
    spark: SparkSession,
    files: Files,
    run: TableRun,
    paths: Sequence[str],
    by: Literal["container", "key"],
    values: Sequence[str],
    prefix: str,
) -> tuple[PartFile, ...]:
    """Write the file entries that match one of the values (columns `SELECTED_ENTRIES`).

    Args:
        spark: Used only if the entries do not fit in this process.
        files: The files of the state.
        run: The run that the parts belong to.
        paths: Parts of `manifest_entries`.
        by: Column to match. Files outside all storages use their address as key.
        values: Paths of parts with the values in column `by`.
        prefix: Directory of the written parts, relative to the run.

    Raises:
        StateError: If a part is missing, unreadable or damaged.
    """
    if not paths:
        return ()
    with read_errors(files.root):
        sizes = files.sizes(paths)
    bundles = group_by_size(paths, sizes)
    task = _SelectEntries(files, run.path, bundles, by, tuple(values), prefix)
    written = merge_written(run_tasks(spark, task, len(bundles), sum(sizes)))
    return written.side.get(prefix, ())


@dataclass(frozen=True)
class _SelectEntries:
    """Task that selects entries of the bundles with the given numbers."""

    files: Files
    directory: str
    bundles: tuple[tuple[str, ...], ...]
    by: str
    values: tuple[str, ...]
    prefix: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = read_parts(self.files, list(self.values), pa.schema([(self.by, pa.string())])).column(self.by).combine_chunks()
        writer = PartWriter(self.files, self.directory, SELECTED_ENTRIES, self.prefix)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                paths = self.bundles[number]
                contents = self.files.contents(paths)
                for path in paths:
                    with read_errors(f"{self.files.root}/{path}"):
                        for rows in _select_rows(next(contents), self.by, wanted):
                            writer.write(rows)
        yield report_parts(writer.close())


def _select_rows(content: bytes, by: str, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a part, fully decoding only row groups with a match."""
    source = pq.ParquetFile(pa.BufferReader(content))
    missing = missing_columns(source.schema_arrow, SELECTED_ENTRIES)
    names = [name for name in SELECTED_ENTRIES.names if name not in missing]
    for group in range(source.num_row_groups):
        if not may_contain(source.metadata.row_group(group), "is_container", False):
            continue
        values = source.read_row_group(group, [by]).column(by)
        if by == "key" and values.null_count:
            values = pc.coalesce(values, source.read_row_group(group, ["address"]).column("address"))
        hits = pc.is_in(values, wanted)
        if pc.any(hits).as_py():
            rows = add_missing_columns(source.read_row_group(group, names), SELECTED_ENTRIES)
            yield from rows.filter(pc.and_(hits, pc.invert(rows.column("is_container")))).to_batches()
