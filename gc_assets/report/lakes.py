"""Load a lake's data for the report: live bytes of tables and refs, and commit histories.

All data comes from published tables. Only sums, the newest commits and a few columns of the commit
graph are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.printable import show
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.protocol import RETAINED
from gc_assets.report.drawing import MAX_COMMITS, Drawing, Node
from gc_assets.report.run_report import ExpiringCommit, LakePage, RefUsage
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.stages.mark.released_files import find_released_files_of
from gc_assets.stages.read.usage import find_unsized_files
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import EDITS_SIDE
from gc_assets.state.summaries import LakeRefsSummary, LifecyclePathsSummary, LiveFilesSummary, ReachableSnapshotsSummary

MAX_USAGE_ROWS: Final = 12
MAX_HISTORIES: Final = 12
MAX_EXPIRING: Final = 30
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
CURRENT_STATE: Final = "current state (metadata, refs, configuration)"


def lake_page(context: RunContext, lake: str, kind: str) -> LakePage:
    """Load the section of the report about one lake.

    Raises:
        StateError: If a table is not published for the run date. The message contains its name.
    """
    refs = context.table(LAKE_REFS, lake)
    reachable = context.table(REACHABLE_SNAPSHOTS, lake)
    expiry = context.table(EXPIRY_PLAN, lake)
    live = context.table(LIVE_FILES, lake)
    found = list(histories(context, lake, refs, reachable, expiry))
    shown = sorted(found, key=lambda history: not history.changes)[:MAX_HISTORIES]
    summary, live_summary = reachable.summary(ReachableSnapshotsSummary), live.summary(LiveFilesSummary)
    edited = context.kind(lake).table_with(TableRole.PATH_EDITS, context.config.lake(lake))
    paths = context.find(edited, lake) if edited is not None else None
    edits = _read_path_edits(context, paths)
    return LakePage(
        name=lake,
        kind=kind,
        refs=refs.receipt.rows,
        states={"retained": summary.retained, "expired": summary.expired, "dangling": summary.dangling},
        expiry_actions=expiry.receipt.rows + len(edits),
        notes=(
            *refs.summary(LakeRefsSummary).notes,
            *summary.notes,
            *live_summary.notes,
            *(released.notes if (released := find_released_files_of(context, live)) is not None else ()),
            *(f"branch {row['ref_name']}: {row['reason']}" for row in edits[:MAX_EXPIRING]),
            *(paths.summary(LifecyclePathsSummary).all_notes if paths is not None else ()),
        ),
        usage=tuple(_usage_by_refs(context, lake, reachable)),
        histories=tuple(shown),
        histories_left_out=len(found) - len(shown),
        edits_history=context.kind(lake).edits_history,
        expiring=tuple(_expiring_commits(context, lake, reachable)),
        expiring_left_out=max(0, summary.expired + summary.dangling - MAX_EXPIRING),
        unknown_addresses=live_summary.unknown_addresses,
        unknown_address_samples=live_summary.unknown_address_samples,
    )


def _read_path_edits(context: RunContext, paths: PublishedTable | None) -> list[dict[str, Any]]:
    """Read the planned commits that delete paths on branches."""
    files = [] if paths is None else paths.paths(EDITS_SIDE)
    return read_parts(context.state.files, files, EXPIRY_PLAN.schema, ["ref_name", "reason"]).to_pylist()


def _expiring_commits(context: RunContext, lake: str, reachable: PublishedTable) -> Iterator[ExpiringCommit]:
    """Yield the newest of the commits that the retention policy does not keep."""
    files = context.state.files
    expiring = read_parts(
        files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state", "table_name", "reason"]
    )
    expiring = expiring.filter(pc.field("state") != RETAINED)
    if not expiring.num_rows:
        return
    graph = context.table(COMMIT_GRAPH, lake)
    commits = read_parts(files, graph.paths(), COMMIT_GRAPH.schema, ["table_uuid", "commit_id", "committed_at", "message"])
    by = ["table_uuid", "commit_id"]
    commits = commits.filter(pc.is_in(commits.column("commit_id"), expiring.column("commit_id").combine_chunks()))
    known = {tuple(row[name] for name in by): row for row in commits.to_pylist()}
    found = [
        ExpiringCommit(row["table_name"], row["commit_id"], commit["committed_at"], commit["message"], row["reason"])
        for row in expiring.to_pylist()
        for commit in [known[tuple(row[name] for name in by)]]
    ]
    yield from sorted(found, key=lambda item: (-(item.committed_at or _LONG_AGO).timestamp(), item.table or "", item.commit_id))[
        :MAX_EXPIRING
    ]


def _usage_by_refs(context: RunContext, lake: str, reachable: PublishedTable) -> Iterator[RefUsage]:
    """Yield how many live bytes the refs of each table keep, beginning with the largest number.

    If there are too many rows, the smallest rows are summed in the last row.
    """
    sums = LiveSet(context, context.table(LIVE_FILES, lake)).totals.by_all("table_uuid", "commit_id")
    if (None, None) in sums:
        for storage in context.config.storages:
            sums[None, None] = find_unsized_files(context, storage.name, lake).add_to(sums[None, None])
    columns = ["table_uuid", "commit_id", "table_name", "refs", "refs_count"]
    commits = read_parts(context.state.files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, columns)
    wanted = commits.filter(pc.is_in(commits.column("commit_id"), pa.array([commit_id for _, commit_id in sums], pa.string())))
    known = {(row["table_uuid"], row["commit_id"]): row for row in wanted.to_pylist()}
    names = {row["table_uuid"]: row["table_name"] for row in known.values()}
    held: dict[tuple[str, str], tuple[int, int]] = {}
    for (table_uuid, commit_id), amount in sums.items():
        label = (names.get(table_uuid) or lake, _refs_label(known.get((table_uuid, commit_id)), commit_id))
        files, size = held.get(label, (0, 0))
        held[label] = (files + amount.files, size + amount.bytes)
    usage = sorted(
        (RefUsage(*label, *amount) for label, amount in held.items()), key=lambda item: (-item.size_bytes, item.table, item.refs)
    )
    yield from usage[:MAX_USAGE_ROWS]
    rest = usage[MAX_USAGE_ROWS:]
    if rest:
        yield RefUsage(f"{len(rest):,} more", "", sum(item.files for item in rest), sum(item.size_bytes for item in rest))


def _refs_label(commit: dict[str, Any] | None, commit_id: str | None) -> str:
    if commit_id is None:
        return CURRENT_STATE
    if commit is None or not commit["refs"]:
        return "no ref (kept by the grace period or the policy)"
    more = commit["refs_count"] - 3
    return ", ".join(commit["refs"][:3]) + (f" and {more:,} more" if more > 0 else "")


def histories(context: RunContext, lake: str, refs: PublishedTable, reachable: PublishedTable, expiry: PublishedTable) -> Iterator[Drawing]:
    """Yield one drawing for each table or repository, which shows its newest commits."""
    files = context.state.files
    graph = context.table(COMMIT_GRAPH, lake)
    columns = ["table_uuid", "commit_id", "parents", "committed_at", "generation", "table_name", "message"]
    commits = read_parts(files, graph.paths(), COMMIT_GRAPH.schema, columns)
    states_table = read_parts(files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state", "reason"])
    heads = read_parts(files, refs.paths(), LAKE_REFS.schema, ["table_uuid", "ref_name", "ref_type", "head_commit_id"]).to_pylist()
    edits = read_parts(files, expiry.paths(), EXPIRY_PLAN.schema, ["table_uuid", "snapshot_id", "action", "new_parent_id"])
    edits = edits.filter(pc.field("action") == "edit_parent")
    order = [("generation", "descending"), ("committed_at", "descending"), ("commit_id", "ascending")]
    for table in pc.unique(commits.column("table_uuid")).to_pylist():
        rows_of_table = _filter_table(commits, table)
        newest = rows_of_table.take(pc.sort_indices(rows_of_table, sort_keys=order)[:MAX_COMMITS])
        ids = newest.column("commit_id").combine_chunks()
        of_commits = states_table.filter(pc.is_in(states_table.column("commit_id"), ids))
        states = {row["commit_id"]: row for row in _filter_table(of_commits, table).to_pylist()}
        moved = {row["snapshot_id"]: row["new_parent_id"] for row in _filter_table(edits, table).to_pylist()}
        labels: dict[str, list[str]] = {}
        for ref in heads:
            if ref["table_uuid"] == table and ref["head_commit_id"] is not None:
                labels.setdefault(ref["head_commit_id"], []).append(
                    f"{ref['ref_name']} (tag)" if ref["ref_type"] == "tag" else ref["ref_name"]
                )
        rows = newest.to_pylist()
        nodes = [_node(row, states[row["commit_id"]], moved, labels.get(row["commit_id"], [])) for row in reversed(rows)]
        if nodes:
            yield Drawing(rows[0]["table_name"] or lake, _drop_outer_parents(nodes), rows_of_table.num_rows - len(nodes))


def _filter_table(rows: pa.Table, table: str | None) -> pa.Table:
    return rows.filter(pc.field("table_uuid").is_null() if table is None else pc.field("table_uuid") == table)


def _node(row: dict[str, Any], state_row: dict[str, Any], moved: dict[str, str | None], labels: list[str]) -> Node:
    parent = row["parents"][0] if row["parents"] else None
    when = row["committed_at"].isoformat() if row["committed_at"] is not None else "time unknown"
    tip = f"{row['commit_id']}\n{when} {show(row['message'] or '')}\n{state_row['reason']}"
    return Node(
        commit_id=row["commit_id"],
        parent=parent,
        parent_after=moved.get(row["commit_id"], parent),
        generation=row["generation"] if row["generation"] is not None else 0,
        state=state_row["state"],
        leaves=state_row["state"] != RETAINED,
        tip=tip,
        labels=tuple(labels),
    )


def _drop_outer_parents(nodes: list[Node]) -> tuple[Node, ...]:
    """Cut edges to commits removed by expiry, so that their children become the first commits."""
    gone = {node.commit_id for node in nodes if node.leaves}
    return tuple(replace(node, parent_after=None) if node.parent_after in gone else node for node in nodes)
