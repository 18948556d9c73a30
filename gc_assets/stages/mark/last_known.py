"""Remembers what the last night knew of a lake, for the tables that tonight cannot read (design
6.5).

The last night's own tables say what each table needed, so nothing is written for tables that are
well. What a sick table needed is written again each night beside `live_files`, together with what
is readable of it. So the memory of a sick table only grows, and one night before is always enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.mark.content_roots import HELD, REACHED, RootTables, open_root_tables, read_content_roots
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, UNREADABLE_ROOTS, UNREADABLE_ROOTS_SIDE
from gc_assets.state.summaries import Freeze, LiveFilesSummary

# Stands for the uuid of a table where the whole lake is sick.
WHOLE_LAKE: Final = ""


@dataclass(frozen=True)
class LastKnown:
    """What the last night knew of a lake. Pickles.

    `uuids` are the tables that a night read in full, by name. `unreadable` are those that the last night
    could not read.
    """

    files: Files
    run_date: date
    roots: RootTables
    unreadable_roots: tuple[str, ...]
    claims: tuple[str, ...]
    uuids: Mapping[str, Collection[str]]
    unreadable: tuple[Unreadable, ...]

    def list_unreadable(
        self, keys: Mapping[str, str], names: Mapping[str, str], places: Mapping[str, Sequence[str]], lake: str, now: datetime
    ) -> tuple[Unreadable, ...]:
        """Returns what is sick, by table uuid (or `WHOLE`) with why, since when and by which names.

        `places` are the storages that each table claims a part of.
        """
        before = {item.table_uuid or WHOLE_LAKE: item for item in self.unreadable if item.table_uuid is not None or item.is_whole_lake}
        known = {uuid: name for name, found in self.uuids.items() for uuid in found} | dict(names)
        return tuple(
            Unreadable(
                lake=lake,
                table_uuid=key or None,
                table_name=known.get(key),
                why=why,
                since=before[key].since if key in before else now,
                good_on=before[key].good_on if key in before else self.run_date if self.knows(key) else None,
                storages=() if self.knows(key) else tuple(sorted(set(places.get(key, ())))),
            )
            for key, why in sorted(keys.items())
        )

    def knows(self, key: str) -> bool:
        """Says whether a night read this table (or `WHOLE`) in full."""
        return key == WHOLE_LAKE or any(key in uuids for uuids in self.uuids.values())

    def roots_of(self, keys: Collection[str]) -> pa.Table:
        """Returns the content roots that these needed (columns `UNREADABLE_ROOTS`), with all files of the
        then present state.
        """
        known = read_content_roots(self.roots)
        known = known.filter(pc.less_equal(known.column("rank"), HELD))
        before = read_parts(self.files, list(self.unreadable_roots), UNREADABLE_ROOTS)
        if WHOLE_LAKE not in keys:
            ids = pa.array(sorted(keys), pa.string())
            known = known.filter(pc.or_(pc.is_null(known.column("commit_id")), pc.is_in(known.column("table_uuid"), ids)))
            before = before.filter(pc.or_(pc.is_null(before.column("commit_id")), pc.is_in(before.column("table_uuid"), ids)))
        was_unreadable = sorted(item.table_uuid for item in self.unreadable if item.table_uuid is not None)
        partly = pc.is_in(known.column("table_uuid"), pa.array(was_unreadable, pa.string()))
        if any(item.is_whole_lake for item in self.unreadable):
            partly = pa.chunked_array([pa.array(np.ones(known.num_rows, bool))])
        return pa.concat_tables(
            [
                unreadable_root_rows(known.filter(pc.invert(partly)), in_full=True),
                unreadable_root_rows(known.filter(partly), in_full=False),
                before,
            ]
        )

    def shields(self, keys: Collection[str], tonight: Iterable[pa.Table]) -> pa.Table:
        """Returns the claims of these, then and tonight, as shields (columns `CLAIMS`)."""
        claims = pa.concat_tables([read_parts(self.files, list(self.claims), CLAIMS), *tonight])
        if WHOLE_LAKE not in keys:
            claims = claims.filter(pc.is_in(claims.column("table_uuid"), pa.array(sorted(keys), pa.string())))
        return shielding(claims)


def shielding(claims: pa.Table) -> pa.Table:
    """Returns claims below which nothing is collected any more."""
    at = CLAIMS.get_field_index("collect")
    return claims.set_column(at, CLAIMS.field(at), pa.array(np.zeros(claims.num_rows, bool)))


def unreadable_root_rows(roots: pa.Table, *, in_full: bool) -> pa.Table:
    """Returns roots as rows of `UNREADABLE_ROOTS`."""
    return roots.append_column("in_full", pa.array(np.full(roots.num_rows, in_full))).select(UNREADABLE_ROOTS.names).cast(UNREADABLE_ROOTS)


def as_optional_live(roots: pa.Table) -> pa.Table:
    """Returns roots as live ones whose absence is no sign of loss: it may be why a table is sick."""
    columns = {"rank": pa.array(np.full(roots.num_rows, REACHED, np.int8)), "must_exist": pa.array(np.zeros(roots.num_rows, bool))}
    return pa.table({name: columns.get(name, roots.column(name)) for name in roots.column_names}).cast(roots.schema)


def find_last_known(context: RunContext, lake_name: str, frozen_at: datetime) -> LastKnown | None:
    """Returns what was known of the lake when its refs were last frozen, at `frozen_at` at the
    latest, and all else was read. Null where that never was.

    Real nights count for a rehearsal, and a rehearsal for no real night.
    """
    state = context.state
    live = {run.run_id: run for run in state.history(lake_name, LIVE_FILES.name)}
    freezes = [
        run
        for run in state.history(lake_name, LAKE_REFS.name)
        if run.headline(Freeze).frozen_at <= frozen_at and (context.clock.is_rehearsal or not run.headline(Freeze).rehearsal)
    ]
    for refs in sorted(freezes, key=lambda run: (run.headline(Freeze).frozen_at, run.run_id), reverse=True):
        for run in sorted((run for run in live.values() if run.run_date == refs.run_date), key=lambda run: run.run_id, reverse=True):
            found = state.open(run)
            if _inputs(found).get(LAKE_REFS.name) == refs.run_id:
                return _memory(context, lake_name, found, state.open(refs))
    return None


def _memory(context: RunContext, lake_name: str, live: PublishedTable, refs: PublishedTable) -> LastKnown | None:
    state, ids = context.state, _inputs(live)
    tables = [COMMIT_GRAPH, REACHABLE_SNAPSHOTS, EXPIRY_PLAN, *([LIVE_CONTENTS] if context.kind(lake_name).has_live_contents else [])]
    inputs = {LAKE_REFS.name: refs}
    for table in tables:
        runs: list[PastRun] = [run for run in state.history(lake_name, table.name) if run.run_id == ids.get(table.name)]
        if not runs:
            return None  # pruned
        inputs[table.name] = state.open(runs[0])
    unreadable = live.summary(LiveFilesSummary).unreadable
    never = {item.table_uuid for item in unreadable if item.good_on is None}
    named = read_rows(state, LAKE_REFS, refs, columns=["table_name", "table_uuid"]).to_pylist()
    pairs = [(row["table_name"], row["table_uuid"]) for row in named] + [(item.table_name, item.table_uuid) for item in unreadable]
    uuids: dict[str, set[str]] = {}
    for name, uuid in pairs:
        if name is not None and uuid is not None and uuid not in never:
            uuids.setdefault(name, set()).add(uuid)
    return LastKnown(
        state.files,
        live.receipt.run_date,
        open_root_tables(context, lake_name, inputs),
        tuple(live.paths(UNREADABLE_ROOTS_SIDE)),
        (*refs.paths(CLAIMS_SIDE), *live.paths(CLAIMS_SIDE)),
        uuids,
        unreadable,
    )


def _inputs(table: PublishedTable) -> dict[str, str]:
    """Returns the run ids of what a table was made of, by asset."""
    return {name.split("/")[-2]: reference.partition(":")[0] for name, reference in table.receipt.inputs.items()}
