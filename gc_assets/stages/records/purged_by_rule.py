"""Find objects that were purged because a retention or lifecycle rule of lakeFS allowed it.

lakeFS keeps all commits. If a rule is changed to keep objects for longer, objects that the shorter
rule had released become live again, although they no longer exist. This is neither data loss nor a
different spelling of a key.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import collect, frame_from_arrow, read_paths
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.arrow_types import STRING
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN

RULES = ("expired", "lifecycle")
BY_RULE = pa.schema([("key", STRING), ("lake", STRING)])


def purged_by_rule(spark: SparkSession, context: RunContext, storage_name: str) -> DataFrame:
    """Find purged objects whose deletion was allowed by a retention or lifecycle rule.

    Uncommitted objects are not included, because no commit can need them.

    Returns:
        A frame of distinct objects, with the columns key and lake.
    """
    lakes = [lake.name for lake in context.config.lakes if context.kind(lake.name).releases_files]
    if not lakes:
        return frame_from_arrow(spark, BY_RULE.empty_table())
    logs = context.state.paths(context.state.history(storage_name, DELETION_LOG.name))
    purged = read_paths(spark, context.state.files, DELETION_LOG.schema, logs).filter(
        (F.col("phase") == "purge") & (F.col("outcome") == "done")
    )
    planned_by = {row["source_plan_id"] for row in collect(purged.select("source_plan_id").distinct())}
    planned = [path for plan in list_plans(context.config, storage_name) if plan.header.plan_id in planned_by for path in plan.run.paths()]
    rows = read_paths(spark, context.state.files, DELETION_PLAN.schema, planned)
    by_rule = rows.filter((F.col("action") == "quarantine") & F.col("reason").isin(*RULES) & F.col("lake").isin(*lakes))
    return by_rule.join(purged.select("key"), "key", "left_semi").select("key", "lake").distinct()
