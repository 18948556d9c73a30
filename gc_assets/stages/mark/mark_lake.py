"""Mark one lake: refs, commit graph, retention, decoding, live files."""

from __future__ import annotations

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.kind_tables import make_kind_table
from gc_assets.stages.mark.lake_refs import lake_refs
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.manifest_entries import manifest_entries
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.mark.reachable_snapshots import reachable_snapshots
from gc_assets.state.journal import PublishedTable


def mark(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish all tables of a lake from `lake_refs` to `live_files`, and return `live_files`."""
    lake_refs(context, lake_name)
    commit_graph(spark, context, lake_name)
    reachable_snapshots(spark, context, lake_name)
    manifest_entries(spark, context, lake_name)
    needed = [kind_table for kind_table in context.kind(lake_name).kind_tables_of(context.config.lake(lake_name)) if kind_table.before_live]
    if needed and context.verification_id is None:
        policy_table(context, lake_name)
        current_rules(context, lake_name)
    for kind_table in needed:
        make_kind_table(spark, context, lake_name, kind_table)
    return live_files(spark, context, lake_name)
