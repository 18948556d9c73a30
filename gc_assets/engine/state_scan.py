"""Parquet parts of a state on an object store as Spark frames, without a jar: executors fetch the
files through Python and decode them with Arrow.

A reader of this kind cannot tell Spark how large its rows are, and Spark would send a table of any
size to every executor and to the driver where it is joined. So the frame stands on a range of as
many numbers as make Spark's estimate the bytes of the files. A few of the numbers name groups of
files, and the others cost next to nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gc_assets.core.errors import StateError
from gc_assets.state.files import Files
from gc_assets.state.parts import missing_columns, with_added

# What one task reads, and what a request costs in bytes that could be read meanwhile.
TASK_BYTES: Final = 16 * 2**20
_REQUEST_BYTES: Final = 2**20
_BATCH_ROWS: Final = 65_536
# Spark takes the estimate of a reader's input for that of its output. A column that is null weighs
# by its type there: `binary` counts as 100 bytes, a list as one of its values, a row as 8 bytes and
# its columns, and a range as 8 bytes a number.
_BINARIES: Final = 40
_WEIGHT: Final = f"cast(null as array<struct<{', '.join(f'b{number}: binary' for number in range(_BINARIES))}>>) as weight"
_NUMBER_BYTES: Final = 8 * (8 + 8 + 100 * _BINARIES) / (8 + 8)
# More numbers than this would tell Spark nothing: it sends no table of 8 GB to every executor.
_MOST_NUMBERS: Final = 2**23


# A column and the one value of it that a reader wants.
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
    """Returns the rows of Parquet files of known sizes. Sizes that are not given are asked for, by
    one listing for each directory. Rows of another value than `only` are left out.
    """
    known = sizes if sizes is not None else files.sizes(paths)
    groups = group_by_size(paths, known)
    numbers = max(len(groups), min(_MOST_NUMBERS, round(sum(known) / _NUMBER_BYTES)))
    marks = tuple(group * numbers // len(groups) for group in range(len(groups)))
    # Partitions begin at the marks. Were they cut elsewhere, each mark would still come up once.
    weighty = spark.range(0, numbers, 1, len(groups)).selectExpr("id", _WEIGHT)
    return weighty.mapInArrow(ScanTask(files, groups, marks, schema, only), ddl)


def scan_in_process(files: Files, schema: pa.Schema, paths: Sequence[str], only: ColumnFilter | None = None) -> pa.Table:
    """Returns the same rows in the memory of this process."""
    fetch = ScanTask(files, (tuple(paths),), (0,), schema, only)
    numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    return pa.Table.from_batches(fetch(iter([numbers])), schema)


def group_by_size(paths: Sequence[str], sizes: Sequence[int], most: int | None = None) -> tuple[tuple[str, ...], ...]:
    """Returns groups of files of about the same size, one for each task, `most` at most."""
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
    """Takes numbers, and yields the rows of the files of each number that is a mark. Runs in
    executors.
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
        contents, number = self.files.contents(paths), 0
        while number < len(paths):
            with read_errors(f"{self.files.root}/{paths[number]}"):
                yield from decode_parquet(next(contents), self.schema, self.only)
            number += 1


@contextmanager
def read_errors(where: str) -> Generator[None]:
    """Raises `StateError` for a part that is missing, cannot be read or is damaged, by its name."""
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(f"{error.filename or where} is missing: the table is half there; run its asset again") from None
    except OSError as error:
        raise StateError(f"{where} cannot be read: {error}") from error
    except pa.ArrowException as error:
        raise StateError(f"{where} is damaged ({error}); run its asset again") from error


def decode_parquet(content: bytes, schema: pa.Schema, only: ColumnFilter | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a Parquet file, with the columns of a schema. A column that was added
    after the file was written is null. Row groups without the value `only` are passed over, and
    rows of another value are left out.
    """
    source = pq.ParquetFile(pa.BufferReader(content))
    missing = missing_columns(source.schema_arrow, schema)
    groups = [number for number in range(source.num_row_groups) if only is None or may_contain(source.metadata.row_group(number), *only)]
    if not groups:
        return
    for batch in source.iter_batches(_BATCH_ROWS, groups, columns=[name for name in schema.names if name not in missing]):
        rows = with_added(batch, schema)
        yield rows if only is None else rows.filter(pc.fill_null(pc.equal(rows.column(only[0]), only[1]), True))


def may_contain(group: pq.RowGroupMetaData, column: str, value: bool) -> bool:
    """Says whether a row group may have a row with this value, by Parquet's statistics."""
    chunks = (group.column(number) for number in range(group.num_columns))
    told = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)
    return told is None or not told.has_min_max or told.min <= value <= told.max
