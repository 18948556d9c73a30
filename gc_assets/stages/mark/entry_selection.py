"""Picks entries from the cache: those of some containers, or those that name some keys. Spark then
joins these, and not the whole cache.

Entries are picked as they lie there. Which of them count, and who needs them, say the queries of
`naming`, whatever rows they are asked over.
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
from gc_assets.state.parts import PartWriter, missing_columns, read_parts, with_added
from gc_assets.state.receipts import PartFile
from gc_assets.state.side_tables import SELECTED_ENTRIES

# Every task holds all that is looked for. Where it is more than this, Spark looks for it.
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
    """Writes the files (not the containers) among the entries of `paths` that have one of some
    values, as parts of the run below `prefix` (columns `SELECTED_ENTRIES`).

    `values` are parts whose column `by` holds them. The key of a file that lies in no storage is its
    address. Raises `StateError` for a part that is missing, cannot be read or is damaged.
    """
    if not paths:
        return ()
    with read_errors(files.root):
        sizes = files.sizes(paths)
    bundles = group_by_size(paths, sizes)
    written = merge_written(run_tasks(spark, _Pick(files, run.path, bundles, by, tuple(values), prefix), len(bundles), sum(sizes)))
    return written.side.get(prefix, ())


@dataclass(frozen=True)
class _Pick:
    """Runs here or in executors, over the numbers of bundles."""

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
                        for rows in _picked(next(contents), self.by, wanted):
                            writer.write(rows)
        yield report_parts(writer.close())


def _picked(content: bytes, by: str, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a part. Its other columns are decoded only where a row group has some."""
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
            rows = with_added(source.read_row_group(group, names), SELECTED_ENTRIES)
            yield from rows.filter(pc.and_(hits, pc.invert(rows.column("is_container")))).to_batches()
