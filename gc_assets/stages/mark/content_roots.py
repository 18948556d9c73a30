"""Ranks the metadata objects that commits point at by what the policy makes of their commits, and
finds all containers below them.

Arrow in one task. Containers number thousands where files number millions, so a Spark join
per level would cost more than the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED
from gc_assets.stages.mark.edges import EdgeIndex
from gc_assets.state.arrow_types import CONTENT_ROOT
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import PINNED, PINNED_SIDE, ROOTS

# Where several commits need one object, the lowest rank wins. REACHED: a ref reaches a retained
# commit. SPARED: no ref reaches the retained commit, which is young or staged. HELD: history must
# let go first (an expired commit, an unreferenced Iceberg snapshot that metadata still lists).
# RELEASED: the commit expired in a lake whose history is never edited. DEAD: nothing names the
# object any more. The first two are live.
REACHED, SPARED, HELD, RELEASED, DEAD = 0, 1, 2, 3, 4

ROOT_COLUMNS: Final = tuple(field.name for field in CONTENT_ROOT)


@dataclass(frozen=True, slots=True)
class RootTables:
    """Where the tables that content roots come from were published. Pickles.

    `contents` is null for lakes without `live_contents`. With `tolerant` only what a head shows
    must exist.
    """

    files: Files
    graph: tuple[str, ...]
    reachable: tuple[str, ...]
    expiry: tuple[str, ...]
    pinned: tuple[str, ...]
    edited: bool
    contents: tuple[str, ...] | None = None
    tolerant: bool = False


def find_root_inputs(context: RunContext, lake_name: str) -> dict[str, PublishedTable]:
    """Returns the published tables that the content roots of a lake come from, by asset name."""
    tables = [LAKE_REFS, COMMIT_GRAPH, REACHABLE_SNAPSHOTS, EXPIRY_PLAN]
    if context.kind(lake_name).has_live_contents:
        tables.append(LIVE_CONTENTS)
    return {table.name: context.table(table, lake_name) for table in tables}


def open_root_tables(context: RunContext, lake_name: str, inputs: dict[str, PublishedTable]) -> RootTables:
    return RootTables(
        context.state.files,
        tuple(inputs[COMMIT_GRAPH.name].paths()),
        tuple(inputs[REACHABLE_SNAPSHOTS.name].paths()),
        tuple(inputs[EXPIRY_PLAN.name].paths()),
        tuple(inputs[LAKE_REFS.name].paths(PINNED_SIDE)),
        context.kind(lake_name).edits_history,
        tuple(inputs[LIVE_CONTENTS.name].paths()) if LIVE_CONTENTS.name in inputs else None,
        context.config.lake(lake_name).tolerates_missing_history,
    )


def has_live_roots(context: RunContext, lake_name: str) -> bool:
    """Says whether any retained commit of the lake points at metadata or shows a content, or its
    present state does. Where none does, that nothing is live is a fact.
    """
    graph, reachable, refs = (context.find(table, lake_name) for table in (COMMIT_GRAPH, REACHABLE_SNAPSHOTS, LAKE_REFS))
    if graph is None or reachable is None or refs is None or refs.paths(PINNED_SIDE):
        return True
    if context.kind(lake_name).has_live_contents:
        contents = context.find(LIVE_CONTENTS, lake_name)
        return contents is None or contents.receipt.rows > 0
    files = context.state.files
    judged = read_parts(files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state"])
    commits = read_parts(files, graph.paths(), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "content_roots"])
    others = judged.filter(pc.not_equal(judged.column("state"), RETAINED))
    kept = commits.filter(pc.invert(pc.is_in(_identity(commits, "commit_id"), _identity(others, "commit_id"))))
    return bool(pc.sum(pc.list_value_length(kept.column("content_roots"))).as_py())


def read_content_roots(tables: RootTables) -> pa.Table:
    """Returns one row per commit and object that it points at (columns `ROOTS`).

    Files of the present state rank `REACHED` and name no commit.

    Raises `StateError` for a commit of the graph without a known state. Without a rank its files
    would look dead.
    """
    judged = RetentionTables(
        read_parts(tables.files, list(tables.reachable), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state", "refs_count"]),
        read_parts(tables.files, list(tables.expiry), EXPIRY_PLAN.schema, ["table_uuid", "snapshot_id", "action"]),
        None if tables.contents is None else read_parts(tables.files, list(tables.contents), LIVE_CONTENTS.schema),
    )
    return rank_roots(tables, judged)


@dataclass(frozen=True, slots=True)
class RetentionTables:
    """A policy's word on every commit of a graph: tables with columns of `reachable_snapshots`,
    `expiry_plan` and `live_contents`. The last is null for lakes that have none.
    """

    reachable: pa.Table
    expiry: pa.Table
    contents: pa.Table | None


def rank_roots(tables: RootTables, judged: RetentionTables) -> pa.Table:
    """Returns `content_roots` as they are by any policy's word on the same graph."""
    graph = read_parts(tables.files, list(tables.graph), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "content_roots"])
    reachable, expiry = judged.reachable, judged.expiry
    removed = expiry.filter(pc.equal(expiry.column("action"), "remove_snapshot"))

    ids = _identity(graph, "commit_id")
    at = pc.index_in(ids, _identity(reachable, "commit_id"))
    state, refs = reachable.column("state").take(at), reachable.column("refs_count").take(at)
    _refuse_unjudged(graph.filter(pc.invert(pc.is_in(state, pa.array([RETAINED, EXPIRED, DANGLING])))))
    live = pc.if_else(pc.greater(refs, 0), REACHED, SPARED)
    held = pc.or_(pc.equal(state, EXPIRED), pc.is_in(ids, _identity(removed, "snapshot_id")))
    gone = pc.if_else(held, HELD if tables.edited else RELEASED, DEAD)
    rank = pc.if_else(pc.equal(state, RETAINED), live, gone).cast(pa.int8())

    lists = graph.column("content_roots").combine_chunks()
    owner, roots = pc.list_parent_indices(lists), pc.list_flatten(lists)
    of_commits = pa.table(
        {name: pc.struct_field(roots, name) for name in ROOT_COLUMNS}
        | {
            "rank": rank.take(owner),
            "commit_id": graph.column("commit_id").take(owner),
            "table_uuid": graph.column("table_uuid").take(owner),
            "parent": pa.nulls(len(roots), pa.string()),
        }
    )
    if judged.contents is not None:
        of_commits = rank_by_contents(of_commits, judged.contents, tolerant=tables.tolerant)
    pinned = read_parts(tables.files, list(tables.pinned), PINNED)
    nobody = pa.nulls(pinned.num_rows, pa.string())
    of_now = pinned.select(list(ROOT_COLUMNS)).append_column("rank", pa.array(np.zeros(pinned.num_rows, np.int8)))
    for name in ("commit_id", "table_uuid", "parent"):
        of_now = of_now.append_column(name, nobody)
    return pa.concat_tables([of_commits.select(ROOTS.names).cast(ROOTS), of_now.select(ROOTS.names).cast(ROOTS)])


def rank_by_contents(roots: pa.Table, contents: pa.Table, *, tolerant: bool) -> pa.Table:
    """Ranks the roots of a lake with contents by what its live contents show.

    An object is live if a live content shows it, whatever commit put it. It ranks `REACHED` if a
    ref shows the content, else `SPARED`. Its witness is the content's commit, of several the one
    with the first id. An object that no live content shows ranks `RELEASED`, or `DEAD` if its
    commit does, and need not exist.

    What a ref shows must exist. With `tolerant` only what a head shows must.
    """
    ordered = contents.sort_by([("at_head", "descending"), ("ref_name", "ascending"), ("commit_id", "ascending")])
    at = pc.index_in(roots.column("address"), ordered.column("metadata_location"))
    live = pc.is_valid(at)
    by_ref = pc.is_valid(ordered.column("ref_name").take(at))
    must = pc.fill_null(ordered.column("at_head").take(at), False) if tolerant else by_ref
    reached, spared, released = (pa.scalar(rank, pa.int8()) for rank in (REACHED, SPARED, RELEASED))
    columns = {
        "rank": pc.if_else(by_ref, reached, pc.if_else(live, spared, pc.max_element_wise(roots.column("rank"), released))),
        "commit_id": pc.coalesce(ordered.column("commit_id").take(at), roots.column("commit_id")),
        "must_exist": pc.and_(pc.and_(live, must), roots.column("must_exist")),
    }
    return pa.table({name: columns.get(name, roots.column(name)) for name in roots.column_names})


def _refuse_unjudged(commits: pa.Table) -> None:
    if commits.num_rows:
        raise StateError(
            f"{commits.num_rows:,} commits of commit_graph have no state in reachable_snapshots that is retained, expired or dangling: "
            f"{', '.join(commits.column('commit_id').slice(0, 5).to_pylist())}; run reachable_snapshots again"
        )


def closure(roots: pa.Table, edges: pa.Table) -> pa.Table:
    """Returns every container below the roots once, with the strongest commit that needs it
    (columns `ROOTS`).

    `edges` has one row per container inside a container, as `read_edges` returns them. A container
    is followed again only where a stronger commit reaches it, or an equally strong one
    for which it must exist. So the walk ends even where a metadata object names itself. Below a
    container that may be absent, everything may be absent.
    """
    found = _strongest(roots.filter(roots.column("is_container")))
    inside, frontier = EdgeIndex(edges), found
    while frontier.num_rows:
        candidates = inside.below(frontier)
        at = pc.index_in(candidates.column("address"), found.column("address"))
        known, required = found.column("rank").take(at), found.column("must_exist").take(at)
        no_less = pc.and_(pc.equal(candidates.column("rank"), known), pc.and_(candidates.column("must_exist"), pc.invert(required)))
        frontier = candidates.filter(pc.fill_null(pc.or_(pc.less(candidates.column("rank"), known), no_less), True))
        # A row as strong as the witness leads nowhere new. But it may know the size, or that the
        # object must exist.
        no_weaker = candidates.filter(pc.fill_null(pc.less_equal(candidates.column("rank"), known), True))
        found = _strongest(pa.concat_tables([found, no_weaker]))
    return found


def _strongest(rows: pa.Table) -> pa.Table:
    """Returns one row per address: its witness is the row of the lowest rank, then of the first
    commit id, then of the first table and parent, so that no order of rows matters.

    The size is known if any row knows it. The object must exist if any row says so.
    """
    ordered = rows.sort_by([(name, "ascending") for name in ("rank", "commit_id", "table_uuid", "parent", "kind")])
    others = [name for name in ROOTS.names if name not in {"address", "size_bytes", "must_exist"}]
    how = [(name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in others]
    grouped = ordered.group_by("address", use_threads=False).aggregate([*how, ("size_bytes", "max"), ("must_exist", "max")])
    named = {f"{name}_first": name for name in others} | {"size_bytes_max": "size_bytes", "must_exist_max": "must_exist"}
    return grouped.rename_columns([named.get(name, name) for name in grouped.column_names]).select(ROOTS.names).cast(ROOTS)


def _identity(rows: pa.Table, commit: str) -> pa.ChunkedArray:
    """Returns table uuid and commit id as one value. The uuid is empty for a lake without tables."""
    return pc.binary_join_element_wise(pc.fill_null(rows.column("table_uuid"), ""), rows.column(commit), "\x1f")
