"""What is in quarantine: the newest word of all deletion logs about each key. Lazy: no job runs here."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.receipts import State
from gc_assets.schemas import DELETION_LOG
from gc_assets.stages.tables import read_paths


def quarantine_ledger(spark: SparkSession, state: State, storage_name: str) -> DataFrame:
    """Keys that were quarantined and neither restored nor purged since.

    Columns: key, source_plan_id (the plan that quarantined it), quarantined_at, size_bytes, etag, version_id.
    A purge that found nothing (`absent`) ends a quarantine as well as one that was done.
    """
    paths = [path for published in state.runs(storage_name, DELETION_LOG.name) for path in published.paths()]
    log = read_paths(spark, state.files, DELETION_LOG.schema, paths)
    settled = log.filter("outcome = 'done' or (phase = 'purge' and outcome = 'absent')")
    facts = F.struct("phase", "plan_id", "size_bytes", "etag")
    newest = settled.groupBy("key").agg(F.max("at").alias("quarantined_at"), F.max_by(facts, "at").alias("last"))
    return newest.filter("last.phase = 'quarantine'").select(
        "key",
        F.col("last.plan_id").alias("source_plan_id"),
        "quarantined_at",
        F.col("last.size_bytes").alias("size_bytes"),
        F.col("last.etag").alias("etag"),
    )
