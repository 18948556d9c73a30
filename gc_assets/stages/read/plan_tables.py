"""Report the files and history edits of a plan for each table.

Rows of a plan name the lake only, so the table comes from `orphan_files`. The tables are read with
Arrow, part by part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.stages.read.browse import batches
from gc_assets.stages.read.dropped_tables import dropped_names
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
        edits: Planned history edits.
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
        header: The plan.
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
    owners, names = _owners(context, header, published), _table_names(context, header)
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


def _owners(context: RunContext, header: PlanHeader, published: PublishedTable) -> pa.Table:
    """Return the table uuid of those keys of the plan that `orphan_files` contains."""
    schema = pa.schema([ORPHAN_FILES.schema.field(name) for name in ("key", "table_uuid")])
    orphans = context.state.current(header.storage, ORPHAN_FILES.name, header.run_date)
    if orphans is None or orphans.receipt.rows > MAX_ORPHANS or published.receipt.rows > MAX_ROWS:
        return schema.empty_table()
    keys = read_rows(context.state, DELETION_PLAN, published, columns=["key"]).column("key").combine_chunks()
    found = batches(context.state, ORPHAN_FILES.schema, orphans.paths(), schema.names)
    return pa.Table.from_batches([batch.filter(pc.is_in(batch.column("key"), value_set=keys)) for batch in found], schema)


def _table_names(context: RunContext, header: PlanHeader) -> dict[tuple[str, str | None], str]:
    found = dropped_names(context, context.state.current(header.storage, ORPHAN_FILES.name, header.run_date))
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
