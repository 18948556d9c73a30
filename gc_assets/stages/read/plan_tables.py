"""Break a plan's files and history edits down by table.

Plan rows only contain the lake, so the table of each file is looked up in `orphan_files`. Rows are
read one part at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.phases import PURGE
from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import BRANCH_EDITS
from gc_assets.stages.read.browse import batches, name_tables
from gc_assets.stages.read.dropped_tables import dropped_names
from gc_assets.stages.read.reversibility import count_final_edits, describe_effects, has_final_edits
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, LAKE_REFS, ORPHAN_FILES
from gc_assets.state.side_tables import EXPIRY_ACTIONS, EXPIRY_SIDE
from gc_assets.state.summaries import DeletionPlanSummary

# Larger plans are only summed by lake, so that a report does not load a large table into memory.
MAX_ROWS: Final = 200_000
MAX_ORPHANS: Final = 2_000_000

_Group = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class TableAmounts:
    """Planned files and history edits of one table.

    Attributes:
        lake: The lake, or "" for files that no configured lake claims.
        table: The table name. None for a single repository, if the table of quarantined files is
            unknown, or if a large plan is only summed for each lake.
        by_action: Planned files, keyed by action.
        edits: Number of history edits.
        final_edits: Number of history edits that cannot be undone.
    """

    lake: str
    table: str | None
    by_action: Mapping[str, Amount] = field(default_factory=dict[str, Amount])
    edits: int = 0
    final_edits: int = 0

    @property
    def name(self) -> str:
        return ": ".join(part for part in (self.lake, self.table) if part) or "-"

    @property
    def files(self) -> Amount:
        """The sum of the planned files over all actions."""
        return Amount.total(self.by_action.values())

    @property
    def effects(self) -> tuple[str, str]:
        """Short descriptions of the irreversible and of the reversible actions."""
        return describe_effects(self.by_action, self.edits, self.final_edits)


def amounts_by_table(context: RunContext, header: PlanHeader, published: PublishedTable) -> list[TableAmounts]:
    """Sum up a plan by table. The result begins with the tables that have most bytes.

    Args:
        context: The run context. Its run date does not matter.
        header: The header of the plan.
        published: The plan's `deletion_plan` table.
    """
    files, edits, final_edits = _files(context, header, published), Counter[_Group](), Counter[_Group]()
    for lake in header.expiry_actions:
        every, final = _edits(context, header, lake, published)
        edits += every
        final_edits += final
    groups = files.keys() | edits.keys()
    found = [TableAmounts(*group, files.get(group, {}), edits[group], final_edits[group]) for group in groups]
    return sorted(found, key=lambda item: (-item.files.bytes, -item.files.files, -item.edits, item.lake, item.table or ""))


def purges_by_table(context: RunContext, storages: Sequence[str]) -> dict[tuple[str, str | None], Amount]:
    """Return the number and size of quarantined files that a run's plans purge, by lake and table.

    Args:
        storages: Names of the storages that have a plan.
    """
    found: dict[_Group, list[Amount]] = {}
    for storage in storages:
        published = context.table(DELETION_PLAN, storage)
        header = published.summary(DeletionPlanSummary).header
        for item in amounts_by_table(context, header, published) if PURGE in header.totals else ():
            if PURGE in item.by_action:
                found.setdefault((item.lake, item.table), []).append(item.by_action[PURGE])
    return {group: Amount.total(amounts) for group, amounts in found.items()}


def list_largest(tables: Sequence[TableAmounts], limit: int) -> list[TableAmounts]:
    """Return the first `limit` tables, followed by one entry that sums up all others."""
    others = tables[limit:]
    return [*tables[:limit], _sum_tables(others)] if others else [*tables]


def _sum_tables(tables: Sequence[TableAmounts]) -> TableAmounts:
    actions = {action for table in tables for action in table.by_action}
    files = {action: Amount.total(table.by_action[action] for table in tables if action in table.by_action) for action in actions}
    name = count_of(len(tables), "more table")
    return TableAmounts("", name, files, sum(table.edits for table in tables), sum(table.final_edits for table in tables))


def _files(context: RunContext, header: PlanHeader, published: PublishedTable) -> dict[_Group, dict[str, Amount]]:
    sweeps = _sweeps(context, header, published)
    owners, names = _owners(context, published, sweeps), _table_names(context, header, sweeps)
    by = ["lake", "table_uuid", "action"]
    sums = [
        pa.Table.from_batches([batch]).join(owners, "key").group_by(by).aggregate([([], "count_all"), ("size_bytes", "sum")])
        for batch in batches(context.state, DELETION_PLAN.schema, published.paths(), ["key", "lake", "action", "size_bytes"])
    ]
    amounts: dict[_Group, dict[str, Amount]] = {}
    for row in pa.concat_tables(sums).to_pylist() if sums else ():
        group = row["lake"] or "", names.get((row["lake"], row["table_uuid"]), row["table_uuid"])
        by_action, amount = amounts.setdefault(group, {}), Amount(files=row["count_all"], bytes=row["size_bytes_sum"] or 0)
        by_action[row["action"]] = Amount.total((by_action.get(row["action"], Amount()), amount))
    return amounts


def _owners(context: RunContext, published: PublishedTable, sweeps: Sequence[PublishedTable]) -> pa.Table:
    """Look up the table UUIDs of planned files in `orphan_files`.

    If the plan or the tables `orphan_files` are too large, the result is empty.
    """
    schema = pa.schema([ORPHAN_FILES.schema.field(name) for name in ("key", "table_uuid")])
    if not sweeps or sum(table.receipt.rows for table in sweeps) > MAX_ORPHANS or published.receipt.rows > MAX_ROWS:
        return schema.empty_table()
    keys = read_rows(context.state, DELETION_PLAN, published, columns=["key"]).column("key").combine_chunks()
    found = batches(context.state, ORPHAN_FILES.schema, [path for table in sweeps for path in table.paths()], schema.names)
    rows = pa.Table.from_batches([batch.filter(pc.is_in(batch.column("key"), value_set=keys)) for batch in found], schema)
    # A key may be in several sweeps, but must be counted once.
    unique = rows.group_by("key", use_threads=False).aggregate([("table_uuid", "first")])
    return pa.table({"key": unique.column("key"), "table_uuid": unique.column("table_uuid_first")})


def _sweeps(context: RunContext, header: PlanHeader, published: PublishedTable) -> list[PublishedTable]:
    """Find the `orphan_files` tables that contain the planned files.

    Files to quarantine are in the table of the plan's own run. Files to purge are in those of the
    runs whose plans quarantined them.
    """
    dates = {header.run_date}
    if PURGE in header.totals and published.receipt.rows <= MAX_ROWS:
        sources = read_rows(context.state, DELETION_PLAN, published, columns=["source_plan_id"]).column("source_plan_id")
        plan_ids = set(sources.unique().to_pylist())
        dates |= {plan.header.run_date for plan in list_plans(context.config, header.storage) if plan.header.plan_id in plan_ids}
    found = (context.state.current(header.storage, ORPHAN_FILES.name, day) for day in sorted(dates, reverse=True))
    return [table for table in found if table is not None]


def _table_names(context: RunContext, header: PlanHeader, sweeps: Sequence[PublishedTable]) -> dict[tuple[str, str | None], str]:
    found: dict[tuple[str, str | None], str] = {}
    for orphans in reversed(sweeps):  # newer names replace older ones
        found |= dropped_names(context, orphans)
    frozen = (context.state.current(lake.name, LAKE_REFS.name, header.run_date) for lake in context.config.lakes)
    return found | name_tables(context.state, filter(None, frozen))


def _edits(context: RunContext, header: PlanHeader, lake: str, plan: PublishedTable) -> tuple[Counter[_Group], Counter[_Group]]:
    """Count all edits and the irreversible edits of a lake for each table.

    Plans of older releases do not contain their edits. In that case the edits come from
    `expiry_plan`, or are counted for the whole lake if a later run has replaced that table.
    """
    planned = read_parts(context.state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS, ["lake", "table_name", "action"])
    rows = planned.filter(pc.equal(planned.column("lake"), lake)).to_pylist()
    count, published = header.expiry_actions[lake], context.state.current(lake, EXPIRY_PLAN.name, header.run_date)
    if not rows and published is not None and published.receipt.rows == count:
        rows = read_rows(context.state, EXPIRY_PLAN, published, columns=["table_name", "action"]).to_pylist()
    if not rows:
        return Counter({(lake, None): count}), Counter({(lake, None): count_final_edits(header, context.config).get(lake, 0)})
    final = [row for row in rows if row["action"] not in BRANCH_EDITS] if has_final_edits(context.config, lake) else []
    return Counter((lake, row["table_name"]) for row in rows), Counter((lake, row["table_name"]) for row in final)
