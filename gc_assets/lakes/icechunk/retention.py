"""Apply the retention policy to snapshots, and plan the history edits that follow from it.

All functions are pure: they do not read objects or a clock. The module `expiration` simulates the
edits. This module adds rules that protect snapshots that would expire otherwise: the grace period,
the cut-off for unreachable snapshots, and the protection of incomplete histories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.forest import NO_PARENT
from gc_assets.core.moments import to_micros
from gc_assets.core.units import Cutoff, count_of
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.expiration import Expiration, RefPointer, Semantics, expire, resolve_semantics
from gc_assets.lakes.icechunk.graph import Graph, read_graph, shared_names
from gc_assets.lakes.icechunk.reasons import Reasons, keep_until
from gc_assets.lakes.icechunk.ref_names import other_name
from gc_assets.lakes.icechunk.refs import READ_ONLY
from gc_assets.lakes.icechunk.repository_settings import ONLINE, RepositorySettings
from gc_assets.lakes.protocol import DANGLING, DELETE_REF, EXPIRED, REMOVE_SNAPSHOT, RETAINED, CommitState, FrozenRefs, Retention
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

_PLURALS = {"branch": "branches", "tag": "tags"}
# The library does not allow users to delete this branch.
DEFAULT_BRANCH = "main"


def retain(
    refs: FrozenRefs,
    commits: pa.Table,
    as_of: datetime,
    grace_cutoff: datetime,
    config: IcechunkLakeConfig,
    planned: Collection[str] = (),
) -> Retention:
    """Apply the retention policy to the snapshots of a repository.

    The rows of `Retention.reachable` have the order of `commits`. `planned` contains the snapshots
    that the plan which is being applied edits, see `expiration.expire`.

    Raises:
        LakeUnreadable: If the head of a ref is not among the commits, a damaged snapshot is
            reachable or protected, or the history of a ref is incomplete.
    """
    graph, settings = read_graph(refs, commits, as_of, config), RepositorySettings.of(refs.sources)
    if settings.availability != ONLINE:
        return _retain_all(refs.lake, graph, f"kept: the repository is {settings.availability}, so nothing is collected")
    _refuse_incomplete(refs.lake, graph, config)
    ambiguous = shared_names(graph.pointers)
    fixed = _find_fixed(graph, ambiguous, settings)
    protecting = [pointer for pointer in (*graph.pointers, *graph.renamed) if _is_protecting(graph, pointer, config, fixed)]
    deletable = [pointer for pointer in protecting if id(pointer) not in fixed and _is_deletable(pointer, config)]
    semantics = resolve_semantics(config.expiry.semantics, settings.spec_version)
    position = graph.history.forest.position
    edited = frozenset(position[snapshot] for snapshot in planned if snapshot in position)
    compared: dict[Semantics, Expiration] = {
        name: expire(graph.history, protecting, deletable, name, edited)
        for name in ("seed", resolve_semantics("icechunk", settings.spec_version))
    }
    expiration = compared[semantics]
    unreached = _find_unreached(graph, protecting) - _find_cut_off(graph, refs)
    protected = _find_protected(graph, expiration, unreached, to_micros(grace_cutoff), config.retention.dangling_cutoff(), as_of)
    _refuse_unreadable(refs.lake, graph, protected)
    reasons = Reasons(graph, expiration, config, protecting)
    rows = [_row(graph, expiration, protected, reasons, index) for index in range(len(graph.ids))]
    edits = [*_expiry_rows(graph, expiration, fixed, semantics, config), *_removals(graph, rows)]
    return Retention(
        reachable=pa.Table.from_pylist(rows, schema=REACHABLE_SNAPSHOTS.schema),
        expiry=pa.Table.from_pylist(edits, schema=EXPIRY_PLAN.schema),
        notes=tuple(_build_notes(refs.lake, graph, compared, expiration, protected, ambiguous, config)),
    )


def _retain_all(lake: str, graph: Graph, reason: str) -> Retention:
    """Retain all snapshots, even damaged ones that no ref reaches, and do not plan any edits."""
    _refuse_unreadable(lake, graph, {})
    rows = [
        {"commit_id": commit_id, "state": RETAINED, "refs": list(reach.names), "refs_count": reach.count, "reason": reason}
        for commit_id, reach in zip(graph.ids, graph.reach, strict=True)
    ]
    return Retention(pa.Table.from_pylist(rows, schema=REACHABLE_SNAPSHOTS.schema), EXPIRY_PLAN.schema.empty_table())


def _find_fixed(graph: Graph, ambiguous: frozenset[str], settings: RepositorySettings) -> set[int]:
    """Find refs that must never be deleted. Returns Python's `id()` of each `RefPointer`."""
    renamed = {id(pointer.ref) for pointer in graph.renamed}
    return {
        id(pointer)
        for pointer in (*graph.pointers, *graph.renamed)
        if pointer.ref.ref_name in ambiguous
        or id(pointer.ref) in renamed
        or READ_ONLY in pointer.ref.properties
        or (pointer.ref.ref_type == "tag" and not settings.can_delete_tags)
    }


def _is_protecting(graph: Graph, pointer: RefPointer, config: IcechunkLakeConfig, fixed: set[int]) -> bool:
    """Return True if a ref protects the snapshots in its history.

    A tag that the policy ignores only protects its history if the history is incomplete or if the
    tag cannot be deleted. In spec version 2, the whole repository would become unreadable if a tag
    pointed to a removed snapshot.
    """
    ignored = config.retention.tags == "ignore" and pointer.ref.ref_type == "tag"
    return not ignored or graph.history.first[pointer.head] == NO_PARENT or (bool(graph.entries) and id(pointer) in fixed)


def _is_deletable(pointer: RefPointer, config: IcechunkLakeConfig) -> bool:
    if pointer.ref.ref_type == "tag":
        return config.expiry.delete_expired_tags and config.retention.tags == "policy"
    return config.expiry.delete_expired_branches and pointer.ref.ref_name != DEFAULT_BRANCH


def _find_protected(
    graph: Graph, expiration: Expiration, unreached: set[int], grace_cutoff: int, cutoff: Cutoff, as_of: datetime
) -> dict[int, str]:
    """Find snapshots that are kept although no ref reaches them after expiry.

    If a snapshot is kept, so are its ancestors. If a user created a tag on it later, its history
    would otherwise be incomplete, and every traversal by the library would fail.

    Args:
        graph: Snapshots and refs.
        expiration: Planned edits.
        unreached: Positions of snapshots to which `cutoff` applies, because no ref reached them.
        grace_cutoff: Any snapshot after this time, in microseconds since 1970, is kept.
        cutoff: Rule for unreachable snapshots.
        as_of: Time at which the ages of snapshots are computed.

    Returns:
        The reason for each kept snapshot, keyed by its position.
    """
    protected = dict.fromkeys(graph.history.forest.cyclic, "kept: its parents form a cycle, so its history is unknown")
    if any(index in expiration.reached for index in graph.history.forest.cyclic):
        reason = "kept: the history of a ref ends in a cycle of parents, so it may be an ancestor"
        protected |= dict.fromkeys(unreached - protected.keys(), reason)
    moment = cutoff.moment_micros(as_of)
    young: list[tuple[int, str]] = []
    for index, stamp in enumerate(graph.history.stamps):
        if index in expiration.reached:
            continue
        if index in unreached:  # The writer's clock may be slow, so use the storage time, as the library does.
            stamp = max(stamp, graph.stored.get(index, stamp))
        if stamp >= grace_cutoff:
            young.append((index, "kept: younger than the grace period"))
        elif index in unreached and moment is None:
            young.append((index, "kept: no ref reaches it, and retention.dangling has no limit"))
        elif index in unreached and moment is not None and stamp >= moment:
            young.append((index, f"kept: no ref reaches it, and it is younger than {cutoff.limit_text} (retention.dangling)"))
    parent = graph.history.forest.parent
    for index, reason in young:
        protected.setdefault(index, reason)
    for index, _ in young:
        ancestor = parent[index]
        while ancestor != NO_PARENT and ancestor not in protected and ancestor not in expiration.reached:
            protected[ancestor] = f"kept: an ancestor of snapshot {graph.ids[index]}, which no ref reaches and which is too young to delete"
            ancestor = parent[ancestor]
    return protected


def _find_unreached(graph: Graph, protecting: Sequence[RefPointer]) -> set[int]:
    """Find the snapshots that no protecting ref reaches before any edit."""
    reached: set[int] = set()
    for pointer in protecting:
        index = pointer.head
        while index != NO_PARENT and index not in reached:
            reached.add(index)
            index = graph.history.forest.parent[index]
    return set(range(len(graph.ids))).difference(reached)


def _find_cut_off(graph: Graph, refs: FrozenRefs) -> set[int]:
    """Find the snapshots that edits of earlier runs removed from the history.

    They expired under the rule of their ref, so the rule for unreachable snapshots does not apply.
    Snapshots that `repo` lists are an exception. A partly executed plan may have left them behind,
    and a separate edit removes them, in an apply that does not read the edits of earlier runs.
    """
    parent, position = graph.history.forest.parent, graph.history.forest.position
    cut_off: set[int] = set()
    for edit in refs.edits:
        if edit.action == REMOVE_SNAPSHOT:
            if edit.snapshot_id in position:
                cut_off.add(position[edit.snapshot_id])
            continue
        index = position.get((edit.snapshot_id if edit.action == DELETE_REF else edit.old_parent_id) or "", NO_PARENT)
        end = position.get(edit.new_parent_id or "", NO_PARENT)
        while index not in {NO_PARENT, end} and index not in cut_off:
            cut_off.add(index)
            index = parent[index]
    return cut_off - graph.entries.keys()


def _refuse_incomplete(lake: str, graph: Graph, config: IcechunkLakeConfig) -> None:
    """Raise `LakeUnreadable` if a ref reaches a snapshot whose parent is missing.

    Only the object of the missing snapshot records its own parent and manifests. Without it,
    earlier snapshots look dangling, and its files look like garbage.
    """
    gaps = {
        parent: index for index, parent in graph.missing_parent.items() if graph.reach[index].count and parent not in config.lost_snapshots
    }
    if not gaps:
        return
    missing = "; ".join(
        f"snapshot {graph.ids[index]} in the history of {graph.reach[index].names[0]} has the parent {parent}, which is not in snapshots/"
        for parent, index in gaps.items()
    )
    ids, them = ", ".join(gaps), "it" if len(gaps) == 1 else "them"
    raise LakeUnreadable(
        f"lake {lake}: {missing}. The snapshots before {them} are unknown. Run again, because icechunk may have expired "
        f"history during the run. If the error persists, restore {ids} (with `gc-assets restore` if a plan quarantined "
        f"{them}, otherwise from a backup), or, if this is impossible, add {ids} to lost_snapshots of the lake"
    )


def _refuse_unreadable(lake: str, graph: Graph, protected: Mapping[int, str]) -> None:
    for index, error in graph.unreadable.items():
        if graph.reach[index].count:
            reason = f"{graph.reach[index].names[0]} reaches it"
        elif index in protected:
            reason = protected[index]
        else:
            continue
        raise LakeUnreadable(f"{error} (lake {lake}; needed: {reason})")


def _row(graph: Graph, expiration: Expiration, protected: Mapping[int, str], reasons: Reasons, index: int) -> dict[str, Any]:
    reach = graph.reach[index]
    state: CommitState = RETAINED
    if index in expiration.reached:
        reason = reasons.explain_kept(index)
    elif index in protected:
        reason = protected[index]
    else:
        state = EXPIRED if reach.count else DANGLING
        reason = reasons.explain_lost(index)
    return {
        "commit_id": graph.ids[index],
        "state": state,
        "refs": list(reach.names),
        "refs_count": reach.count,
        "keep_until": keep_until(graph, expiration, index, reason),
        "reason": reason,
    }


def _expiry_rows(
    graph: Graph, expiration: Expiration, fixed: set[int], semantics: Semantics, config: IcechunkLakeConfig
) -> Iterator[dict[str, Any]]:
    ids = graph.ids
    for edit in expiration.edits:
        walk = edit.walks[0]
        pointer = walk.pointer
        others = f" (and for {count_of(len(edit.walks) - 1, 'other ref')})" if len(edit.walks) > 1 else ""
        position = "its head is expired" if walk.head_expired else "the last snapshot kept"
        yield {
            "snapshot_id": ids[edit.snapshot],
            "action": "edit_parent",
            "ref_name": pointer.ref.ref_name,
            "ref_type": pointer.ref.ref_type,
            "old_parent_id": ids[graph.history.forest.parent[edit.snapshot]],
            "new_parent_id": ids[edit.new_parent],
            "reason": f"{semantics}: {position} by {pointer.rule} on {pointer.label}{others}; "
            "the snapshots between it and the first snapshot are removed from the history",
            "details": graph.entries.get(edit.snapshot),
        }
    for walk in expiration.deleted:
        others = "" if walk.pointer.head in expiration.reached else " and no other ref reaches it"
        yield _ref_deletion(graph, walk.pointer, f"its head is {walk.pointer.rule.beyond}{others}")
    if config.retention.tags == "ignore":
        for pointer in graph.pointers:
            loses_head = pointer.ref.ref_type == "tag" and pointer.head not in expiration.reached
            if loses_head and id(pointer) not in fixed:
                reason = "retention.tags is `ignore`, and a tag on a deleted snapshot makes every later walk of the library fail"
                yield _ref_deletion(graph, pointer, reason)


def _ref_deletion(graph: Graph, pointer: RefPointer, reason: str) -> dict[str, Any]:
    row = {"snapshot_id": graph.ids[pointer.head], "action": DELETE_REF, "reason": reason, "details": graph.entries.get(pointer.head)}
    return {**row, "ref_name": pointer.ref.ref_name, "ref_type": pointer.ref.ref_type}


def _removals(graph: Graph, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Plan to remove listed snapshots that are not retained. Their files are kept until removal."""
    parent = graph.history.forest.parent
    for index, entry in graph.entries.items():
        if rows[index]["state"] != RETAINED:
            yield {
                "snapshot_id": graph.ids[index],
                "action": REMOVE_SNAPSHOT,
                "old_parent_id": None if parent[index] == NO_PARENT else graph.ids[parent[index]],
                "reason": rows[index]["reason"],
                "details": entry,
            }


def _build_notes(
    lake: str,
    graph: Graph,
    compared: Mapping[Semantics, Expiration],
    expiration: Expiration,
    protected: Mapping[int, str],
    ambiguous: frozenset[str],
    config: IcechunkLakeConfig,
) -> Iterator[str]:
    now = {index for index, reach in enumerate(graph.reach) if reach.count}
    gone = {semantics: now.difference(expired.reached, protected) for semantics, expired in compared.items()}
    if len({frozenset(lost) for lost in gone.values()}) > 1:
        counts = ", ".join(f"`{semantics}` {len(lost):,}" for semantics, lost in gone.items())
        rules = "the two rules for expiry (`expiry.semantics`)"
        yield f"lake {lake}: {rules} expire different numbers of snapshots: {counts}. The lake uses `{config.expiry.semantics}`"
    for index, parent in graph.missing_parent.items():
        if graph.reach[index].count:
            yield (
                f"lake {lake}: snapshot {graph.ids[index]} in the history of {graph.reach[index].names[0]} has the parent {parent}, "
                "which is not in snapshots/. lost_snapshots accepts this, so the snapshots before it are dangling, and nothing of that "
                "history expires"
            )
    for snapshot in config.lost_snapshots:
        if snapshot in graph.history.forest.position:
            yield f"lake {lake}: snapshot {snapshot} in lost_snapshots exists again; remove it from lost_snapshots"
    if graph.history.forest.cyclic:
        yield f"lake {lake}: the parents of {len(graph.history.forest.cyclic):,} snapshots form a cycle; they are kept"
    for pointer in expiration.skewed:
        yield (
            f"lake {lake}: the first snapshot of {pointer.label} is younger than the cut-off of {pointer.rule} and later ones are older, "
            "due to a wrong clock. Its whole history is kept, and the library cannot expire it either"
        )
    yield from _describe_names(lake, graph, ambiguous)
    if config.expiry.delete_expired_tags and config.retention.tags == "keep":
        yield f"lake {lake}: delete_expired_tags has no effect while retention.tags is `keep`; set `policy` to delete expired tags"
    if config.retention.dangling_cutoff().forever and (left := len(protected.keys() - now)):
        yield (
            f"lake {lake}: {count_of(left, 'snapshot')} that no ref reaches {'is' if left == 1 else 'are'} kept, because "
            "retention.dangling has no limit; set a duration to collect the snapshots of aborted and reset work"
        )
    for index, error in graph.unreadable.items():
        yield f"{error} (snapshot {graph.ids[index]}, which is not needed)"


def _describe_names(lake: str, graph: Graph, ambiguous: frozenset[str]) -> Iterator[str]:
    """Yield notes about names shared by refs, and about ref directories ignored by the library."""
    for name in sorted(ambiguous):
        types = Counter(pointer.ref.ref_type for pointer in graph.pointers if pointer.ref.ref_name == name)
        if len(types) > 1:
            yield f"lake {lake}: a branch and a tag are both named {name!r}; neither is ever deleted"
        for ref_type, count in types.items():
            if count > 1:
                yield f"lake {lake}: {count:,} {_PLURALS[ref_type]} are named {name!r}, in different directories; all are kept"
    for pointer in graph.pointers:
        if READ_ONLY in pointer.ref.properties:
            yield (
                f"lake {lake}: icechunk does not find {pointer.label} in this store, because refs/{pointer.ref.properties[READ_ONLY]}/ "
                "was copied from S3 or renamed; it is kept and never deleted"
            )
    for pointer in graph.renamed:
        other = other_name(pointer.ref.properties)
        yield (
            f"lake {lake}: {pointer.label} may also be named {other!r}, which has another rule ({pointer.rule.path}). Both rules keep its "
            "history, and it is never deleted; let one rule match both names"
        )
