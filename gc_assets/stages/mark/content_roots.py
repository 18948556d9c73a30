"""Rank content roots, the files that commits reference directly, by the state of their commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.errors import StateError
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.file_kinds import INFORMATIONAL_KINDS, Kind
from gc_assets.lakes.protocol import DANGLING, EDIT_PARENT, EXPIRED, REMOVE_SNAPSHOT, RETAINED
from gc_assets.state.arrow_types import CONTENT_ROOT
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, LIVE_CONTENTS, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, PINNED, PINNED_SIDE, ROOTS

# Ranks of the commits that need an object, from strongest to weakest. An object gets its lowest
# rank, and objects of the first two ranks are live.
# - REACHED: The commit is retained and reachable from a ref.
# - SPARED: The commit is retained because it is young or staged, although no ref reaches it.
# - HELD: The commit is still in the history and must be removed from it first.
# - RELEASED: The commit has expired, and this lake's history is never edited.
# - DEAD: The commit is dangling, and no planned edit removes it.
REACHED, SPARED, HELD, RELEASED, DEAD = 0, 1, 2, 3, 4

_EXPIRY_COLUMNS: Final = ["table_uuid", "snapshot_id", "action", "old_parent_id", "new_parent_id"]
ROOT_COLUMNS: Final = tuple(field.name for field in CONTENT_ROOT)


@dataclass(frozen=True, slots=True)
class RootTables:
    """Paths of the tables that determine content roots (files that commits reference directly).

    The object can be pickled and sent to Spark executors.

    Attributes:
        graph: Parts of `commit_graph`.
        reachable: Parts of `reachable_snapshots`.
        expiry: Parts of `expiry_plan`.
        pinned: Parts of the files that the lake's current state needs (`PINNED` columns).
        edited: True if plans edit the lake's history.
        contents: Parts of `live_contents`, or None for lakes without it.
        tolerant: If True, only the contents at heads must exist.
        keeps_listed: If True, all snapshots that live metadata lists are live.
        metadata_claims: Addresses of claims on metadata (`FileTraits.metadata_directory`). If there
            are any, the containers of expired commits stay live, and only their entries are
            garbage.
    """

    files: Files
    graph: tuple[str, ...]
    reachable: tuple[str, ...]
    expiry: tuple[str, ...]
    pinned: tuple[str, ...]
    edited: bool
    contents: tuple[str, ...] | None = None
    tolerant: bool = False
    keeps_listed: bool = True
    metadata_claims: tuple[str, ...] = ()


def find_root_inputs(context: RunContext, lake_name: str) -> dict[str, PublishedTable]:
    """Return the published tables that contain a lake's content roots, by table name."""
    tables = [LAKE_REFS, COMMIT_GRAPH, REACHABLE_SNAPSHOTS, EXPIRY_PLAN]
    if context.kind(lake_name).has_live_contents:
        tables.append(LIVE_CONTENTS)
    return {table.name: context.table(table, lake_name) for table in tables}


def open_root_tables(context: RunContext, lake_name: str, inputs: dict[str, PublishedTable]) -> RootTables:
    traits = context.kind(lake_name).files
    claims = read_parts(context.state.files, inputs[LAKE_REFS.name].paths(CLAIMS_SIDE), CLAIMS, ["address"]).column("address").to_pylist()
    return RootTables(
        context.state.files,
        tuple(inputs[COMMIT_GRAPH.name].paths()),
        tuple(inputs[REACHABLE_SNAPSHOTS.name].paths()),
        tuple(inputs[EXPIRY_PLAN.name].paths()),
        tuple(inputs[LAKE_REFS.name].paths(PINNED_SIDE)),
        context.kind(lake_name).edits_history,
        tuple(inputs[LIVE_CONTENTS.name].paths()) if LIVE_CONTENTS.name in inputs else None,
        context.config.lake(lake_name).tolerates_missing_history,
        context.config.lake(lake_name).keeps_listed_snapshots,
        tuple(filter(traits.is_metadata_claim, claims)),
    )


def has_live_roots(context: RunContext, lake_name: str) -> bool:
    """Check whether any file is pinned, or any retained commit has a content root or live content.

    If the result is False, an empty live set is correct.
    """
    graph, reachable, refs = (context.find(table, lake_name) for table in (COMMIT_GRAPH, REACHABLE_SNAPSHOTS, LAKE_REFS))
    if graph is None or reachable is None or refs is None or refs.paths(PINNED_SIDE):
        return True
    if context.kind(lake_name).has_live_contents:
        contents = context.find(LIVE_CONTENTS, lake_name)
        return contents is None or contents.receipt.rows > 0
    files = context.state.files
    states = read_parts(files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state"])
    commits = read_parts(files, graph.paths(), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "content_roots"])
    others = states.filter(pc.not_equal(states.column("state"), RETAINED))
    retained = commits.filter(pc.invert(pc.is_in(_commit_identity(commits, "commit_id"), _commit_identity(others, "commit_id"))))
    return bool(pc.sum(pc.list_value_length(retained.column("content_roots"))).as_py())


def read_content_roots(tables: RootTables) -> pa.Table:
    """Read one row per commit and content root (a file that the commit references directly).

    Pinned files of the lake's current state have the rank `REACHED` and no commit.

    Returns:
        Rows with the `ROOTS` columns.

    Raises:
        StateError: If a commit in the graph has no state. Without a rank, its files would look like
            garbage.
    """
    retention = RetentionTables(
        read_parts(tables.files, list(tables.reachable), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state", "refs_count"]),
        read_parts(tables.files, list(tables.expiry), EXPIRY_PLAN.schema, _EXPIRY_COLUMNS),
        None if tables.contents is None else read_parts(tables.files, list(tables.contents), LIVE_CONTENTS.schema),
    )
    return rank_roots(tables, retention)


@dataclass(frozen=True, slots=True)
class RetentionTables:
    """The result of applying a retention policy to all commits in a graph.

    Attributes:
        reachable: Columns of `reachable_snapshots`.
        expiry: Columns of `expiry_plan`.
        contents: Columns of `live_contents`, or None for lakes without it.
    """

    reachable: pa.Table
    expiry: pa.Table
    contents: pa.Table | None


def rank_roots(tables: RootTables, retention: RetentionTables) -> pa.Table:
    """Rank content roots like `read_content_roots`, but by the given result of a policy."""
    graph = read_parts(tables.files, list(tables.graph), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "content_roots"])
    reachable, expiry = retention.reachable, retention.expiry
    removed = expiry.filter(pc.equal(expiry.column("action"), REMOVE_SNAPSHOT))

    ids = _commit_identity(graph, "commit_id")
    at = pc.index_in(ids, _commit_identity(reachable, "commit_id"))
    state, refs = reachable.column("state").take(at), reachable.column("refs_count").take(at)
    _refuse_unknown_states(graph.filter(pc.invert(pc.is_in(state, pa.array([RETAINED, EXPIRED, DANGLING])))))
    live = pc.if_else(pc.greater(refs, 0), REACHED, SPARED)
    held = pc.or_(pc.equal(state, EXPIRED), pc.is_in(ids, _commit_identity(removed, "snapshot_id")))
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
    if retention.contents is not None:
        of_commits = rank_by_contents(of_commits, retention.contents, tolerant=tables.tolerant)
    of_commits = pa.concat_tables([of_commits, _inherited_logs(tables, of_commits, expiry)])
    pinned = read_parts(tables.files, list(tables.pinned), PINNED)
    nulls = pa.nulls(pinned.num_rows, pa.string())
    current = pinned.select(list(ROOT_COLUMNS)).append_column("rank", pa.array(np.zeros(pinned.num_rows, np.int8)))
    for name in ("commit_id", "table_uuid", "parent"):
        current = current.append_column(name, nulls)
    return _with_informational(pa.concat_tables([of_commits.select(ROOTS.names).cast(ROOTS), current.select(ROOTS.names).cast(ROOTS)]))


def _inherited_logs(tables: RootTables, of_commits: pa.Table, expiry: pa.Table) -> pa.Table:
    """Return the transaction logs that a commit inherits when an edit removes its ancestors.

    The logs are content roots of the removed commits. They are needed to compute a diff between a
    descendant and its new parent.
    """
    edits = expiry.filter(pc.equal(expiry.column("action"), EDIT_PARENT))
    logs = of_commits.filter(pc.equal(of_commits.column("kind"), Kind.TRANSACTION_LOG))
    if not edits.num_rows or not logs.num_rows:
        return logs.slice(0, 0)
    graph = read_parts(tables.files, list(tables.graph), COMMIT_GRAPH.schema, ["commit_id", "parents"])
    first_parent = {row["commit_id"]: next(iter(row["parents"] or ()), None) for row in graph.to_pylist()}
    heir: dict[str, str] = {}
    for edit in edits.to_pylist():
        current: str | None = edit["old_parent_id"]
        while current is not None and current in first_parent and current != edit["new_parent_id"] and current not in heir:
            heir[current] = edit["snapshot_id"]
            current = first_parent[current]
    owners = [heir.get(commit_id) for commit_id in logs.column("commit_id").to_pylist()]
    columns = {"commit_id": pa.array(owners, pa.string()), "rank": pa.array(np.full(logs.num_rows, REACHED, np.int8))}
    inherited = replace_columns(logs, columns)
    return inherited.filter(pc.is_valid(inherited.column("commit_id"))).cast(of_commits.schema)


def _with_informational(roots: pa.Table) -> pa.Table:
    """Set `must_exist` to false for informational files.

    In graphs of earlier releases it is true.
    """
    informational = pc.is_in(roots.column("kind"), pa.array(INFORMATIONAL_KINDS))
    return replace_columns(roots, {"must_exist": pc.and_(roots.column("must_exist"), pc.invert(informational))})


def rank_by_contents(roots: pa.Table, contents: pa.Table, *, tolerant: bool) -> pa.Table:
    """Rank a lake's content roots by its live contents.

    The metadata file of a live content is live, regardless of the commit that added it. Its rank is
    `REACHED` if the content is visible on a ref, and `SPARED` otherwise. Heads are preferred as
    witnesses, then the first ref and commit id. All other roots get the rank `RELEASED`, or `DEAD`
    if their commit is dead, and may be missing.

    Args:
        roots: Content roots of all commits (`ROOTS` columns).
        contents: Rows with the columns of `live_contents`.
        tolerant: If True, only the contents at heads must exist, otherwise the contents of all
            refs.
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
    return replace_columns(roots, columns)


def _refuse_unknown_states(commits: pa.Table) -> None:
    if commits.num_rows:
        raise StateError(
            f"Cannot determine live files: reachable_snapshots has no valid state for {commits.num_rows:,} commits of "
            f"commit_graph: {', '.join(commits.column('commit_id').slice(0, 5).to_pylist())}; run reachable_snapshots again"
        )


def list_kept_containers(tables: RootTables, containers: pa.Table) -> pa.Table:
    """Return the containers that only expired commits need, as live files, if metadata is claimed.

    These containers do not have to exist, because without them, no tool can read the expired commit
    anyway. `containers` and the result have the `ROOTS` columns.
    """
    kept = containers.filter(pc.greater(containers.column("rank"), SPARED)) if tables.metadata_claims else containers.slice(0, 0)
    no = pa.array(np.zeros(kept.num_rows, bool))
    rank = pa.array(np.full(kept.num_rows, SPARED, np.int8))
    return replace_columns(kept, {"is_container": no, "must_exist": no, "rank": rank}).select(ROOTS.names).cast(ROOTS)


def _commit_identity(rows: pa.Table, commit: str) -> pa.ChunkedArray:
    """Combine table UUID and commit id. For lakes without tables, the UUID part is empty."""
    return pc.binary_join_element_wise(pc.fill_null(rows.column("table_uuid"), ""), rows.column(commit), "\x1f")
