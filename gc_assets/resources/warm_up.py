"""Run typical Spark queries, so that the JVM loads their classes and archives them.

The JVM writes the archive when it exits (see `class_archive`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import frame_from_arrow
from gc_assets.resources.spark import DRIVER_CONF, JVM_OPTIONS, SparkRuntime


def warm_up(spark: SparkSession) -> None:
    """Read, join, aggregate and write rows, both in a large and a small session."""
    with tempfile.TemporaryDirectory() as directory:
        rows = pa.table({"key": [f"k{n}" for n in range(100)], "size": range(100)})
        spark.createDataFrame(rows).withColumn("hash", F.xxhash64("key")).repartition(2, "key").write.parquet(f"{directory}/rows")
        read = spark.read.parquet(f"{directory}/rows")
        mapped = read.mapInArrow(_identity, read.schema).where("key <> 'k1'")
        _queries(read, mapped)
        small = frame_from_arrow(choose_session(spark, rows.num_rows, 1), rows)
        _queries(small, small)
        read.createOrReplaceTempView("rows")
        spark.sql("SELECT key, count(*) AS n FROM rows GROUP BY key ORDER BY n DESC").collect()


def _queries(read: DataFrame, mapped: DataFrame) -> None:
    sums = mapped.groupBy(F.substring("key", 1, 2).alias("key")).agg(
        F.sum("size").alias("bytes"),
        F.max("size").alias("most"),
        F.collect_set("key").alias("keys"),
        F.min_by("key", "size").alias("by"),
    )
    for other in (F.broadcast(sums), sums.hint("merge")):
        for how in ("inner", "left", "left_anti", "left_semi"):
            read.join(other, "key", how).select("key", "size").coalesce(1).toArrow()
    note = F.when(F.col("size") > 9, "large").otherwise(F.lit(None))
    named = read.select("key", note.alias("note"), F.array("key").alias("all"))
    exploded = named.select(F.explode("all").alias("key"), F.coalesce("note", F.lit("")).alias("note"))
    exploded.unionByName(exploded).distinct().dropDuplicates(["key"]).orderBy("key").limit(3).collect()


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main(archive: str) -> None:
    """Start a JVM that writes `archive` when it is stopped."""
    # The optimizing compiler is switched off. It would cost more CPU time than it saves here, and
    # the archive does not contain compiled code anyway.
    options = f"{DRIVER_CONF[JVM_OPTIONS]} -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={archive}"
    conf = {JVM_OPTIONS: options, "spark.sql.shuffle.partitions": "2"}
    spark = SparkRuntime(master="local[2]", conf=conf, class_archive=False).session()
    warm_up(spark)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
