"""Walks from a file up to the ref that needs it, by the witnesses that `live_files` keeps:
containers, commit, ref.

Arrow lookups over published tables. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.browse import read_matching_rows
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import DANGLING_SIDE, EXPIRED_SIDE

# No format nests deeper. A longer walk would be a circle.
MAX_CONTAINERS: Final = 8


@dataclass(frozen=True, slots=True)
class Link:
    """A step of the chain from a ref to the file: `what` it is, its `name`, and what is known of
    it.
    """

    what: str
    name: str
    detail: str = ""


def chain(context: RunContext, lake: str, row: dict[str, Any], side: str | None = None) -> Iterator[Link]:
    """Yields ref, commit, containers from the outermost, and file."""
    links = [Link(row["kind"], row["key"], _size(row))]
    top, commit, table = row["container"], row["commit_id"], row["table_uuid"]
    for _ in range(MAX_CONTAINERS):
        if top is None:
            break
        above = _container(context, lake, top, side)
        if above is None:
            links.append(Link("container", top, "outside all storages"))
            break
        links.append(Link(above["kind"], above["key"], _size(above)))
        top, commit, table = above["container"], above["commit_id"], above["table_uuid"]
    if commit is None:
        yield Link("lake", lake, "part of its present state: current metadata, refs or configuration")
    else:
        yield from _commit_links(context, lake, commit, table)
    yield from reversed(links)


def _container(context: RunContext, lake: str, address: str, side: str | None) -> dict[str, Any] | None:
    place = context.resolver().resolve_one(address)
    if place is None:
        return None
    sides = (None,) if side is None else (side, None)  # a container of expired history may be live itself
    for name in sides:
        for row in lake_rows(context, lake, "key", place[1], name):
            if row["storage"] == place[0]:
                return row
    return None


def _commit_links(context: RunContext, lake: str, commit: str, table: str | None) -> Iterator[Link]:
    reachable = context.table(REACHABLE_SNAPSHOTS, lake)
    said = _one_of(read_key_rows(context, REACHABLE_SNAPSHOTS.schema, reachable, "commit_id", commit), table)
    refs = context.table(LAKE_REFS, lake)
    if said is not None and said["refs"]:
        name = said["refs"][0]
        ref = _one_of(read_key_rows(context, LAKE_REFS.schema, refs, "ref_name", name), table)
        more = f", one of {said['refs_count']:,} refs that reach it" if said["refs_count"] > 1 else ""
        steps = _steps_back(context, lake, ref["head_commit_id"], commit, table) if ref is not None else None
        back = "" if steps is None else ", its head" if steps == 0 else f", {steps:,} commits before its head"
        where = f" of {ref['table_name']}" if ref is not None and ref["table_name"] else ""
        yield Link(ref["ref_type"] if ref is not None else "ref", name, f"in lake {lake}{where}{back}{more}")
    graph = _one_of(read_key_rows(context, COMMIT_GRAPH.schema, context.table(COMMIT_GRAPH, lake), "commit_id", commit), table)
    at = f"{graph['committed_at'].isoformat()}" if graph is not None and graph["committed_at"] is not None else ""
    why = said["reason"] if said is not None else ""
    until = f"; kept until {said['keep_until'].isoformat()}" if said is not None and said["keep_until"] is not None else ""
    yield Link("commit", commit, "; ".join(part for part in (at, why) if part) + until)


def _steps_back(context: RunContext, lake: str, head: str | None, commit: str, table: str | None) -> int | None:
    """Returns the length of the shortest way from `head` to `commit` by parents.

    Null where there is no way.
    """
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


def last_chain(context: RunContext, storage: str, key: str) -> tuple[Link, ...]:
    """Returns the chain of the expired or dangling history that last needed a file.

    Empty for a file that neither names.
    """
    for side in (EXPIRED_SIDE, DANGLING_SIDE):
        for lake in context.config.lakes:
            for row in lake_rows(context, lake.name, "key", key, side):
                if row["storage"] == storage:
                    return tuple(chain(context, lake.name, row, side))
    return ()


def lake_rows(context: RunContext, lake: str, column: str, value: str, side: str | None = None) -> list[dict[str, Any]]:
    live = context.find(LIVE_FILES, lake)
    return [] if live is None else read_matching_rows(context.state, LIVE_FILES.schema, live.paths(side), column, [value]).to_pylist()


def read_key_rows(context: RunContext, schema: pa.Schema, published: PublishedTable, column: str, value: str) -> list[dict[str, Any]]:
    return read_matching_rows(context.state, schema, published.paths(), column, [value]).to_pylist(maps_as_pydicts="lossy")


def _one_of(rows: list[dict[str, Any]], table: str | None) -> dict[str, Any] | None:
    return next((row for row in rows if row["table_uuid"] == table), None)


def _size(row: dict[str, Any]) -> str:
    return f"{row['size_bytes']:,} bytes" if row["size_bytes"] is not None and row["size_bytes"] >= 0 else ""
