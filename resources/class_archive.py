"""Class data sharing: the classes that Spark's JVM loads, parsed once per environment and mapped at
every later start (JEP 310, JEP 350).

`make env` writes the archive by `python -m gc_assets.resources.class_archive`. A JVM that finds no
archive, or one of another Java or Spark, starts as it would without: it compares the class path and
every jar's size and time by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark

from gc_assets.core.errors import UsageError
from gc_assets.resources.java import ensure_java_home

_MODULE: Final = "gc_assets.resources.class_archive"
WRITE_IT: Final = f"python -m {_MODULE}"
_WRITE: Final = "GC_ASSETS_CLASS_ARCHIVE"  # tells the process that warms up where its JVM writes
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_PATIENCE: Final = 300.0  # seconds
_LEAST: Final = 1 << 20  # bytes; an archive of nothing but a header is none


def archive(home: str) -> Path:
    """Returns where the archive of this environment lies for the Java at `home`. It may be absent."""
    told = "\0".join((os.path.realpath(home), pyspark.__version__, str(Path(pyspark.__file__).resolve())))
    return Path(sys.prefix) / "share" / "gc-assets" / f"classes-{sha256(told.encode()).hexdigest()[:16]}.jsa"


def jvm_options(home: str) -> str:
    """Returns what a JVM from `home` is started with to map the archive: nothing where there is
    none.
    """
    path = archive(home)
    # The options go through Spark's launcher, which splits them at spaces.
    if not path.is_file() or " " in str(path):
        return ""
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def write(home: str) -> Path:
    """Starts Spark once, lets it do what a night does, and writes the archive of the classes that
    it loaded. Takes about 20 seconds.

    Raises `UsageError` with the end of what Java said where no archive came of it. What was there
    before stays until the new one is whole.
    """
    path = archive(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".classes-") as place:
        made = Path(place) / path.name
        environment = os.environ | {"JAVA_HOME": home, _WRITE: str(made)}
        done = subprocess.run(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-m", _MODULE, "--warm-up"], env=environment, cwd=place, capture_output=True, text=True, timeout=_PATIENCE
        )
        if done.returncode or not made.is_file() or made.stat().st_size < _LEAST:
            raise UsageError(
                f"Java at {home} wrote no class archive; nights run without it. It said: {(done.stdout + done.stderr)[-2000:]}"
            )
        made.replace(path)
    return path


def _warm_up(target: str) -> None:
    """Runs one of each: the reads, joins, groups, Python stages and writes that a night is made of."""
    from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

    from gc_assets.resources.spark import SparkRuntime

    conf = {"spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:ArchiveClassesAtExit={target}", "spark.sql.shuffle.partitions": "2"}
    spark = SparkRuntime(master="local[2]", conf=conf, class_archive=False).session()
    with tempfile.TemporaryDirectory() as place:
        rows = spark.createDataFrame(pa.table({"key": [f"k{n}" for n in range(100)], "size": range(100)}))
        rows.withColumn("hash", F.xxhash64("key")).repartition(2, "key").write.parquet(f"{place}/rows")
        read = spark.read.parquet(f"{place}/rows")
        passed = read.mapInArrow(_as_they_came, read.schema).where("key <> 'k1'")
        sums = passed.groupBy(F.substring("key", 1, 2).alias("key")).agg(
            F.sum("size").alias("bytes"),
            F.max("size").alias("most"),
            F.collect_set("key").alias("keys"),
            F.min_by("key", "size").alias("by"),
        )
        kinds = (F.broadcast(sums), sums.hint("merge"))
        for other in kinds:
            for how in ("inner", "left", "left_anti", "left_semi"):
                read.join(other, "key", how).select("key", "size").coalesce(1).toArrow()
        named = read.select("key", F.when(F.col("size") > 9, "large").otherwise(F.lit(None)).alias("note"), F.array("key").alias("all"))
        exploded = named.select(F.explode("all").alias("key"), F.coalesce("note", F.lit("")).alias("note"))
        exploded.unionByName(exploded).distinct().dropDuplicates(["key"]).orderBy("key").limit(3).collect()
        read.createOrReplaceTempView("rows")
        spark.sql("SELECT key, count(*) AS n FROM rows GROUP BY key ORDER BY n DESC").collect()
        spark.sparkContext.parallelize(range(4), 2).map(str).collect()
    spark.stop()


def _as_they_came(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main(arguments: list[str]) -> None:
    """`python -m gc_assets.resources.class_archive` writes the archive where there is none."""
    if arguments == ["--warm-up"]:
        _warm_up(os.environ[_WRITE])
        return
    try:
        home = ensure_java_home()
        if not archive(home).is_file():
            sys.stdout.write("Writing an archive of Spark's classes (20 s), which shortens every later start ...\n")
            sys.stdout.flush()
            write(home)
    except UsageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
