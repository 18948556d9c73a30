"""The assets of a lake, from its policy and refs to its live files."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import Final

import dagster as dg

from gc_assets.assets.asset_step import AssetStep, LakeConfig, RunDates, asset_keys, build_asset, build_spec, has_table, without_spark
from gc_assets.assets.checks import ALL_READABLE, COMPLETE, EVERYTHING_DECODED, LIVE_WHILE_REFS, RECEIPT
from gc_assets.assets.expiry_markdown import expiry_markdown, history_markdown
from gc_assets.assets.figures import Figures
from gc_assets.assets.kind_assets import kind_steps
from gc_assets.assets.markdown import amounts_table, escape_markdown
from gc_assets.assets.names import asset_key
from gc_assets.assets.results import StepOutput, count_rows
from gc_assets.assets.sources import source_key
from gc_assets.config.models import Config
from gc_assets.core.rehearsals import REHEARSAL
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
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


def lake_assets(config: Config, lake: LakeConfig, run_dates: RunDates) -> list[dg.AssetsDefinition]:
    """Build the Dagster assets of a lake. None of them depends on a storage."""

    def deps(step: AssetStep) -> list[dg.AssetKey]:
        return [*asset_keys(config, lake, _inputs(lake, step)), *([source_key(config, lake)] if step.reads_lake else [])]

    return [build_asset(config, step, lake, deps(step), run_dates) for step in [*LAKE_STEPS, *kind_steps(lake)]]


def sort_steps(lake: LakeConfig) -> list[AssetStep]:
    """Sort a lake's steps so that each one follows the steps whose tables it reads."""
    by_name = {step.outputs[0].table.name: step for step in [*LAKE_STEPS, *kind_steps(lake)]}
    first = {output.table.name: name for name, step in by_name.items() for output in step.outputs}
    needed = {name: {first[table.name] for table in _inputs(lake, step) if has_table(lake, table)} for name, step in by_name.items()}
    return [by_name[name] for name in TopologicalSorter(needed).static_order()]


def _inputs(lake: LakeConfig, step: AssetStep) -> list[Table]:
    makes = {output.table.name for output in step.outputs}
    fed_by = [output.table for other in kind_steps(lake) for output in other.outputs if makes & {table.name for table in other.feeds}]
    return [*step.inputs, *fed_by]


def expiry_log_specs(config: Config, lake: LakeConfig, run_dates: RunDates) -> list[dg.AssetSpec]:
    """Build the asset spec of `expiry_log`, which no step of the lake publishes.

    The `deletion_log` asset of a storage reports it, because an apply edits histories before it
    changes files.
    """
    if not has_table(lake, EXPIRY_LOG):
        return []
    plans = [asset_key(config, storage.name, DELETION_PLAN) for storage in config.storages]
    return [
        build_spec(
            config,
            lake,
            EXPIRY_LOG,
            [*asset_keys(config, lake, [EXPIRY_PLAN, table_with(TableRole.PATH_EDITS)]), *plans],
            run_dates,
            spark=False,
        )
    ]


def _policy_figures(published: PublishedTable) -> Figures:
    return {"rules": published.summary(PolicyTableSummary).rules}


def _ref_figures(published: PublishedTable) -> Figures:
    summary = published.summary(LakeRefsSummary)
    return {"refs": published.receipt.rows, "claimed_prefixes": summary.claims, "pinned_files": summary.pinned}


def _freeze_report(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LakeRefsSummary)
    lines = [f"Refs read at **{summary.frozen_at.isoformat()}**, ages as of {summary.as_of.isoformat()}, digest `{summary.refs_digest}`."]
    if summary.historical:
        lines.append("**Historical**: the refs were read on a later date. The plan cannot be applied.")
    if summary.rehearsal:
        lines.append(f"**{REHEARSAL}**: GC_ASSETS_UNSAFE_NOW sets the clock.")
    return "\n\n".join(lines + [f"- {escape_markdown(note)}" for note in summary.notes])


def _state_figures(published: PublishedTable) -> Figures:
    summary = published.summary(ReachableSnapshotsSummary)
    return {f"{state}_commits": getattr(summary, state) for state in (RETAINED, EXPIRED, DANGLING)}


def _entry_figures(published: PublishedTable) -> Figures:
    summary = published.summary(ManifestEntriesSummary)
    return {
        "decoded_containers": summary.decoded,
        "decoded_entries": summary.entries,
        "unreadable_containers": summary.unreadable,
        "cache_segments": summary.segments,
    }


def _live_figures(published: PublishedTable) -> Figures:
    summary = published.summary(LiveFilesSummary)
    return {
        "live_files": summary.files,
        "live_bytes": summary.live_bytes,
        "expired_files": summary.expired_files,
        "dangling_files": summary.dangling_files,
        "external_files": summary.external_files,
        "unknown_addresses": summary.unknown_addresses,
    }


def _live_report(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LiveFilesSummary)
    return "\n\n".join(
        [
            amounts_table("Kind of file", summary.by_kind),
            *_describe_unknown(summary),
            *(f"- {escape_markdown(note)}" for note in summary.notes),
        ]
    )


def _describe_unknown(summary: LiveFilesSummary) -> Iterator[str]:
    if summary.unknown_addresses:
        samples = "\n".join(f"- {escape_markdown(sample)}" for sample in summary.unknown_address_samples)
        yield f"{count_of(summary.unknown_addresses, 'address', 'have')} an unknown location, for example:\n\n{samples}"


LAKE_STEPS: Final = (
    AssetStep(
        outputs=(StepOutput(POLICY_TABLE, _policy_figures),),
        inputs=(),
        stage=without_spark(policy_table),
        spark=False,
    ),
    AssetStep(
        outputs=(StepOutput(CURRENT_RULES, count_rows("rules")),),
        inputs=(POLICY_TABLE,),
        stage=without_spark(current_rules),
        spark=False,
    ),
    AssetStep(
        outputs=(StepOutput(LAKE_REFS, _ref_figures, _freeze_report),),
        inputs=(),
        stage=without_spark(lake_refs),
        spark=False,
        reads_lake=True,
    ),
    AssetStep(
        outputs=(StepOutput(COMMIT_GRAPH, count_rows("commits")),),
        inputs=(LAKE_REFS,),
        stage=commit_graph,
    ),
    AssetStep(
        outputs=(
            StepOutput(REACHABLE_SNAPSHOTS, _state_figures, history_markdown),
            StepOutput(EXPIRY_PLAN, count_rows("expiry_actions"), expiry_markdown),
            StepOutput(LIVE_CONTENTS, count_rows("live_contents")),
        ),
        inputs=(COMMIT_GRAPH, CURRENT_RULES),
        stage=reachable_snapshots,
        checks=(RECEIPT, COMPLETE),
    ),
    AssetStep(
        outputs=(StepOutput(MANIFEST_ENTRIES, _entry_figures),),
        inputs=(REACHABLE_SNAPSHOTS, EXPIRY_PLAN, LIVE_CONTENTS),
        stage=manifest_entries,
        checks=(RECEIPT, EVERYTHING_DECODED),
    ),
    AssetStep(
        outputs=(StepOutput(LIVE_FILES, _live_figures, _live_report),),
        inputs=(REACHABLE_SNAPSHOTS, MANIFEST_ENTRIES, LIVE_CONTENTS),
        stage=live_files,
        checks=(RECEIPT, COMPLETE, LIVE_WHILE_REFS, ALL_READABLE),
    ),
)
