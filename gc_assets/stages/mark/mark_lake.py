"""Marks one lake from end to end: freeze, graph, policy, expansion, live files."""

from __future__ import annotations

from pyspark.sql import SparkSession

from gc_assets.engine.run_context import Night
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.kind_tables import make_box
from gc_assets.stages.mark.lake_refs import lake_refs
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.manifest_entries import manifest_entries
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.mark.reachable_snapshots import reachable_snapshots
from gc_assets.state.journal import Published


def mark(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """Publishes `live_files` of a lake, and everything before it first."""
    lake_refs(night, lake_name)
    commit_graph(spark, night, lake_name)
    reachable_snapshots(spark, night, lake_name)
    manifest_entries(spark, night, lake_name)
    needed = [box for box in night.kind(lake_name).boxes_of(night.config.lake(lake_name)) if box.before_live]
    if needed and night.recheck is None:
        policy_table(night, lake_name)
        current_rules(night, lake_name)
    for box in needed:
        make_box(spark, night, lake_name, box)
    return live_files(spark, night, lake_name)
