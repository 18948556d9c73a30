"""Find tables whose planned edits do not need another preflight check."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.expired_since import find_input
from gc_assets.stages.mark.commit_graph import find_unchanged_tables
from gc_assets.stages.records.plans import list_plans, previous_plan
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_LOG, LAKE_REFS
from gc_assets.state.side_tables import EXPIRY_ACTIONS, EXPIRY_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import LakeRefsSummary


def find_checked_tables(context: RunContext, storage_name: str, lake_name: str) -> frozenset[str]:
    """Return the UUIDs of tables that passed the preflight check of the storage's last plan.

    That plan edits these tables, and their names and metadata have not changed since. All tables
    are checked again if the lake has another catalog, or if an apply has tried to edit its history.
    """
    last = previous_plan(list_plans(context.config, storage_name, empty=True), context.clock)
    if last is None or any(log.run_id > last.run.run_id for log in context.state.history(lake_name, EXPIRY_LOG.name)):
        return frozenset()
    try:
        plan, refs = context.state.open(last.run), context.table(LAKE_REFS, lake_name)
        earlier = find_input(context, plan, LAKE_REFS, lake_name)
        if earlier is None or earlier.summary(LakeRefsSummary).catalog != refs.summary(LakeRefsSummary).catalog:
            return frozenset()
        edits = read_parts(context.state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS, ["lake", "table_uuid"])
        unchanged = find_unchanged_tables(_read_sources(context, refs), _read_sources(context, earlier))
    except StateError:  # the last plan is only needed to save time
        return frozenset()
    edited = edits.filter(pc.equal(edits.column("lake"), lake_name)).column("table_uuid").unique()
    return frozenset(unchanged.filter(pc.is_in(unchanged, edited)).to_pylist())


def _read_sources(context: RunContext, refs: PublishedTable) -> pa.Table:
    return read_parts(context.state.files, refs.paths(SOURCES_SIDE), SOURCES)
