"""Check commit times against the times of parent commits and of snapshot objects.

Commit times matter because policies are based on age, and because Icechunk requires times to
increase along a history. The check reads tables of the last run, but no objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.findings import OK, WARN, Finding
from gc_assets.core.units import count_of, format_duration
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.state_scan import decode_parquet
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import DANGLING
from gc_assets.state.listings import open_listing
from gc_assets.state.parts import decode_each
from gc_assets.state.schemas import COMMIT_GRAPH, REACHABLE_SNAPSHOTS, STORAGE_INVENTORY

_COLUMNS: Final = ["table_uuid", "commit_id", "parents", "committed_at", "content_roots"]
_LISTED: Final = pa.schema([STORAGE_INVENTORY.schema.field(name) for name in ("key", "last_modified")])
_EXAMPLES: Final = 3
_REMEDY: Final = (
    "Correct the clocks of the writers, and keep history for longer than the difference. "
    "Objects of a copied lake have the time of the copy."
)


def check_clocks(context: RunContext, name: str) -> Iterator[Finding]:
    """Report commits whose time is before that of a parent, or far from that of their object.

    The commits are those of the last run. Dangling commits are not compared with their parents.
    """
    published = context.state.latest(name, COMMIT_GRAPH.name)
    if published is None:
        return
    commits = read_rows(context.state, COMMIT_GRAPH, published, columns=_COLUMNS)
    found = [*_find_older_children(commits, _list_dangling(context, name)), *_find_skewed(context, commits)]
    for text in found:
        yield Finding(name, "clocks", WARN, f"in the run of {published.receipt.run_date}, {text}", _REMEDY)
    if not found:
        yield Finding(name, "clocks", OK, f"{count_of(commits.num_rows, 'commit')}: none is older than a parent")


def _list_dangling(context: RunContext, name: str) -> pa.Array:
    published = context.state.latest(name, REACHABLE_SNAPSHOTS.name)
    if published is None:
        return pa.array([], pa.string())
    rows = read_rows(context.state, REACHABLE_SNAPSHOTS, published, columns=["commit_id", "state"])
    return rows.filter(pc.equal(rows.column("state"), DANGLING)).column("commit_id").combine_chunks()


def _find_older_children(commits: pa.Table, dangling: pa.Array) -> Iterator[str]:
    parents = commits.column("parents").combine_chunks()
    rows = pc.list_parent_indices(parents)
    edges = pa.table(
        {
            "table_uuid": pc.fill_null(commits.column("table_uuid"), "").take(rows),
            "child": commits.column("commit_id").take(rows),
            "child_at": commits.column("committed_at").take(rows),
            "parent": pc.list_flatten(parents),
        }
    )
    known = pa.table(
        {
            "table_uuid": pc.fill_null(commits.column("table_uuid"), ""),
            "parent": commits.column("commit_id"),
            "parent_at": commits.column("committed_at"),
        }
    )
    joined = edges.join(known, ["table_uuid", "parent"], join_type="inner")
    is_older = pc.less(joined.column("child_at"), joined.column("parent_at"))
    older = joined.filter(pc.and_not(is_older, pc.is_in(joined.column("child"), value_set=dangling)))
    if older.num_rows:
        examples = (f"{row['child']} ({row['child_at']:%Y-%m-%d %H:%M:%S}) of {row['parent']}" for row in _first(older, "child"))
        yield f"{count_of(older.num_rows, 'commit', 'are')} older than a parent: {', '.join(examples)}"


def _find_skewed(context: RunContext, commits: pa.Table) -> Iterator[str]:
    """Compare commit times with the modification times of snapshot objects in the last listing.

    Yields:
        A message if any two times differ by more than `MAX_SKEW`.
    """
    roots = [(items[0] if items else None) for items in commits.column("content_roots").to_pylist()]
    by_storage: dict[str, dict[str, tuple[str, Any]]] = {}
    for root, commit_id, at in zip(roots, commits.column("commit_id").to_pylist(), commits.column("committed_at").to_pylist(), strict=True):
        if root is not None and root["kind"] == Kind.SNAPSHOT and root["storage"] is not None and at is not None:
            by_storage.setdefault(root["storage"], {})[root["key"]] = commit_id, at
    skewed: list[tuple[str, timedelta]] = []
    for storage, wanted in by_storage.items():
        keys = pa.array(list(wanted), pa.string())
        for batch in _read_listing(context, storage):
            rows = batch.filter(pc.is_in(batch.column("key"), value_set=keys))
            for key, modified in zip(*(rows.column(column).to_pylist() for column in ("key", "last_modified")), strict=True):
                commit_id, at = wanted[key]
                if modified is not None and abs(at - modified) > MAX_SKEW:
                    skewed.append((commit_id, at - modified))
    if skewed:
        examples = (f"{commit_id} by {_describe(skew)}" for commit_id, skew in sorted(skewed)[:_EXAMPLES])
        number = count_of(len(skewed), "snapshot", "differ")
        yield f"{number} from the time of the object by more than {format_duration(MAX_SKEW)}: {', '.join(examples)}"


def _describe(skew: timedelta) -> str:
    rounded = timedelta(seconds=round(abs(skew).total_seconds()))
    return f"{rounded} {'ahead' if skew > timedelta(0) else 'behind'}"


def _read_listing(context: RunContext, storage: str) -> Iterator[pa.RecordBatch]:
    inventory = context.state.latest(storage, STORAGE_INVENTORY.name)
    if inventory is None:
        return iter(())
    listing = open_listing(context.state, inventory)
    return decode_each(context.state.files, listing.paths(), partial(decode_parquet, schema=_LISTED))


def _first(rows: pa.Table, column: str) -> list[dict[str, Any]]:
    return rows.sort_by(column).slice(0, _EXAMPLES).to_pylist()
