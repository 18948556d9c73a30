"""Find the last known state of a lake, for tables that the current run cannot read.

The published tables of an earlier run show which files each table needs, so nothing else has to be
stored while a table is readable. For each unreadable table, every run publishes the table's earlier
content roots again with `live_files`, together with those that are readable now. Because these
roots only accumulate, a single earlier run is always sufficient
(docs/adr/0009-unreadable-tables.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.claims import find_table_location, find_table_prefix
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.plan import Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.mark.content_index import ContentIndex
from gc_assets.stages.mark.content_roots import HELD, REACHED, RootTables, open_root_tables, read_content_roots
from gc_assets.stages.mark.resolution import resolve_or_keep
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, SOURCES, SOURCES_SIDE, UNREADABLE_ROOTS, UNREADABLE_ROOTS_SIDE
from gc_assets.state.summaries import FreezeTime, LiveFilesSummary, UnreadTable

# Replaces a table UUID if the whole lake is unreadable.
WHOLE_LAKE: Final = ""


@dataclass(frozen=True)
class LastKnown:
    """A lake's content roots (files that commits reference) and claims in an earlier run.

    The object can be pickled and sent to Spark executors.

    Attributes:
        unreadable_roots: Parts with content roots of unreadable tables (`UNREADABLE_ROOTS`
            columns).
        claims: Parts with the lake's claims (`CLAIMS` columns).
        uuids: UUIDs of all tables that any run found, keyed by table name. For a server's contents,
            these are the ids that the earlier run read.
        never_read: UUIDs of tables that no run has read completely. They may include `WHOLE_LAKE`.
        unreadable: Tables that the earlier run could not read.
        addresses: Metadata addresses of tables that the earlier run could read, keyed by UUID.
        resolver: This run's resolver, because storages and symbolic links may have changed since
            the earlier run.
    """

    files: Files
    run_date: date
    roots: RootTables
    unreadable_roots: tuple[str, ...]
    claims: tuple[str, ...]
    uuids: Mapping[str, Collection[str]]
    never_read: Collection[str]
    unreadable: tuple[Unreadable, ...]
    addresses: Mapping[str, str]
    resolver: KeyResolver

    def was_read(self, key: str) -> bool:
        """Check whether any run has read this table (or `WHOLE_LAKE`) completely."""
        return key not in self.never_read and (key == WHOLE_LAKE or any(key in uuids for uuids in self.uuids.values()))

    def find_renamed(self, unread: Sequence[UnreadTable], found: Collection[str]) -> dict[str, UnreadTable]:
        """Return the unreadable tables to which missing tables may have been renamed.

        A renamed table keeps its location. If either location is unknown, any table may match. If
        several unreadable tables match, the first one is returned. The result is keyed by the UUID
        of the missing table.

        Args:
            unread: The unreadable tables of this run.
            found: UUIDs of the tables that this run found under any name.
        """
        missing = sorted({uuid for uuids in self.uuids.values() for uuid in uuids} - set(found))
        if not missing or not unread:
            return {}
        anywhere = next((item for item in unread if item.address is None), None)
        by_location = {self._resolve_location(item.address): item for item in reversed(unread) if item.address is not None}
        renamed: dict[str, UnreadTable] = {}
        for uuid in missing:
            address = self.addresses.get(uuid)
            item = unread[0] if address is None else by_location.get(self._resolve_location(address), anywhere)
            if item is not None:
                renamed[uuid] = item
        return renamed

    def _resolve_location(self, address: str) -> str | tuple[str, str]:
        """Resolve a metadata file's table location to storage and key, or return its address."""
        location = find_table_location(address)
        return self.resolver.locate_one(location) or location

    def roots_of(self, keys: Collection[str]) -> pa.Table:
        """Return the content roots that the given tables needed in the earlier run.

        All files that belonged to the lake's current state at that time are included. For a
        server's contents, the roots of all contents that were already unreadable are included too.

        Args:
            keys: UUIDs of the tables, ids of the contents, or `WHOLE_LAKE`.

        Returns:
            Rows with the `UNREADABLE_ROOTS` columns.
        """
        known = resolve_or_keep(read_content_roots(self.roots), self.resolver)
        known = known.filter(pc.less_equal(known.column("rank"), HELD))
        previous = resolve_or_keep(read_parts(self.files, list(self.unreadable_roots), UNREADABLE_ROOTS), self.resolver)
        if WHOLE_LAKE not in keys and self.roots.contents is not None:
            known = known.filter(pc.is_in(known.column("address"), ContentIndex.read(self.roots).addresses_of(keys)))
        elif WHOLE_LAKE not in keys:
            ids = pa.array(sorted(keys), pa.string())
            known, previous = (
                rows.filter(pc.or_(pc.is_null(rows.column("commit_id")), pc.is_in(rows.column("table_uuid"), ids)))
                for rows in (known, previous)
            )
        unreadable_ids = sorted(item.table_uuid for item in self.unreadable if item.table_uuid is not None)
        partly = pc.is_in(known.column("table_uuid"), pa.array(unreadable_ids, pa.string()))
        if any(item.is_whole_lake or self.roots.contents is not None for item in self.unreadable):
            partly = pa.chunked_array([pa.array(np.ones(known.num_rows, bool))])
        return pa.concat_tables(
            [
                unreadable_root_rows(known.filter(pc.invert(partly)), in_full=True),
                unreadable_root_rows(known.filter(partly), in_full=False),
                previous,
            ]
        )

    def read_claims(self) -> pa.Table:
        """Read the claims of the earlier run, with their earlier and their current keys."""
        earlier = read_parts(self.files, list(self.claims), CLAIMS)
        return pa.concat_tables([earlier, resolve_or_keep(earlier, self.resolver)])


def build_shields(claims: pa.Table, keys: Collection[str]) -> pa.Table:
    """Turn the claims of tables into shields: prefixes under which no file is ever collected.

    `keys` contains the UUIDs of the tables, or `WHOLE_LAKE` for all claims. Claims and shields have
    the `CLAIMS` columns.
    """
    if WHOLE_LAKE not in keys:
        claims = claims.filter(pc.is_in(claims.column("table_uuid"), pa.array(sorted(keys), pa.string())))
    return replace_columns(claims, {"collect": pa.array(np.zeros(claims.num_rows, bool))})


def shield_directories(containers: pa.Table, named: pa.Table) -> pa.Table:
    """Build shields for the table locations around containers, and for locations in containers.

    A shield is a prefix under which no file is collected.

    Args:
        containers: The containers (`ROOTS` columns).
        named: The locations that unreadable containers contain (`UNREAD_LOCATIONS` columns).

    Returns:
        Rows with the `CLAIMS` columns.
    """
    rows = [row for row in containers.select(["address", "storage", "key"]).to_pylist() if row["storage"] is not None]
    others = named.filter(pc.is_in(named.column("container"), containers.column("address").combine_chunks())).to_pylist()
    shields = [
        {
            "address": find_table_location(row["address"]),
            "storage": row["storage"],
            "key": find_table_prefix(row["key"]),
            "table_name": row["address"],
            "collect": False,
        }
        for row in rows
    ]
    shields += [
        {"address": row["address"], "storage": row["storage"], "key": row["key"], "table_name": row["container"], "collect": False}
        for row in others
        if row["storage"] is not None
    ]
    # Thousands of commits may reference metadata in the same directory.
    return pa.Table.from_pylist(list({(row["storage"], row["key"]): row for row in reversed(shields)}.values()), CLAIMS)


def unreadable_root_rows(roots: pa.Table, *, in_full: bool) -> pa.Table:
    """Convert content roots to rows of `UNREADABLE_ROOTS`."""
    return roots.append_column("in_full", pa.array(np.full(roots.num_rows, in_full))).select(UNREADABLE_ROOTS.names).cast(UNREADABLE_ROOTS)


def as_optional_live(roots: pa.Table) -> pa.Table:
    """Mark content roots as live, but do not require that they exist.

    They may be missing, which may even be the reason why their table is unreadable.
    """
    columns = {"rank": pa.array(np.full(roots.num_rows, REACHED, np.int8)), "must_exist": pa.array(np.zeros(roots.num_rows, bool))}
    return replace_columns(roots, columns)


def find_last_known(context: RunContext, lake_name: str, frozen_at: datetime) -> LastKnown | None:
    """Return the state of the newest run that read its refs at or before a time, or None."""
    last = find_last_run(context, lake_name, frozen_at)
    return None if last is None else open_last_known(context, lake_name, *last)


def find_last_run(context: RunContext, lake_name: str, frozen_at: datetime) -> tuple[PublishedTable, PublishedTable] | None:
    """Return `live_files` and `lake_refs` of the newest run with refs read at or before a time."""
    state = context.state
    live = {run.run_id: run for run in state.history(lake_name, LIVE_FILES.name)}
    for refs in list_freezes(context, lake_name, frozen_at):
        for run in sorted((run for run in live.values() if run.run_date == refs.run_date), key=lambda run: run.run_id, reverse=True):
            found = state.open(run)
            if _input_runs(found).get(LAKE_REFS.name) == refs.run_id:
                return found, state.open(refs)
    return None


def list_freezes(context: RunContext, lake_name: str, frozen_at: datetime) -> list[PastRun]:
    """Return the runs that recorded a lake's refs at or before a time, newest first.

    A rehearsal may use real runs, but a real run never uses a rehearsal.
    """
    freezes = [
        run
        for run in context.state.history(lake_name, LAKE_REFS.name)
        if run.summary(FreezeTime).frozen_at <= frozen_at and (context.clock.is_rehearsal or not run.summary(FreezeTime).rehearsal)
    ]
    return sorted(freezes, key=lambda run: (run.summary(FreezeTime).frozen_at, run.run_id), reverse=True)


def open_last_known(context: RunContext, lake_name: str, live: PublishedTable, refs: PublishedTable) -> LastKnown | None:
    """Open a lake's state in an earlier run, or return None if one of its tables was pruned."""
    state, ids = context.state, _input_runs(live)
    tables = [COMMIT_GRAPH, REACHABLE_SNAPSHOTS, EXPIRY_PLAN, *([LIVE_CONTENTS] if context.kind(lake_name).has_live_contents else [])]
    inputs = {LAKE_REFS.name: refs}
    for table in tables:
        runs: list[PastRun] = [run for run in state.history(lake_name, table.name) if run.run_id == ids.get(table.name)]
        if not runs:
            return None  # pruned
        inputs[table.name] = state.open(runs[0])
    unreadable = live.summary(LiveFilesSummary).unreadable
    never_read = {item.table_uuid or WHOLE_LAKE for item in unreadable if item.good_on is None and (item.table_uuid or item.is_whole_lake)}
    sources = read_parts(state.files, refs.paths(SOURCES_SIDE), SOURCES, ["table_uuid", "address"]).to_pylist()
    return LastKnown(
        state.files,
        live.receipt.run_date,
        open_root_tables(context, lake_name, inputs),
        tuple(live.paths(UNREADABLE_ROOTS_SIDE)),
        (*refs.paths(CLAIMS_SIDE), *live.paths(CLAIMS_SIDE)),
        _read_uuids(state, inputs, unreadable),
        frozenset(never_read),
        unreadable,
        {row["table_uuid"]: row["address"] for row in sources if row["table_uuid"] is not None},
        context.resolver(),
    )


def _read_uuids(state: State, inputs: Mapping[str, PublishedTable], unreadable: Sequence[Unreadable]) -> dict[str, set[str]]:
    """Read the UUIDs of tables and the ids of a server's contents, keyed by name."""
    rows = read_rows(state, LAKE_REFS, inputs[LAKE_REFS.name], columns=["table_name", "table_uuid"]).to_pylist()
    pairs = [(row["table_name"], row["table_uuid"]) for row in rows] + [(item.table_name, item.table_uuid) for item in unreadable]
    if LIVE_CONTENTS.name in inputs and not any(item.is_whole_lake for item in unreadable):
        contents = read_rows(state, LIVE_CONTENTS, inputs[LIVE_CONTENTS.name], columns=["content_key", "content_id"]).to_pylist()
        pairs += [(row["content_key"], row["content_id"]) for row in contents]
    uuids: dict[str, set[str]] = {}
    for name, uuid in pairs:
        if name is not None and uuid is not None:
            uuids.setdefault(name, set()).add(uuid)
    return uuids


def _input_runs(table: PublishedTable) -> dict[str, str]:
    """Return the run ids of a table's inputs, keyed by asset name."""
    return {name.split("/")[-2]: reference.partition(":")[0] for name, reference in table.receipt.inputs.items()}
