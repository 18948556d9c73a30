"""Keep files that a listed table needed through metadata its catalog no longer uses.

A catalog can point to older metadata than before, for example after it was restored from a backup
or because a table was registered again. Similarly, if a table has several names (`register_table`),
one of them may be dropped. Commits that are only in the former metadata then look like garbage,
although users can still register the table with that metadata. Therefore, the content roots (files
that commits reference directly) which the last run read from it stay live for `retention.dropped`.

When a table disappears from its catalog, its roots are recorded as well, because it may be
registered again with older metadata. While it is missing, `sweep/dropped_tables.py` decides about
its files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.dropped_tables import FORGET_AFTER
from gc_assets.core.printable import show
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.pointers import Histories, Pointer, Succession, group_pointers
from gc_assets.lakes.protocol import PointerLake, as_pointer_lake
from gc_assets.stages.mark.last_known import WHOLE_LAKE, as_optional_live, find_last_run, open_last_known
from gc_assets.stages.mark.resolution import resolve_or_keep
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.side_tables import (
    FORMER_ROOTS,
    FORMER_ROOTS_SIDE,
    PINNED,
    PINNED_SIDE,
    POINTERS,
    POINTERS_SIDE,
    ROOTS,
    SOURCES,
    SOURCES_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary

# The roots of a missing table stay recorded for at least this long after the first run without it.
_REMEMBERED: Final = timedelta(days=30)
# Concurrent reads of metadata files. Stores take tens of milliseconds to respond.
_CONCURRENT_READS: Final = 16
# Further notes about kept metadata are summarized in one line.
_MAX_NOTES: Final = 5
_NO_ROOTS: Final = pa.Table.from_batches([], FORMER_ROOTS)


@dataclass(frozen=True)
class FormerMetadata:
    """A lake's former metadata, and the state that the next run needs to find more of it.

    Attributes:
        pointers: Pointers (a catalog's metadata file for a table) that the next run needs: those to
            former metadata, and those to compare with its own. Empty if they equal those recorded
            with the refs.
        roots: The content roots of former metadata, and of missing or unreadable tables
            (`FORMER_ROOTS` columns).
        notes: Messages about files that are kept, or why such files are unknown.
    """

    pointers: Sequence[Pointer] = ()
    roots: pa.Table = field(default_factory=lambda: _NO_ROOTS)
    notes: tuple[str, ...] = ()

    def build_sides(self) -> dict[str, pa.Table]:
        """Return the former metadata as side tables of `live_files`, keyed by side table name."""
        rows = [{**asdict(item), "heads": sorted(item.heads)} for item in self.pointers]
        sides = {POINTERS_SIDE: pa.Table.from_pylist(rows, POINTERS), FORMER_ROOTS_SIDE: self.roots}
        return {side: rows for side, rows in sides.items() if rows.num_rows}


def read_live_roots(files: Files, paths: Sequence[str]) -> pa.Table:
    """Read the content roots of former metadata that are live. Their objects may be missing.

    Returns:
        Rows with the `ROOTS` columns.
    """
    roots = read_parts(files, list(paths), FORMER_ROOTS)
    return as_optional_live(roots.filter(roots.column("is_live")).select(ROOTS.names).cast(ROOTS))


def read_last_live_roots(context: RunContext, lake_name: str, frozen_at: datetime) -> pa.Table:
    """Return the live content roots of former metadata, as recorded by the last run before a time.

    This run may find more such roots, but the last run has already decoded the containers of those.

    Returns:
        Rows with the `ROOTS` columns. Their keys are resolved again.
    """
    last = find_last_run(context, lake_name, frozen_at)
    paths = [] if last is None else last[0].paths(FORMER_ROOTS_SIDE)
    return resolve_or_keep(read_live_roots(context.state.files, paths), context.resolver())


def read_published_pointers(context: RunContext, live: PublishedTable) -> list[Pointer]:
    """Return the metadata pointers that a run published with its `live_files`."""
    rows = read_parts(context.state.files, live.paths(POINTERS_SIDE), POINTERS).to_pylist()
    return [Pointer(**{name: row[name] for name in POINTERS.names if name != "heads"}, heads=frozenset(row["heads"])) for row in rows]


def is_due(item: Pointer, now: datetime, after: timedelta | None) -> bool:
    """Check whether the files of a former pointer no longer have to be kept.

    `after` is None if they are kept permanently.
    """
    return after is not None and item.former_since is not None and now - item.former_since >= after


def describe_wait(item: Pointer, after: timedelta | None) -> str:
    """Describe how long the files of a former pointer are kept."""
    if after is None or item.former_since is None:
        return "because `retention.dropped` is keep"
    return f"until {item.former_since + after:%Y-%m-%d %H:%M} UTC"


def find_former_metadata(
    context: RunContext, lake_name: str, inputs: Mapping[str, PublishedTable], unread: Collection[str]
) -> FormerMetadata:
    """Find former metadata by comparing the metadata pointers of two runs.

    Args:
        inputs: Result of `find_root_inputs`.
        unread: UUIDs of the tables that this run cannot read, or `WHOLE_LAKE`.
    """
    lake, refs = as_pointer_lake(context.lake(lake_name)), inputs[LAKE_REFS.name]
    if lake is None:
        return FormerMetadata()
    now, after = refs.summary(LakeRefsSummary).frozen_at, context.config.lake(lake_name).dropped_after
    current = _read_pointers(context, refs)
    last = find_last_run(context, lake_name, now)
    before = [] if last is None else _read_last_pointers(context, *last)
    if last is None or not before:
        return FormerMetadata()
    known = _KnownPointers.of(before, current, unread, now, after)
    # If the catalog changed, the former one may still be in use. The gate foreign_metadata compares
    # their metadata.
    compared = known.compared if _has_same_catalog(last[1], refs) else []
    former = _find_former(context, lake, refs, group_pointers(compared, current))
    kept = [*known.kept, *(replace(item, former_since=now) for item in former)]
    if not (kept or known.absent or known.unread):
        return FormerMetadata()
    roots, notes = _collect_roots(context, lake_name, last, kept, [*known.absent, *known.unread])
    recorded, addresses = set(roots.column("metadata").to_pylist()), {item.address for item in current}
    kept = [item for item in kept if item.address in recorded]
    notes += _describe_kept(lake_name, [item for item in kept if item.address not in addresses], after)
    names = {(item.table_uuid, item.table_name) for item in known.unread}
    listed = (item for item in current if (item.table_uuid, item.table_name) not in names)
    return FormerMetadata([*kept, *known.absent, *known.unread, *listed], roots, tuple(notes))


@dataclass(frozen=True, slots=True)
class _KnownPointers:
    """Metadata pointers that earlier runs published.

    Attributes:
        compared: Pointers of tables that this run can read.
        unread: Pointers of tables that this run cannot read.
        absent: Pointers of tables that are missing from the catalog.
        kept: Former pointers whose files are still kept.
    """

    compared: list[Pointer]
    unread: list[Pointer]
    absent: list[Pointer]
    kept: list[Pointer]

    @classmethod
    def of(
        cls, before: Sequence[Pointer], current: Sequence[Pointer], unread: Collection[str], now: datetime, after: timedelta | None
    ) -> Self:
        listed, remembered = {item.table_uuid for item in current}, max(after or FORGET_AFTER, _REMEMBERED)
        found = cls([], [], [], [])
        for item in before:
            if item.former_since is not None:
                found.kept.extend([] if is_due(item, now, after) else [item])
            elif WHOLE_LAKE in unread or item.table_uuid in unread:
                found.unread.append(item)
            elif item.table_uuid in listed:
                found.compared.append(item)
            elif now - (missing_since := item.missing_since or now) < remembered:
                found.absent.append(replace(item, missing_since=missing_since))
        return found


def _read_pointers(context: RunContext, refs: PublishedTable) -> list[Pointer]:
    """Return the metadata pointers recorded with a run's refs."""
    heads = defaultdict[tuple[str, str], set[str]](set)
    for row in read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "table_name", "head_commit_id"]).to_pylist():
        heads[row["table_uuid"], row["table_name"]].update([row["head_commit_id"]] if row["head_commit_id"] is not None else [])
    sources = read_parts(context.state.files, refs.paths(SOURCES_SIDE), SOURCES, ["table_uuid", "table_name", "address"]).to_pylist()
    read_at = refs.summary(LakeRefsSummary).frozen_at
    return [
        Pointer(row["table_uuid"], row["table_name"], row["address"], frozenset(heads[row["table_uuid"], row["table_name"]]), read_at)
        for row in sources
        if row["table_uuid"] is not None
    ]


def _has_same_catalog(before: PublishedTable, now: PublishedTable) -> bool:
    catalogs = {table.summary(LakeRefsSummary).catalog for table in (before, now)}
    return len(catalogs - {None}) < 2


def _read_last_pointers(context: RunContext, live: PublishedTable, refs: PublishedTable) -> list[Pointer]:
    """Return the last run's metadata pointers, either published or recorded with its refs."""
    return read_published_pointers(context, live) or _read_pointers(context, refs)


def _find_former(context: RunContext, lake: PointerLake, refs: PublishedTable, tables: Mapping[str, Succession]) -> list[Pointer]:
    """Return the earlier pointers whose table history no current pointer continues.

    If a table has a single name, its metadata is only read if the metadata log recorded with the
    refs does not contain the earlier pointer.
    """
    moved = {uuid: found for uuid, table in tables.items() if (found := table.find_moved())}
    if not moved:
        return []
    addresses = pa.array([item.address for items in moved.values() for item in items], pa.string())
    logged = read_parts(context.state.files, refs.paths(PINNED_SIDE), PINNED, ["address"]).column("address")
    in_logs = set(addresses.filter(pc.is_in(addresses, logged.combine_chunks())).to_pylist())
    resolver = context.resolver()
    histories = Histories(lake.read_lineage, lambda address: resolver.locate_one(address) or address)
    unknown = [tables[uuid] for uuid, items in moved.items() if not (tables[uuid].is_single and items[0].address in in_logs)]
    with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
        return [item for found in pool.map(histories.find_former, unknown) for item in found]


def _collect_roots(
    context: RunContext, lake_name: str, last: tuple[PublishedTable, PublishedTable], kept: Sequence[Pointer], waiting: Sequence[Pointer]
) -> tuple[pa.Table, list[str]]:
    """Collect the content roots that tables needed with former or last known metadata.

    Args:
        last: Result of `find_last_run`.
        kept: Former pointers, whose roots are live.
        waiting: Pointers of missing or unreadable tables, whose roots do not become live here.

    Returns:
        The content roots (`FORMER_ROOTS` columns), and notes on why some of them are unknown.
    """
    known = read_parts(context.state.files, last[0].paths(FORMER_ROOTS_SIDE), FORMER_ROOTS)
    recorded = set(known.column("metadata").unique().to_pylist())
    new = [item for item in (*kept, *waiting) if item.address not in recorded]
    last_known = open_last_known(context, lake_name, *last) if new else None
    found, notes = [known], list[str]()
    if last_known is not None:
        roots = last_known.roots_of({item.table_uuid for item in new}).select(ROOTS.names)
        found.append(_select_roots(roots, new))
    elif new:
        notes.append(
            f"lake {lake_name}: the commits of the last run are no longer available. Files that only {len(new):,} former metadata files "
            "reference can therefore not be kept"
        )
    rows = pa.concat_tables(found)
    is_live = pc.is_in(rows.column("metadata"), pa.array([item.address for item in kept], pa.string()))
    rows = rows.set_column(rows.schema.get_field_index("is_live"), "is_live", is_live)
    wanted = pa.array([item.address for item in (*kept, *waiting)], pa.string())
    return resolve_or_keep(rows.filter(pc.is_in(rows.column("metadata"), wanted)).cast(FORMER_ROOTS), context.resolver()), notes


def _select_roots(roots: pa.Table, pointers: Sequence[Pointer]) -> pa.Table:
    """Return the roots of some tables' commits, and the current-state files next to their metadata.

    The rows have the `FORMER_ROOTS` columns and are not live yet.
    """
    metadata = [item.address for item in pointers]
    of_tables = pa.table({"table_uuid": [item.table_uuid for item in pointers], "metadata": metadata})
    next_to = pa.table({"directory": [address.rpartition("/")[0] + "/" for address in metadata], "metadata": metadata})
    of_commits, of_state = (roots.filter(condition) for condition in (roots["commit_id"].is_valid(), roots["commit_id"].is_null()))
    directory = pc.replace_substring_regex(of_state["address"], "[^/]*$", "", max_replacements=1)
    found = [
        of_commits.join(of_tables, "table_uuid", join_type="inner"),
        of_state.append_column("directory", directory).join(next_to, "directory", join_type="inner"),
    ]
    names = [*ROOTS.names, "metadata"]
    rows = pa.concat_tables([rows.select(names) for rows in found])
    return rows.append_column("is_live", pa.repeat(pa.scalar(value=False), rows.num_rows)).cast(FORMER_ROOTS)


def _describe_kept(lake_name: str, kept: Sequence[Pointer], after: timedelta | None) -> Iterator[str]:
    for item in kept[:_MAX_NOTES]:
        if item.former_since is None:
            continue
        yield (
            f"lake {lake_name}: on {item.read_at:%Y-%m-%d}, the catalog had the metadata {show(item.address)} of table "
            f"{show(item.table_name)}, which is not in the history of its current metadata. Files needed at that time are kept "
            f"{describe_wait(item, after)}. To restore the commits, register the table with this file, or with a newer one that no run read"
        )
    if len(kept) > _MAX_NOTES:
        yield f"lake {lake_name}: files of {len(kept) - _MAX_NOTES:,} more metadata files are kept for the same reason"
