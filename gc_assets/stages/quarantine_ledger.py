"""What is in quarantine: the newest word of all deletion logs about each key. Lazy: no job runs here."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.receipts import State
from gc_assets.schemas import DELETION_LOG
from gc_assets.stages.tables import read_paths


def quarantine_ledger(spark: SparkSession, state: State, storage_name: str, unpublished: Sequence[DataFrame] = ()) -> DataFrame:
    """Objects that were quarantined and neither restored nor purged since, one row per key and plan that quarantined it.

    Columns: key, source_plan_id (the plan that quarantined it), quarantined_at, size_bytes, etag, quarantine (how), kind.
    A purge that found nothing (`absent`) ends a quarantine as well as one that was done. `unpublished` are rows of `deletion_log` that no
    log holds yet.
    """
    paths = [path for published in state.runs(storage_name, DELETION_LOG.name) for path in published.paths()]
    # Run ids sort by time also where a rehearsal's clock stands still.
    log = read_paths(spark, state.files, DELETION_LOG.schema, paths).withColumn(
        "run", F.regexp_extract(F.input_file_name(), "run_date=[^/]*/([^/]+)/", 1)
    )
    for rows in unpublished:
        log = log.unionByName(rows.withColumn("run", F.lit("")))
    settled = log.filter("outcome = 'done' or (phase = 'purge' and outcome = 'absent')").withColumn(
        "by", F.when(F.col("phase") == "quarantine", F.col("plan_id")).otherwise(F.col("source_plan_id"))
    )
    newest = settled.groupBy("key", F.col("by").alias("source_plan_id")).agg(
        F.max_by(F.struct("phase", "at", "size_bytes", "etag", "quarantine", "kind"), F.struct("at", "run")).alias("last")
    )
    return newest.filter("last.phase = 'quarantine'").select(
        "key", "source_plan_id", F.col("last.at").alias("quarantined_at"), "last.size_bytes", "last.etag", "last.quarantine", "last.kind"
    )


def oldest_of_each_key(ledger: DataFrame) -> DataFrame:
    """One row per key: where a name was quarantined twice, the copy that waits longest; the other has its turn on a later night."""
    others = [name for name in ledger.columns if name != "key"]
    first = ledger.groupBy("key").agg(F.min_by(F.struct(*others), F.struct("quarantined_at", "source_plan_id")).alias("first"))
    return first.select("key", *[f"first.{name}" for name in others])
