"""lakeFS: publishes what staging areas name, as it was frozen with the refs."""

from __future__ import annotations

import pyarrow.compute as pc

from gc_assets.core.parts import read_parts
from gc_assets.core.receipts import Published
from gc_assets.schemas import LAKE_REFS, UNCOMMITTED, UNCOMMITTED_OBJECTS
from gc_assets.stages.lake_refs import UNCOMMITTED_SIDE
from gc_assets.stages.night import Night
from gc_assets.stages.tables import publish, write_rows


def uncommitted_objects(night: Night, lake_name: str) -> Published:
    """`uncommitted_objects` of a run date; all of them are live."""
    state = night.state
    refs = state.require(night.group(lake_name), LAKE_REFS.name, night.run_date)
    run = state.start(night.group(lake_name), UNCOMMITTED_OBJECTS.name, night.run_date, night.clock)
    rows = read_parts(state.files, refs.paths(UNCOMMITTED_SIDE), UNCOMMITTED)
    key = pc.coalesce(rows.column("key"), rows.column("address"))
    rows = rows.set_column(rows.schema.get_field_index("key"), UNCOMMITTED.field("key"), key)
    written = write_rows(rows, UNCOMMITTED_OBJECTS, run, state.files)
    branches = rows.column("branch").drop_null().unique()
    facts = {"objects": rows.num_rows, "branches": len(branches)}
    return publish(state, run, written, night.clock, inputs=[refs], facts=facts, unsafe=night.unsafe)
