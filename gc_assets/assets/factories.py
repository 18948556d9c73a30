"""Every asset of a lake and of a storage, in the order of the flow (design section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from gc_assets.assets.commit_graph import commit_graph
from gc_assets.assets.deletion_log import deletion_log
from gc_assets.assets.deletion_plan import deletion_plan
from gc_assets.assets.lake_refs import lake_refs
from gc_assets.assets.lifecycle import has_rules, lifecycle_objects, potential_commits
from gc_assets.assets.live_files import live_files
from gc_assets.assets.live_filter import live_filter
from gc_assets.assets.manifest_entries import manifest_entries
from gc_assets.assets.orphan_files import orphan_files
from gc_assets.assets.policy import current_rules, policy_table
from gc_assets.assets.reachable_snapshots import reachable_snapshots
from gc_assets.assets.snapshot_history import snapshot_history
from gc_assets.assets.spec import LakeConfig, RunDates, key_of, lake_spec
from gc_assets.assets.storage_inventory import storage_inventory
from gc_assets.assets.uncommitted_objects import uncommitted_objects
from gc_assets.config import StorageConfig
from gc_assets.schemas import EXPIRY_LOG, EXPIRY_PLAN, SNAPSHOT_HISTORY


def lake_assets(lake: LakeConfig, run_dates: RunDates) -> list[dg.AssetsDefinition]:
    """What is found out of one lake: nothing here knows a storage's other files."""
    return [
        policy_table(lake, run_dates),
        current_rules(lake, run_dates),
        lake_refs(lake, run_dates),
        commit_graph(lake, run_dates),
        reachable_snapshots(lake, run_dates),
        *([snapshot_history(lake, run_dates)] if SNAPSHOT_HISTORY.is_of(lake.kind) else []),
        manifest_entries(lake, run_dates),
        *([uncommitted_objects(lake, run_dates)] if lake.kind == "lakefs" else []),
        *([potential_commits(lake, run_dates), lifecycle_objects(lake, run_dates)] if has_rules(lake) else []),
        live_files(lake, run_dates),
    ]


def logs_of(lake: LakeConfig, run_dates: RunDates) -> list[dg.AssetSpec]:
    """What no step of its own writes: the edits of a lake's history, which `deletion_log` makes and reports."""
    return [lake_spec(lake, EXPIRY_LOG, run_dates, [key_of(lake, EXPIRY_PLAN)], spark=False)] if EXPIRY_LOG.is_of(lake.kind) else []


def storage_assets(storage: StorageConfig, lakes: Sequence[LakeConfig], run_dates: RunDates) -> list[dg.AssetsDefinition]:
    """What follows for one storage, from the live sets of all lakes together."""
    return [
        live_filter(storage, lakes, run_dates),
        storage_inventory(storage, lakes, run_dates),
        orphan_files(storage, lakes, run_dates),
        deletion_plan(storage, lakes, run_dates),
        deletion_log(storage, lakes, run_dates),
    ]
