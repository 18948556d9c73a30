"""Read Parquet files of a state on an object store in Spark, without Hadoop's jars.

Executors download the files with Python and decode them with Arrow. However, Spark does not know
the size of the result, and would broadcast even large tables in joins. Therefore, the data frame is
derived from a range of numbers that is just long enough for Spark's estimate to equal the size of
the files. A few of these numbers select groups of files, and the others are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.state.files import Files
from gc_assets.state.parts import add_missing_columns, decode_each, missing_columns, open_part, read_errors

# How many bytes a task reads, and how many could be read in the time that a request takes.
TASK_BYTES: Final = 16 * 2**20
_REQUEST_BYTES: Final = 2**20
_BATCH_ROWS: Final = 65_536
# Spark estimates the size of its output from the types of columns, even if they are null. It
# counts 100 bytes for `binary`, one element for a list, 8 bytes plus its columns for a row, and 8
# bytes for a number of a range.
_BINARIES: Final = 40
_WEIGHT: Final = f"cast(null as array<struct<{', '.join(f'b{number}: binary' for number in range(_BINARIES))}>>) as weight"
_NUMBER_BYTES: Final = 8 * (8 + 8 + 100 * _BINARIES) / (8 + 8)
# Spark never broadcasts a table of 8 GB, so larger estimates make no difference.
_MOST_NUMBERS: Final = 2**23


# A column and a value. Rows with another value are dropped, but rows with null are kept.
ColumnFilter = tuple[str, bool]


def scan(
    spark: SparkSession,
    files: Files,
    schema: pa.Schema,
    ddl: StructType,
    paths: Sequence[str],
    sizes: Sequence[int] | None = None,
    only: ColumnFilter | None = None,
) -> DataFrame:
    """Read Parquet files of the state as a data frame.

    Args:
        spark: The session.
        files: The files of the state.
        schema: The columns to read, as an Arrow schema.
        ddl: The same columns, as a Spark schema.
        paths: The paths, relative to the state.
        sizes: The sizes in bytes. If they are not given, each directory is listed once.
        only: Drop rows that do not match this filter.
    """
    with read_errors(files.root):
        known = sizes if sizes is not None else files.sizes(paths)
    groups = group_by_size(paths, known)
    numbers = max(len(groups), min(_MOST_NUMBERS, round(sum(known) / _NUMBER_BYTES)))
    marks = tuple(group * numbers // len(groups) for group in range(len(groups)))
    # Partitions begin at the marks. Even with other bounds, each mark would occur exactly once.
    weighty = spark.range(0, numbers, 1, len(groups)).selectExpr("id", _WEIGHT)
    return weighty.mapInArrow(ScanTask(files, groups, marks, schema, only), ddl)


def scan_in_process(files: Files, schema: pa.Schema, paths: Sequence[str], only: ColumnFilter | None = None) -> pa.Table:
    """Read Parquet files of the state in the driver process, as an Arrow table."""
    fetch = ScanTask(files, (tuple(paths),), (0,), schema, only)
    numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    return pa.Table.from_batches(fetch(iter([numbers])), schema)


def group_by_size(paths: Sequence[str], sizes: Sequence[int], most: int | None = None) -> tuple[tuple[str, ...], ...]:
    """Divide files into at most `most` groups of similar size, one for each task."""
    weights = [size + _REQUEST_BYTES for size in sizes]
    count = min(len(paths), -(-sum(weights) // TASK_BYTES), len(paths) if most is None else most)
    groups: list[list[str]] = [[] for _ in range(count)]
    load = [(0, number) for number in range(count)]
    for weight, path in sorted(zip(weights, paths, strict=True), reverse=True):
        held, number = heapq.heappop(load)
        groups[number].append(path)
        heapq.heappush(load, (held + weight, number))
    return tuple(tuple(group) for group in groups)


@dataclass(frozen=True)
class ScanTask:
    """Reads groups of files, which are selected by number, on executors.

    Attributes:
        files: The files of the state.
        groups: The paths of the files in each group.
        marks: The number that selects each group. Other numbers are ignored.
        schema: The columns to read.
        only: Drop rows that do not match this filter.
    """

    files: Files
    groups: tuple[tuple[str, ...], ...]
    marks: tuple[int, ...]
    schema: pa.Schema
    only: ColumnFilter | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marks = np.array(self.marks)
        for batch in batches:
            named = np.isin(marks, batch.column(0).to_numpy(), assume_unique=True)
            for group in np.flatnonzero(named):
                yield from self._rows(self.groups[group])

    def _rows(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return decode_each(self.files, paths, lambda content: decode_parquet(content, self.schema, self.only))


def decode_parquet(content: bytes, schema: pa.Schema, only: ColumnFilter | None = None) -> Iterator[pa.RecordBatch]:
    """Decode a Parquet file.

    Columns that the file does not have are filled with null. If a filter (`only`) is given, rows
    with another value are dropped, and row groups without the value are skipped.
    """
    source = open_part(content)
    missing = missing_columns(source.schema_arrow, schema)
    groups = [number for number in range(source.num_row_groups) if only is None or may_contain(source.metadata.row_group(number), *only)]
    if not groups:
        return
    for batch in source.iter_batches(_BATCH_ROWS, groups, columns=[name for name in schema.names if name not in missing]):
        rows = add_missing_columns(batch, schema)
        yield rows if only is None else rows.filter(pc.fill_null(pc.equal(rows.column(only[0]), only[1]), True))


def may_contain(group: pq.RowGroupMetaData, column: str, value: bool) -> bool:
    """Check by the statistics of a row group whether it may contain a value."""
    chunks = (group.column(number) for number in range(group.num_columns))
    statistics = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)
    return statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max
