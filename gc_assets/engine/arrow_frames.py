"""Convert Arrow tables to Spark data frames, and back.

Spark 4.0 has methods for this. In Spark 3.5, a table is serialised into a binary column, so that
all types are preserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_STREAM_DDL: Final = "stream binary"
STREAM_BYTES: Final = 16 * 2**20


def has_arrow_frames(spark: SparkSession) -> bool:
    """Check if the installed pyspark can convert Arrow tables by itself."""
    return hasattr(DataFrame, "toArrow") or not hasattr(spark, "sparkContext")


def create_frame(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Convert an Arrow table to a data frame."""
    if has_arrow_frames(spark):
        return spark.createDataFrame(rows, schema)
    width = max(1, rows.nbytes // max(1, rows.num_rows))
    streams = [(_encode(batch),) for batch in rows.to_batches(max_chunksize=max(1, STREAM_BYTES // width))]
    return spark.createDataFrame(streams, _STREAM_DDL).coalesce(1).mapInArrow(_decode_rows, schema)


def to_arrow(frame: DataFrame) -> pa.Table:
    """Collect a data frame as an Arrow table."""
    if has_arrow_frames(frame.sparkSession):
        return frame.toArrow()
    streams = frame.mapInArrow(_encode_rows, _STREAM_DDL).collect()
    batches = [batch for row in streams for batch in _decode(row["stream"])]
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(frame.schema))


def _encode(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _decode(stream: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(stream))


def _encode_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"stream": pa.array([_encode(batch)], pa.binary())})


def _decode_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for stream in batch.column(0):
            yield from _decode(stream.as_py())
