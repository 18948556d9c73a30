"""The mark of one lake from end to end: freeze, graph, policy, expansion, live files."""

from __future__ import annotations

from pyspark.sql import SparkSession

from gc_assets.core.receipts import Published
from gc_assets.stages.commit_graph import commit_graph
from gc_assets.stages.lake_refs import lake_refs
from gc_assets.stages.lifecycle_objects import lifecycle_objects
from gc_assets.stages.live_files import live_files
from gc_assets.stages.manifest_entries import manifest_entries
from gc_assets.stages.night import Night
from gc_assets.stages.policy import current_rules, has_lifecycle, policy_table
from gc_assets.stages.potential_commits import potential_commits
from gc_assets.stages.reachable_snapshots import reachable_snapshots


def mark(spark: SparkSession, night: Night, lake_name: str) -> Published:
    """`live_files` of a lake, everything before it made first."""
    lake_refs(night, lake_name)
    commit_graph(spark, night, lake_name)
    reachable_snapshots(spark, night, lake_name)
    manifest_entries(spark, night, lake_name)
    if has_lifecycle(night, lake_name):
        if night.recheck is None:
            policy_table(night, lake_name)
            current_rules(night, lake_name)
        potential_commits(spark, night, lake_name)
        lifecycle_objects(spark, night, lake_name)
    return live_files(spark, night, lake_name)
