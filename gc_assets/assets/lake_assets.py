"""The boxes that every lake has, in the order of the flow (design section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import Final

import dagster as dg

from gc_assets.assets.asset_step import Box, LakeConfig, RunDates, asset_of, has, keys_of, on_driver, spec_of
from gc_assets.assets.checks import ALL_READABLE, CARRIED_RIGHT, COMPLETE, EVERYTHING_DECODED, LIVE_WHILE_REFS, RECEIPT
from gc_assets.assets.expiry_markdown import expiry_markdown, history_markdown
from gc_assets.assets.figures import Figures
from gc_assets.assets.kind_assets import kind_boxes
from gc_assets.assets.markdown import plain
from gc_assets.assets.results import Shown, key_of
from gc_assets.assets.sources import source_key
from gc_assets.assets.waterfalls import amounts_table
from gc_assets.config.models import StorageConfig
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.lake_refs import lake_refs
from gc_assets.stages.mark.live_files import live_files
from gc_assets.stages.mark.manifest_entries import manifest_entries
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.stages.mark.reachable_snapshots import reachable_snapshots
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import (
    COMMIT_GRAPH,
    CURRENT_RULES,
    DELETION_PLAN,
    EXPIRY_LOG,
    EXPIRY_PLAN,
    LAKE_REFS,
    LIVE_CONTENTS,
    LIVE_FILES,
    MANIFEST_ENTRIES,
    POLICY_TABLE,
    REACHABLE_SNAPSHOTS,
    Table,
)
from gc_assets.state.summaries import (
    LakeRefsSummary,
    LiveFilesSummary,
    ManifestEntriesSummary,
    PolicyTableSummary,
    ReachableSnapshotsSummary,
)


def lake_assets(lake: LakeConfig, run_dates: RunDates) -> list[dg.AssetsDefinition]:
    """Returns the assets of one lake. None of them knows the other files of a storage."""

    def made_from(box: Box) -> list[dg.AssetKey]:
        return [*keys_of(lake, _made_from(lake, box)), *([source_key(lake)] if box.reads_lake else [])]

    return [asset_of(box, lake, made_from(box), run_dates) for box in [*LAKE_STEPS, *kind_boxes(lake)]]


def in_order(lake: LakeConfig) -> list[Box]:
    """Returns the boxes of a lake, none before what it is made from."""
    by_name = {box.shown[0].table.name: box for box in [*LAKE_STEPS, *kind_boxes(lake)]}
    first = {shown.table.name: name for name, box in by_name.items() for shown in box.shown}
    needed = {name: {first[table.name] for table in _made_from(lake, box) if has(lake, table)} for name, box in by_name.items()}
    return [by_name[name] for name in TopologicalSorter(needed).static_order()]


def _made_from(lake: LakeConfig, box: Box) -> list[Table]:
    makes = {shown.table.name for shown in box.shown}
    fed_by = [shown.table for other in kind_boxes(lake) for shown in other.shown if makes & {table.name for table in other.feeds}]
    return [*box.made_from, *fed_by]


def logs_of(lake: LakeConfig, storages: Sequence[StorageConfig], run_dates: RunDates) -> list[dg.AssetSpec]:
    """Returns the tables that no step of its own writes: the edits of a lake's history. The step of
    `deletion_log` makes them first, as the approved plan of a storage asks, and reports them.
    """
    if not has(lake, EXPIRY_LOG):
        return []
    plans = [key_of(storage.name, DELETION_PLAN) for storage in storages]
    return [spec_of(lake, EXPIRY_LOG, [*keys_of(lake, [EXPIRY_PLAN]), *plans], run_dates, spark=False)]


def _policy(published: PublishedTable) -> Figures:
    return {"rules": published.summary(PolicyTableSummary).rules}


def _rules(published: PublishedTable) -> Figures:
    return {"rules": published.receipt.rows}


def _refs(published: PublishedTable) -> Figures:
    summary = published.summary(LakeRefsSummary)
    return {"refs": published.receipt.rows, "claimed_prefixes": summary.claims, "pinned_files": summary.pinned}


def _frozen(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LakeRefsSummary)
    lines = [f"Frozen at **{summary.frozen_at.isoformat()}**, as of {summary.as_of.isoformat()}, refs digest `{summary.refs_digest}`."]
    if summary.historical:
        lines.append("**Historical**: frozen on another day than its own. Its plan can be shown and never applied.")
    if summary.rehearsal:
        lines.append("**Rehearsal**: the clock was set by hand.")
    return "\n\n".join(lines + [f"- {plain(note)}" for note in summary.notes])


def _commits(published: PublishedTable) -> Figures:
    return {"commits": published.receipt.rows}


def _states(published: PublishedTable) -> Figures:
    summary = published.summary(ReachableSnapshotsSummary)
    return {f"{state}_commits": getattr(summary, state) for state in (RETAINED, EXPIRED, DANGLING)}


def _edits(published: PublishedTable) -> Figures:
    return {"expiry_actions": published.receipt.rows}


def _contents(published: PublishedTable) -> Figures:
    return {"live_contents": published.receipt.rows}


def _decoded(published: PublishedTable) -> Figures:
    summary = published.summary(ManifestEntriesSummary)
    return {
        "decoded_containers": summary.decoded,
        "decoded_entries": summary.entries,
        "unreadable_containers": summary.unreadable,
        "cache_segments": summary.segments,
    }


def _live(published: PublishedTable) -> Figures:
    summary = published.summary(LiveFilesSummary)
    return {
        "live_files": summary.files,
        "live_bytes": summary.live_bytes,
        "expired_files": summary.expired_files,
        "dangling_files": summary.dangling_files,
        "external_files": summary.external_files,
    }


def _by_kind(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LiveFilesSummary)
    return "\n\n".join([amounts_table("Kind of file", summary.by_kind), _how(summary), *(f"- {plain(note)}" for note in summary.notes)])


def _how(summary: LiveFilesSummary) -> str:
    if summary.full_recompute_reason is not None:
        return f"All computed: {plain(summary.full_recompute_reason)}."
    since = f", all computed on {summary.full_on}" if summary.full_on is not None else ""
    return f"{summary.reused_files:,} rows carried over{since}."


LAKE_STEPS: Final = (
    Box(
        shown=(Shown(POLICY_TABLE, _policy),),
        made_from=(),
        stage=on_driver(policy_table),
        spark=False,
    ),
    Box(
        shown=(Shown(CURRENT_RULES, _rules),),
        made_from=(POLICY_TABLE,),
        stage=on_driver(current_rules),
        spark=False,
    ),
    Box(
        shown=(Shown(LAKE_REFS, _refs, _frozen),),
        made_from=(),
        stage=on_driver(lake_refs),
        spark=False,
        reads_lake=True,
    ),
    Box(
        shown=(Shown(COMMIT_GRAPH, _commits),),
        made_from=(LAKE_REFS,),
        stage=commit_graph,
    ),
    Box(
        shown=(
            Shown(REACHABLE_SNAPSHOTS, _states, history_markdown),
            Shown(EXPIRY_PLAN, _edits, expiry_markdown),
            Shown(LIVE_CONTENTS, _contents),
        ),
        made_from=(COMMIT_GRAPH, CURRENT_RULES),
        stage=reachable_snapshots,
        checks=(RECEIPT, COMPLETE),
    ),
    Box(
        shown=(Shown(MANIFEST_ENTRIES, _decoded),),
        made_from=(REACHABLE_SNAPSHOTS, EXPIRY_PLAN, LIVE_CONTENTS),
        stage=manifest_entries,
        checks=(RECEIPT, EVERYTHING_DECODED),
    ),
    Box(
        shown=(Shown(LIVE_FILES, _live, _by_kind),),
        made_from=(REACHABLE_SNAPSHOTS, MANIFEST_ENTRIES, LIVE_CONTENTS),
        stage=live_files,
        checks=(RECEIPT, LIVE_WHILE_REFS, ALL_READABLE, CARRIED_RIGHT),
    ),
)
