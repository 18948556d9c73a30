"""The boxes that only lakes of one kind have, as their kind declares them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from gc_assets.assets.asset_step import Box, LakeConfig
from gc_assets.assets.figures import Figures
from gc_assets.assets.markdown import plain
from gc_assets.assets.results import Shown
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import KindTable
from gc_assets.lakes.kinds import kind_of
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.stages.mark.kind_tables import make_kind_table, needs_spark
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.summaries import LifecycleObjectsSummary, PotentialCommitsSummary, SnapshotHistorySummary, UncommittedObjectsSummary


def kind_boxes(lake: LakeConfig) -> list[Box]:
    """Returns the boxes of its kind that this lake has."""
    boxes = kind_of(lake).kind_tables_of(lake)
    return [_box(box, boxes) for box in boxes]


def _box(own: KindTable, boxes: Sequence[KindTable]) -> Box:
    """Returns a kind's box as a box of the flow. The live set is made from the last of the boxes
    that come before it.
    """
    is_last = not any(own.table.name == table.name for other in boxes for table in other.after)
    return Box(
        shown=(SHOWN.get(own.table.name, Shown(own.table, _rows)),),
        made_from=own.after,
        stage=partial(_stage, own),
        spark=needs_spark(own),
        feeds=(LIVE_FILES,) if own.before_live and is_last else (),
    )


def _stage(own: KindTable, spark: Any, context: RunContext, lake_name: str) -> object:
    return make_kind_table(spark, context, lake_name, own)


def _rows(published: PublishedTable) -> Figures:
    return {"rows": published.receipt.rows}


def _listed(published: PublishedTable) -> Figures:
    summary = published.summary(SnapshotHistorySummary)
    return {"listed_snapshots": summary.listed, "expired_snapshots": summary.expired}


def _staged(published: PublishedTable) -> Figures:
    return {"staged_objects": published.summary(UncommittedObjectsSummary).objects}


def _potential(published: PublishedTable) -> Figures:
    summary = published.summary(PotentialCommitsSummary)
    return {"commits": summary.commits, "potential_commits": summary.potential}


def _notes(_: RunContext, published: PublishedTable) -> str:
    return "\n".join(f"- {plain(note)}" for note in published.summary(PotentialCommitsSummary).notes)


def _released(published: PublishedTable) -> Figures:
    summary = published.summary(LifecycleObjectsSummary)
    released = summary.released
    return {"released_objects": released.files, "released_bytes": released.bytes, "deduplicated_objects": summary.deduplicated.files}


# The figures and reports of tables, beyond their rows.
SHOWN: Final = {
    shown.table.name: shown
    for shown in (
        Shown(SNAPSHOT_HISTORY, _listed),
        Shown(UNCOMMITTED_OBJECTS, _staged),
        Shown(POTENTIAL_COMMITS, _potential, _notes),
        Shown(LIFECYCLE_OBJECTS, _released),
    )
}
