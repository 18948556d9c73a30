"""Report the files and history edits of a plan for each table.

Rows of a plan name the lake only, so the table comes from `orphan_files`. The tables are read with
Arrow, part by part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.phases import PURGE
from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.read.browse import batches
from gc_assets.stages.read.dropped_tables import dropped_names
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN, EXPIRY_PLAN, LAKE_REFS, ORPHAN_FILES

# Larger plans are summed by lake only, so that a report reads no large table into memory.
MAX_ROWS: Final = 200_000
MAX_ORPHANS: Final = 2_000_000

_Group = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class TableAmounts:
    """Planned files and history edits of one table.

    Attributes:
        lake: The lake, or "" for files that no lake of the configuration claims.
        table: The name of the table. None for a lake of one repository, for quarantined files, and
            if the plan is summed by lake.
        files: Planned files of all actions.
    """

    lake: str
    table: str | None
    files: Amount = field(default_factory=Amount)
    edits: int = 0

    @property
    def name(self) -> str:
        return ": ".join(part for part in (self.lake, self.table) if part) or "-"


def amounts_by_table(context: RunContext, header: PlanHeader, published: PublishedTable) -> list[TableAmounts]:
    """Return the amounts of a plan by table: most bytes first, then most edits.

    Args:
        context: The run context. Its run date does not matter.
        published: The table of the plan.
    """
    files = dict(_files(context, header, published))
    edits = Counter[_Group]()
    for lake, count in header.expiry_actions.items():
        edits += _edits(context, header, lake, count)
    found = [
        TableAmounts(lake, table, files.get((lake, table), Amount()), edits[lake, table]) for lake, table in files.keys() | edits.keys()
    ]
    return sorted(found, key=lambda item: (-item.files.bytes, -item.files.files, -item.edits, item.lake, item.table or ""))


def _files(context: RunContext, header: PlanHeader, published: PublishedTable) -> Iterator[tuple[_Group, Amount]]:
    sweeps = _sweeps(context, header, published)
    owners, names = _owners(context, published, sweeps), _table_names(context, header, sweeps)
    by = ["lake", "table_uuid"]
    sums = [
        pa.Table.from_batches([batch]).join(owners, "key").group_by(by).aggregate([([], "count_all"), ("size_bytes", "sum")])
        for batch in batches(context.state, DELETION_PLAN.schema, published.paths(), ["key", "lake", "size_bytes"])
    ]
    if not sums:
        return
    amounts: dict[_Group, list[Amount]] = {}
    for row in pa.concat_tables(sums).to_pylist():
        group = row["lake"] or "", names.get((row["lake"], row["table_uuid"]), row["table_uuid"])
        amounts.setdefault(group, []).append(Amount(files=row["count_all"], bytes=row["size_bytes_sum"] or 0))
    yield from ((group, Amount.total(parts)) for group, parts in amounts.items())


def _owners(context: RunContext, published: PublishedTable, sweeps: Sequence[PublishedTable]) -> pa.Table:
    """Return the table uuid of those keys of the plan that its sweeps contain."""
    schema = pa.schema([ORPHAN_FILES.schema.field(name) for name in ("key", "table_uuid")])
    if not sweeps or sum(table.receipt.rows for table in sweeps) > MAX_ORPHANS or published.receipt.rows > MAX_ROWS:
        return schema.empty_table()
    keys = read_rows(context.state, DELETION_PLAN, published, columns=["key"]).column("key").combine_chunks()
    found = batches(context.state, ORPHAN_FILES.schema, [path for table in sweeps for path in table.paths()], schema.names)
    rows = pa.Table.from_batches([batch.filter(pc.is_in(batch.column("key"), value_set=keys)) for batch in found], schema)
    # A key that several sweeps contain is counted once.
    unique = rows.group_by("key", use_threads=False).aggregate([("table_uuid", "first")])
    return pa.table({"key": unique.column("key"), "table_uuid": unique.column("table_uuid_first")})


def _sweeps(context: RunContext, header: PlanHeader, published: PublishedTable) -> list[PublishedTable]:
    """Return `orphan_files` of the plan's run, and of the runs whose plans quarantined its purges."""
    dates = {header.run_date}
    if PURGE in header.totals and published.receipt.rows <= MAX_ROWS:
        sources = read_rows(context.state, DELETION_PLAN, published, columns=["source_plan_id"]).column("source_plan_id")
        plan_ids = set(sources.unique().to_pylist())
        dates |= {plan.header.run_date for plan in list_plans(context.config, header.storage) if plan.header.plan_id in plan_ids}
    found = (context.state.current(header.storage, ORPHAN_FILES.name, day) for day in sorted(dates, reverse=True))
    return [table for table in found if table is not None]


def _table_names(context: RunContext, header: PlanHeader, sweeps: Sequence[PublishedTable]) -> dict[tuple[str, str | None], str]:
    found: dict[tuple[str, str | None], str] = {}
    for orphans in reversed(sweeps):  # a newer name replaces an older one
        found |= dropped_names(context, orphans)
    for lake in context.config.lakes:
        refs = context.state.current(lake.name, LAKE_REFS.name, header.run_date)
        if refs is not None:
            rows = read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name"]).to_pylist()
            found |= {(lake.name, row["table_uuid"]): row["table_name"] for row in rows if row["table_name"] is not None}
    return found


def _edits(context: RunContext, header: PlanHeader, lake: str, count: int) -> Counter[_Group]:
    """Return the edits of a lake by table, or by lake if the expiry plan is of a later run."""
    published = context.state.current(lake, EXPIRY_PLAN.name, header.run_date)
    if published is None or published.receipt.rows != count:
        return Counter({(lake, None): count})
    names = read_rows(context.state, EXPIRY_PLAN, published, columns=["table_name"]).column("table_name").to_pylist()
    return Counter((lake, name) for name in names)
