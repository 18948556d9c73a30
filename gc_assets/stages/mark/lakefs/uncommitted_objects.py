"""Publish the staged objects of a lakeFS lake, as read with the refs."""

from __future__ import annotations

import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.engine.progress import log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.lakefs.tables import UNCOMMITTED_OBJECTS
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.side_tables import UNCOMMITTED, UNCOMMITTED_SIDE
from gc_assets.state.summaries import UncommittedObjectsSummary


@log_progress(UNCOMMITTED_OBJECTS)
def uncommitted_objects(context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `uncommitted_objects` for a run date: the staged objects, which are all live."""
    state = context.state
    refs = context.table(LAKE_REFS, lake_name)
    run = start_run(context, context.group(lake_name), UNCOMMITTED_OBJECTS)
    rows = read_parts(state.files, refs.paths(UNCOMMITTED_SIDE), UNCOMMITTED)
    rows = replace_columns(rows, {"key": pc.coalesce(rows.column("key"), rows.column("address"))})
    written = write_rows(rows, UNCOMMITTED_OBJECTS, run, state.files)
    branches = rows.column("branch").drop_null().unique()
    summary = UncommittedObjectsSummary(objects=rows.num_rows, branches=len(branches))
    return publish(state, run, written, context.clock, inputs=[refs], summary=summary, unsafe=context.unsafe)
