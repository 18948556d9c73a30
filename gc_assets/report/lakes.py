"""Gathers what the report page shows of a lake: who holds its bytes, and its histories. Arrow only; the lake is not opened.

In memory stay sums, the columns of the commit graph that a drawing needs, and the newest commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.parts import read_parts
from gc_assets.core.receipts import Published
from gc_assets.lakes.protocol import RETAINED
from gc_assets.report.history import MAX_COMMITS, History, Node
from gc_assets.report.night_report import Holder, LakePage
from gc_assets.schemas import (
    COMMIT_GRAPH,
    EXPIRY_PLAN,
    LAKE_REFS,
    LIVE_FILES,
    REACHABLE_SNAPSHOTS,
)
from gc_assets.stages.browse import batches
from gc_assets.stages.night import Night

HOLDERS: Final = 12
HISTORIES: Final = 12
PRESENT_STATE: Final = "present state (metadata, refs, configuration)"


def lake_page(night: Night, lake: str, kind: str) -> LakePage:
    """Raises `StateError` naming the first table that the run date lacks."""
    state, day = night.state, night.run_date
    refs = state.require(lake, LAKE_REFS.name, day)
    reachable = state.require(lake, REACHABLE_SNAPSHOTS.name, day)
    expiry = state.require(lake, EXPIRY_PLAN.name, day)
    found = list(histories(night, lake, refs, reachable, expiry))
    shown = sorted(found, key=lambda history: not history.changes)[:HISTORIES]
    facts = reachable.receipt.facts
    return LakePage(
        name=lake,
        kind=kind,
        refs=refs.receipt.rows,
        states={name: facts[name] for name in ("retained", "expired", "dangling")},
        expiry_actions=expiry.receipt.rows,
        notes=(*refs.receipt.facts["notes"], *facts["notes"], *state.require(lake, LIVE_FILES.name, day).receipt.facts.get("notes", ())),
        holders=tuple(_holders(night, lake, reachable)),
        histories=tuple(shown),
        histories_left_out=len(found) - len(shown),
    )


def _holders(night: Night, lake: str, reachable: Published) -> Iterator[Holder]:
    """Who holds the lake's live bytes, largest first; what is beyond `HOLDERS` is added up in one last row."""
    state = night.state
    live = state.require(lake, LIVE_FILES.name, night.run_date)
    by = ["table_uuid", "commit_id"]
    parts = [
        pa.Table.from_batches([batch]).group_by(by).aggregate([([], "count_all"), ("size_bytes", "sum")])
        for batch in batches(state, LIVE_FILES.schema, live.paths(), [*by, "size_bytes"])
    ]
    if not parts:
        return
    columns = [*by, "table_name", "refs", "refs_count"]
    commits = read_parts(state.files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, columns)
    sums = pa.concat_tables(parts).group_by(by).aggregate([("count_all", "sum"), ("size_bytes_sum", "sum")])
    wanted = commits.filter(pc.is_in(commits.column("commit_id"), sums.column("commit_id").combine_chunks()))
    known = {(row["table_uuid"], row["commit_id"]): row for row in wanted.to_pylist()}
    names = {row["table_uuid"]: row["table_name"] for row in known.values()}
    held: dict[tuple[str, str], tuple[int, int]] = {}
    for row in sums.to_pylist():
        label = (names.get(row["table_uuid"]) or lake, _refs_label(known.get((row["table_uuid"], row["commit_id"])), row["commit_id"]))
        files, size = held.get(label, (0, 0))
        held[label] = (files + row["count_all_sum"], size + (row["size_bytes_sum_sum"] or 0))
    holders = sorted(
        (Holder(*label, *amount) for label, amount in held.items()), key=lambda item: (-item.size_bytes, item.table, item.refs)
    )
    yield from holders[:HOLDERS]
    rest = holders[HOLDERS:]
    if rest:
        yield Holder(f"{len(rest):,} more", "", sum(item.files for item in rest), sum(item.size_bytes for item in rest))


def _refs_label(commit: dict[str, Any] | None, commit_id: str | None) -> str:
    if commit_id is None:
        return PRESENT_STATE
    if commit is None or not commit["refs"]:
        return "no ref (kept by the grace period or the policy)"
    more = commit["refs_count"] - 3
    return ", ".join(commit["refs"][:3]) + (f" and {more:,} more" if more > 0 else "")


def histories(night: Night, lake: str, refs: Published, reachable: Published, expiry: Published) -> Iterator[History]:
    """One history a table (or repository), by name: its newest commits."""
    files, state = night.state.files, night.state
    graph = state.require(lake, COMMIT_GRAPH.name, night.run_date)
    columns = ["table_uuid", "commit_id", "parents", "committed_at", "generation", "table_name", "message"]
    commits = read_parts(files, graph.paths(), COMMIT_GRAPH.schema, columns)
    said = read_parts(files, reachable.paths(), REACHABLE_SNAPSHOTS.schema, ["table_uuid", "commit_id", "state", "reason"])
    heads = read_parts(files, refs.paths(), LAKE_REFS.schema, ["table_uuid", "ref_name", "ref_type", "head_commit_id"]).to_pylist()
    edits = read_parts(files, expiry.paths(), EXPIRY_PLAN.schema, ["table_uuid", "snapshot_id", "action", "new_parent_id"])
    edits = edits.filter(pc.field("action") == "edit_parent")
    order = [("generation", "descending"), ("committed_at", "descending"), ("commit_id", "ascending")]
    for table in pc.unique(commits.column("table_uuid")).to_pylist():
        mine = _of_table(commits, table)
        newest = mine.take(pc.sort_indices(mine, sort_keys=order)[:MAX_COMMITS])
        ids = newest.column("commit_id").combine_chunks()
        states = {row["commit_id"]: row for row in _of_table(said.filter(pc.is_in(said.column("commit_id"), ids)), table).to_pylist()}
        moved = {row["snapshot_id"]: row["new_parent_id"] for row in _of_table(edits, table).to_pylist()}
        labels: dict[str, list[str]] = {}
        for ref in heads:
            if ref["table_uuid"] == table and ref["head_commit_id"] is not None:
                labels.setdefault(ref["head_commit_id"], []).append(
                    f"{ref['ref_name']} (tag)" if ref["ref_type"] == "tag" else ref["ref_name"]
                )
        rows = newest.to_pylist()
        nodes = [_node(row, states[row["commit_id"]], moved, labels.get(row["commit_id"], [])) for row in reversed(rows)]
        if nodes:
            yield History(rows[0]["table_name"] or lake, _contracted(nodes), mine.num_rows - len(nodes))


def _of_table(rows: pa.Table, table: str | None) -> pa.Table:
    return rows.filter(pc.field("table_uuid").is_null() if table is None else pc.field("table_uuid") == table)


def _node(row: dict[str, Any], said: dict[str, Any], moved: dict[str, str | None], labels: list[str]) -> Node:
    parent = row["parents"][0] if row["parents"] else None
    when = row["committed_at"].isoformat() if row["committed_at"] is not None else "time unknown"
    tip = f"{row['commit_id']}\n{when} {row['message'] or ''}\n{said['reason']}"
    return Node(
        commit_id=row["commit_id"],
        parent=parent,
        parent_after=moved.get(row["commit_id"], parent),
        generation=row["generation"] if row["generation"] is not None else 0,
        state=said["state"],
        leaves=said["state"] != RETAINED,
        tip=tip,
        labels=tuple(labels),
    )


def _contracted(nodes: list[Node]) -> tuple[Node, ...]:
    """Once commits left, their children have no drawn parent: they begin the history then."""
    gone = {node.commit_id for node in nodes if node.leaves}
    return tuple(replace(node, parent_after=None) if node.parent_after in gone else node for node in nodes)
