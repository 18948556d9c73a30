"""The boxes that only lakes of one kind have, as their kind declares them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from gc_assets.assets.asset_step import Box, LakeConfig
from gc_assets.assets.figures import Figures
from gc_assets.assets.markdown import plain
from gc_assets.assets.results import Shown
from gc_assets.engine.run_context import Night
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import KindBox
from gc_assets.lakes.kinds import kind_of
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.stages.mark.kind_tables import make_box, needs_spark
from gc_assets.state.journal import Published
from gc_assets.state.schemas import LIVE_FILES
from gc_assets.state.summaries import LifecycleObjectsFacts, PotentialCommitsFacts, SnapshotHistoryFacts, UncommittedObjectsFacts


def kind_boxes(lake: LakeConfig) -> list[Box]:
    """Returns the boxes of its kind that this lake has."""
    boxes = kind_of(lake).boxes_of(lake)
    return [_box(box, boxes) for box in boxes]


def _box(own: KindBox, boxes: Sequence[KindBox]) -> Box:
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


def _stage(own: KindBox, spark: Any, night: Night, lake_name: str) -> object:
    return make_box(spark, night, lake_name, own)


def _rows(published: Published) -> Figures:
    return {"rows": published.receipt.rows}


def _listed(published: Published) -> Figures:
    facts = published.facts(SnapshotHistoryFacts)
    return {"listed_snapshots": facts.listed, "expired_snapshots": facts.expired}


def _staged(published: Published) -> Figures:
    return {"staged_objects": published.facts(UncommittedObjectsFacts).objects}


def _potential(published: Published) -> Figures:
    facts = published.facts(PotentialCommitsFacts)
    return {"commits": facts.commits, "potential_commits": facts.potential}


def _notes(_: Night, published: Published) -> str:
    return "\n".join(f"- {plain(note)}" for note in published.facts(PotentialCommitsFacts).notes)


def _released(published: Published) -> Figures:
    facts = published.facts(LifecycleObjectsFacts)
    released = facts.released
    return {"released_objects": released.files, "released_bytes": released.bytes, "deduplicated_objects": facts.deduplicated.files}


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
