"""Asset steps for tables that only some kinds of lakes have, such as `snapshot_history`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from gc_assets.assets.asset_step import AssetStep, LakeConfig
from gc_assets.assets.figures import Figures
from gc_assets.assets.markdown import escape_markdown
from gc_assets.assets.results import StepOutput, count_rows
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import KindTable
from gc_assets.lakes.kinds import all_tables, kind_of
from gc_assets.stages.mark.kind_tables import make_kind_table, needs_spark
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_PLAN, LIVE_FILES
from gc_assets.state.side_tables import EDITS_SIDE
from gc_assets.state.summaries import (
    LifecycleObjectsSummary,
    LifecyclePathsSummary,
    PotentialCommitsSummary,
    SnapshotHistorySummary,
    UncommittedObjectsSummary,
)

# More rows would slow down Dagster's page.
MAX_EDITS: Final = 20


def kind_steps(lake: LakeConfig) -> list[AssetStep]:
    """Build the steps that the lake's kind adds to the common ones."""
    kind_tables = kind_of(lake).kind_tables_of(lake)
    return [_build_step(table, kind_tables) for table in kind_tables]


def _build_step(kind_table: KindTable, kind_tables: Sequence[KindTable]) -> AssetStep:
    """Build the step that publishes a table of a single lake kind.

    Some of these tables must precede `live_files`. Only the last one has to be an input of
    `live_files`, because it depends on the others.
    """
    is_last = not any(kind_table.table.name == table.name for other in kind_tables for table in other.after)
    return AssetStep(
        outputs=(OUTPUTS.get(kind_table.table.name, StepOutput(kind_table.table, count_rows("rows"))),),
        inputs=kind_table.after,
        stage=partial(_run_stage, kind_table),
        spark=needs_spark(kind_table),
        feeds=(LIVE_FILES,) if kind_table.before_live and is_last else (),
    )


def _run_stage(kind_table: KindTable, spark: Any, context: RunContext, lake_name: str) -> object:
    return make_kind_table(spark, context, lake_name, kind_table)


def _snapshot_figures(published: PublishedTable) -> Figures:
    summary = published.summary(SnapshotHistorySummary)
    written = {} if summary.published is None else {"published_rows": summary.published.written}
    return {"listed_snapshots": summary.listed, "expired_snapshots": summary.expired, **written}


def _snapshot_notes(_: RunContext, published: PublishedTable) -> str:
    publication = published.summary(SnapshotHistorySummary).published
    if publication is None:
        return ""
    lines = [f"Published as `{publication.table}`."] if publication.table is not None else []
    return "\n\n".join([*lines, *(f"- {escape_markdown(note)}" for note in publication.notes)])


def _staging_figures(published: PublishedTable) -> Figures:
    return {"staged_objects": published.summary(UncommittedObjectsSummary).objects}


def _commit_figures(published: PublishedTable) -> Figures:
    summary = published.summary(PotentialCommitsSummary)
    return {"commits": summary.commits, "potential_commits": summary.potential}


def _commit_notes(_: RunContext, published: PublishedTable) -> str:
    return "\n".join(f"- {escape_markdown(note)}" for note in published.summary(PotentialCommitsSummary).notes)


def _release_figures(published: PublishedTable) -> Figures:
    summary = published.summary(LifecycleObjectsSummary)
    released = summary.released
    return {"released_objects": released.files, "released_bytes": released.bytes, "deduplicated_objects": summary.deduplicated.files}


def _release_notes(_: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LifecycleObjectsSummary)
    return "\n".join(f"- {escape_markdown(note)}" for note in (*summary.unused_rules, *summary.notes))


def _path_figures(published: PublishedTable) -> Figures:
    summary = published.summary(LifecyclePathsSummary)
    return {"due_paths": summary.paths.files, "due_bytes": summary.paths.bytes, "edited_branches": summary.edits}


def _path_notes(context: RunContext, published: PublishedTable) -> str:
    summary = published.summary(LifecyclePathsSummary)
    edits = read_parts(context.state.files, published.paths(EDITS_SIDE), EXPIRY_PLAN.schema, ["ref_name", "reason"]).to_pylist()
    lines = [*(f"{row['ref_name']}: {row['reason']}" for row in edits[:MAX_EDITS]), *summary.unused_rules, *summary.notes]
    return "\n".join(f"- {escape_markdown(line)}" for line in lines)


# How kind tables are shown in Dagster. For tables not listed here, only the rows are counted.
_TABLES: Final = all_tables()
OUTPUTS: Final = {
    SnapshotHistorySummary.TABLE: StepOutput(_TABLES[SnapshotHistorySummary.TABLE], _snapshot_figures, _snapshot_notes),
    UncommittedObjectsSummary.TABLE: StepOutput(_TABLES[UncommittedObjectsSummary.TABLE], _staging_figures),
    PotentialCommitsSummary.TABLE: StepOutput(_TABLES[PotentialCommitsSummary.TABLE], _commit_figures, _commit_notes),
    LifecycleObjectsSummary.TABLE: StepOutput(_TABLES[LifecycleObjectsSummary.TABLE], _release_figures, _release_notes),
    LifecyclePathsSummary.TABLE: StepOutput(_TABLES[LifecyclePathsSummary.TABLE], _path_figures, _path_notes),
}
