"""Keep the files of commits that the server of a lakeFS repository has lost.

A server such as lakeFS keeps every commit until its repository is deleted, even if no branch
reaches the commit any more. If commits are missing, the server's database was restored to an
earlier state. Users can still restore a newer state, or create the commit records again. Therefore,
everything that the repository needed when a run last read it stays live for `retention.dropped`.
The content roots are recorded in the same tables as those of former metadata
(`former_metadata.py`), with the id of a lost commit in place of the metadata's address.

Meanwhile, lifecycle rules release no files, because a branch or tag that kept them may be lost.

If the repository was created again, it is another one, and `sweep/dropped_tables.py` decides about
the files of the deleted repository.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.printable import show
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.pointers import Pointer
from gc_assets.stages.mark.deleted_repositories import find_read_repository, identify
from gc_assets.stages.mark.former_metadata import FormerMetadata, describe_wait, is_due, read_published_pointers
from gc_assets.stages.mark.last_known import WHOLE_LAKE, LastKnown, find_last_run, open_last_known
from gc_assets.stages.mark.resolution import resolve_or_keep
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from gc_assets.state.side_tables import FORMER_ROOTS, FORMER_ROOTS_SIDE, ROOTS, UNREADABLE_ROOTS
from gc_assets.state.summaries import LakeRefsSummary, RepositorySummary

# A note contains this many ids of commits.
_MAX_IDS: Final = 5


def find_lost_commits(context: RunContext, lake_name: str, inputs: Mapping[str, PublishedTable], unread: Collection[str]) -> FormerMetadata:
    """Find commits retained by the last run but missing from the repository's server.

    Args:
        inputs: Result of `find_root_inputs`.
        unread: Contains `WHOLE_LAKE` if this run cannot read the repository.
    """
    summary = inputs[LAKE_REFS.name].summary(LakeRefsSummary)
    now, after = summary.frozen_at, context.config.lake(lake_name).dropped_after
    last = find_last_run(context, lake_name, now)
    if last is None:
        return FormerMetadata()
    kept = [item for item in read_published_pointers(context, last[0]) if not is_due(item, now, after)]
    roots, notes = read_parts(context.state.files, last[0].paths(FORMER_ROOTS_SIDE), FORMER_ROOTS), list[str]()
    known = _find_same_repository(last[1].summary(LakeRefsSummary), summary)
    if known is not None and WHOLE_LAKE not in unread:
        current = _read_ids(context, inputs[COMMIT_GRAPH.name])
        # The roots of a loss belong to all of its commits, so they stay until none is missing.
        lost_at = {item.former_since for item in kept if item.address not in current}
        kept = [item for item in kept if item.former_since in lost_at]
        last_known = open_last_known(context, lake_name, *last)
        if last_known is None:
            notes.append(f"lake {lake_name}: the commits of the last run are not available, so lost commits are not found")
        else:
            lost = _find_lost(last_known, current, {item.address for item in kept})
            roots = pa.concat_tables([roots, lost])
            ids = lost.column("metadata").unique().to_pylist()
            kept += [Pointer(identify(known).uuid, known.name, name, frozenset(), known.read_at, former_since=now) for name in ids]
    wanted = pa.array([item.address for item in kept], pa.string())
    roots = resolve_or_keep(roots.filter(pc.is_in(roots.column("metadata"), wanted)), context.resolver())
    return FormerMetadata(kept, roots, (*notes, *_describe_kept(lake_name, kept, after)))


def _find_same_repository(before: LakeRefsSummary, now: LakeRefsSummary) -> RepositorySummary | None:
    """Return the last run's repository if this run has read the same repository, otherwise None."""
    known, current = before.repository, find_read_repository(now)
    return known if known is not None and current is not None and identify(known).uuid == identify(current).uuid else None


def _read_ids(context: RunContext, graph: PublishedTable) -> set[str]:
    return set(read_parts(context.state.files, graph.paths(), COMMIT_GRAPH.schema, ["commit_id"]).column("commit_id").to_pylist())


def _find_lost(last_known: LastKnown, current: Collection[str], recorded: Collection[str]) -> pa.Table:
    """Return the content roots to keep if earlier runs have not recorded all lost commits.

    Commit ids are compared first, because computing the roots takes longer, and commits are hardly
    ever lost.
    """
    graph = read_parts(last_known.files, list(last_known.roots.graph), COMMIT_GRAPH.schema, ["commit_id"])
    unreadable = read_parts(last_known.files, list(last_known.unreadable_roots), UNREADABLE_ROOTS, ["commit_id"])
    known = {name for rows in (graph, unreadable) for name in rows.column("commit_id").to_pylist() if name is not None}
    lost = known.difference(current, recorded)
    return select_lost_roots(last_known.roots_of({WHOLE_LAKE}), lost) if lost else FORMER_ROOTS.empty_table()


def select_lost_roots(roots: pa.Table, lost: Collection[str]) -> pa.Table:
    """Return the content roots to keep if commits were lost, with a lost commit's id as `metadata`.

    If any retained commit was lost, branches, tags and staged objects of that time are lost as
    well. Some of the other commits may therefore expire. The roots of these commits and of staged
    objects are recorded with the first of the lost commits.

    Args:
        roots: Everything that the last run kept (`ROOTS` columns).
        lost: Ids of the lost commits.

    Returns:
        Rows with the `FORMER_ROOTS` columns.
    """
    is_lost = pc.fill_null(pc.is_in(roots.column("commit_id"), pa.array(sorted(lost), pa.string())), False)
    if not pc.any(is_lost).as_py():
        return FORMER_ROOTS.empty_table()
    first = pc.min(roots.filter(is_lost).column("commit_id"))
    found = roots.select(ROOTS.names).append_column("metadata", pc.if_else(is_lost, roots.column("commit_id"), first))
    found = found.group_by(found.column_names, use_threads=False).aggregate([])
    return found.append_column("is_live", pa.repeat(pa.scalar(value=True), found.num_rows)).select(FORMER_ROOTS.names).cast(FORMER_ROOTS)


def _describe_kept(lake_name: str, kept: Sequence[Pointer], after: timedelta | None) -> Iterator[str]:
    def order(item: Pointer) -> tuple[str, str]:
        return str(item.former_since), str(item.read_at)

    for _, group in groupby(sorted(kept, key=order), order):
        items = list(group)
        ids = sorted(item.address for item in items)
        more = f" and {len(ids) - _MAX_IDS:,} more" if len(ids) > _MAX_IDS else ""
        yield (
            f"lake {lake_name}: on {items[0].read_at:%Y-%m-%d}, repository {show(items[0].table_name)} had {count_of(len(ids), 'commit')} "
            f"that its server has lost, for example because it was restored from a backup: {', '.join(map(show, ids[:_MAX_IDS]))}{more}. "
            f"Files that it needed then are kept {describe_wait(items[0], after)}. To restore the commits, restore a newer state of "
            "the server, or create the commit records again"
        )
