"""Trace a file back to the ref that needs it.

The chain follows the witnesses in `live_files` (one commit and one container that show why a file
is live). It is computed without Spark, by lookups in published tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.moments import format_time
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.read.browse import read_matching_rows
from gc_assets.stages.read.live_rows import LiveRows
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import DANGLING_SIDE, EXPIRED_SIDE

# No format nests containers more deeply, so a longer chain must be a cycle.
MAX_CONTAINERS: Final = 8


@dataclass(frozen=True, slots=True)
class Link:
    """One object on the chain from a ref to a file. `what` is the kind of the object."""

    what: str
    name: str
    detail: str = ""


def chain(context: RunContext, lake: str, row: dict[str, Any], side: str | None = None) -> Iterator[Link]:
    """Yield the objects from a ref to a file: ref, commit, containers from outer to inner, file.

    If the file is part of the lake's current state, the lake takes the place of ref and commit.

    Args:
        row: Row of `live_files` for the file.
        side: Side table that contains the row, or None if the file is live.
    """
    links = [Link(row["kind"], row["key"], _size(row))]
    top, commit, table = row["container"], row["commit_id"], row["table_uuid"]
    for _ in range(MAX_CONTAINERS):
        if top is None:
            break
        parent = _container(context, lake, top, side)
        if parent is None:
            links.append(Link("container", top, "outside all storages"))
            break
        links.append(Link(parent["kind"], parent["key"], _size(parent)))
        top, commit, table = parent["container"], parent["commit_id"], parent["table_uuid"]
    if commit is None:
        yield Link("lake", lake, "part of its current state: current metadata, refs or configuration")
    else:
        yield from _commit_links(context, lake, commit, table)
    yield from reversed(links)


def _container(context: RunContext, lake: str, address: str, side: str | None) -> dict[str, Any] | None:
    live = LiveSet(context, context.table(LIVE_FILES, lake))
    if live.is_view:
        row = live.container(address)
        return row if row is not None and row["storage"] is not None else None
    resolved = context.resolver().locate_one(address)
    if resolved is None:
        return None
    side_names = (None,) if side is None else (side, None)  # a container of expired history may also be live
    for name in side_names:
        rows = read_matching_rows(context.state, LIVE_FILES.schema, live.table.paths(name), "key", [resolved[1]])
        for row in rows.to_pylist():
            if row["storage"] == resolved[0]:
                return row
    return None


def _commit_links(context: RunContext, lake: str, commit: str, table: str | None) -> Iterator[Link]:
    reachable = context.table(REACHABLE_SNAPSHOTS, lake)
    reachable = _find_row(read_key_rows(context, REACHABLE_SNAPSHOTS.schema, reachable, "commit_id", commit), table)
    refs = context.table(LAKE_REFS, lake)
    if reachable is not None and reachable["refs"]:
        name = reachable["refs"][0]
        ref = _find_row(read_key_rows(context, LAKE_REFS.schema, refs, "ref_name", name), table)
        others = f", one of {count_of(reachable['refs_count'], 'ref')} that reach it" if reachable["refs_count"] > 1 else ""
        steps = _steps_back(context, lake, ref["head_commit_id"], commit, table) if ref is not None else None
        back = "" if steps is None else ", its head" if steps == 0 else f", {count_of(steps, 'commit')} before its head"
        table_part = f" of {ref['table_name']}" if ref is not None and ref["table_name"] else ""
        yield Link(ref["ref_type"] if ref is not None else "ref", name, f"in lake {lake}{table_part}{back}{others}")
    graph = _find_row(read_key_rows(context, COMMIT_GRAPH.schema, context.table(COMMIT_GRAPH, lake), "commit_id", commit), table)
    at = format_time(graph["committed_at"]) if graph is not None and graph["committed_at"] is not None else ""
    reason = reachable["reason"] if reachable is not None else ""
    until = f"; kept until {format_time(reachable['keep_until'])}" if reachable is not None and reachable["keep_until"] is not None else ""
    yield Link("commit", commit, "; ".join(part for part in (at, reason) if part) + until)


def _steps_back(context: RunContext, lake: str, head: str | None, commit: str, table: str | None) -> int | None:
    """Count the commits on the shortest path from a head to a commit, or None if there is no path."""
    graph = context.table(COMMIT_GRAPH, lake)
    rows = read_parts(context.state.files, graph.paths(), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "parents"])
    same = pc.is_null(rows.column("table_uuid")) if table is None else pc.equal(rows.column("table_uuid"), table)
    rows = rows.filter(same)
    parents = dict(zip(rows.column("commit_id").to_pylist(), rows.column("parents").to_pylist(), strict=True))
    level, seen, steps = {head}, {head}, 0
    while level:
        if commit in level:
            return steps
        level = {parent for child in level for parent in parents.get(child) or ()} - seen
        seen |= level
        steps += 1
    return None


def last_chain(context: RunContext, live: LiveRows, storage: str, key: str) -> tuple[Link, ...]:
    """Return the chain of objects in expired or dangling history through which a file is needed.

    The chain is empty if neither expired nor dangling history needs the file.
    """
    for side in (EXPIRED_SIDE, DANGLING_SIDE):
        for row in live.find(storage, key, side):
            return tuple(chain(context, row["lake"], row, side))
    return ()


def read_key_rows(context: RunContext, schema: pa.Schema, published: PublishedTable, column: str, value: str) -> list[dict[str, Any]]:
    return read_matching_rows(context.state, schema, published.paths(), column, [value]).to_pylist(maps_as_pydicts="lossy")


def _find_row(rows: list[dict[str, Any]], table: str | None) -> dict[str, Any] | None:
    return next((row for row in rows if row["table_uuid"] == table), None)


def _size(row: dict[str, Any]) -> str:
    return f"{row['size_bytes']:,} bytes" if row["size_bytes"] is not None and row["size_bytes"] >= 0 else ""
