"""The policy over the commit graph of a repository: one verdict per snapshot, and the edits of
history as plan rows.

Pure: no objects, no clock. `expiration` simulates the edits. This module holds the rules around
them: it protects snapshots whatever expiry does (the grace period, the lake's own cut-off for what
no ref reaches, histories that cannot be told), and it words the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.forest import NO_PARENT
from gc_assets.core.units import Cutoff
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.expiration import Expiration, Pointer, Semantics, expire
from gc_assets.lakes.icechunk.graph import Graph, micros, moment_micros, read_graph, shared_names
from gc_assets.lakes.icechunk.reasons import Reasons, keep_until
from gc_assets.lakes.protocol import DANGLING, DELETE_REF, EXPIRED, RETAINED, CommitState, FrozenRefs, Retention
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

# The library refuses to delete it, and so do we.
DEFAULT_BRANCH = "main"


def retain(refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime, config: IcechunkLakeConfig) -> Retention:
    """Returns one row per commit of `commits`, in its order, and the rows of `expiry_plan` that
    lead there.

    Raises `LakeUnreadable` for a ref whose head is not among the commits, and for a damaged
    snapshot that a ref reaches or that is protected.
    """
    graph = read_graph(refs, commits, as_of, config)
    honoured = [pointer for pointer in graph.pointers if _honoured(graph, pointer, config)]
    ambiguous = shared_names(graph.pointers)
    removable = [pointer for pointer in honoured if pointer.ref.ref_name not in ambiguous and _removable(pointer, config)]
    outcome: dict[Semantics, Expiration] = {semantics: expire(graph.history, honoured, removable, semantics) for semantics in _SEMANTICS}
    chosen = outcome[config.expiry.semantics]
    loose = _unreached(graph, honoured) - _let_go(graph, refs)
    protected = _protected(graph, chosen, loose, micros(grace_cutoff), config.retention.dangling_cutoff(), as_of)
    _refuse_unreadable(refs.lake, graph, protected)
    reasons = Reasons(graph, chosen, config, honoured)
    rows = [_row(graph, chosen, protected, reasons, index) for index in range(len(graph.ids))]
    return Retention(
        reachable=pa.Table.from_pylist(rows, schema=REACHABLE_SNAPSHOTS.schema),
        expiry=pa.Table.from_pylist(list(_expiry(graph, chosen, ambiguous, config)), schema=EXPIRY_PLAN.schema),
        notes=tuple(_notes(refs.lake, graph, outcome, protected, ambiguous, config)),
    )


_SEMANTICS: tuple[Semantics, ...] = ("seed", "icechunk-v1")


def _honoured(graph: Graph, pointer: Pointer, config: IcechunkLakeConfig) -> bool:
    """Decides whether a ref protects.

    An ignored tag protects nothing, unless the history behind it cannot be told.
    """
    ignored = config.retention.tags == "ignore" and pointer.ref.ref_type == "tag"
    return not ignored or graph.history.first[pointer.head] == NO_PARENT


def _removable(pointer: Pointer, config: IcechunkLakeConfig) -> bool:
    if pointer.ref.ref_type == "tag":
        return config.expiry.delete_expired_tags and config.retention.tags == "policy"
    return config.expiry.delete_expired_branches and pointer.ref.ref_name != DEFAULT_BRANCH


def _protected(graph: Graph, chosen: Expiration, loose: set[int], grace_cutoff: int, cutoff: Cutoff, as_of: datetime) -> dict[int, str]:
    """Returns the snapshots that stay although no ref reaches them after expiry, each with its
    reason.

    Only snapshots in `loose` may be kept by `cutoff`, the rule for what no ref reaches. A young
    snapshot stays whole, with its ancestry: a tag made on it tomorrow would otherwise break every
    later walk of the library.
    """
    protected = dict.fromkeys(graph.history.forest.cyclic, "kept: its parents form a cycle, so its history cannot be told")
    moment = moment_micros(cutoff.moment(as_of))
    young: list[tuple[int, str]] = []
    for index, stamp in enumerate(graph.history.stamps):
        if index in chosen.reached:
            continue
        if stamp >= grace_cutoff:
            young.append((index, "kept: younger than the grace period"))
        elif index in loose and moment is None:
            young.append((index, "kept: no ref reaches it, and retention.dangling keeps for ever"))
        elif index in loose and moment is not None and stamp >= moment:
            young.append((index, f"kept: no ref reaches it, and it is younger than {cutoff.limit_text} (retention.dangling)"))
    parent = graph.history.forest.parent
    for index, reason in young:
        protected.setdefault(index, reason)
    for index, _ in young:
        above = parent[index]
        while above != NO_PARENT and above not in protected and above not in chosen.reached:
            protected[above] = f"kept: snapshot {graph.ids[index]} descends from it, which no ref reaches and which is too young to go"
            above = parent[above]
    return protected


def _unreached(graph: Graph, honoured: Sequence[Pointer]) -> set[int]:
    """Returns the snapshots that no protecting ref reaches now."""
    reached: set[int] = set()
    for pointer in honoured:
        index = pointer.head
        while index != NO_PARENT and index not in reached:
            reached.add(index)
            index = graph.history.forest.parent[index]
    return set(range(len(graph.ids))).difference(reached)


def _let_go(graph: Graph, refs: FrozenRefs) -> set[int]:
    """Returns the snapshots that edits of ours cut off.

    Their age already ran by the rule of their ref; a second age does not begin.
    """
    parent, position = graph.history.forest.parent, graph.history.forest.position
    let_go: set[int] = set()
    for edit in refs.edits:
        index = position.get((edit.snapshot_id if edit.action == DELETE_REF else edit.old_parent_id) or "", NO_PARENT)
        end = position.get(edit.new_parent_id or "", NO_PARENT)
        while index not in {NO_PARENT, end} and index not in let_go:
            let_go.add(index)
            index = parent[index]
    return let_go


def _refuse_unreadable(lake: str, graph: Graph, protected: Mapping[int, str]) -> None:
    for index, why in graph.unreadable.items():
        if graph.reach[index].count:
            need = f"{graph.reach[index].names[0]} reaches it"
        elif index in protected:
            need = protected[index]
        else:
            continue
        raise LakeUnreadable(f"{why} (lake {lake}; needed: {need})")


def _row(graph: Graph, chosen: Expiration, protected: Mapping[int, str], reasons: Reasons, index: int) -> dict[str, Any]:
    reach = graph.reach[index]
    state: CommitState = RETAINED
    if index in chosen.reached:
        reason = reasons.reached(index)
    elif index in protected:
        reason = protected[index]
    else:
        state = EXPIRED if reach.count else DANGLING
        reason = reasons.lost(index)
    return {
        "commit_id": graph.ids[index],
        "state": state,
        "refs": list(reach.names),
        "refs_count": reach.count,
        "keep_until": keep_until(graph, chosen, index, reason),
        "reason": reason,
    }


def _expiry(graph: Graph, chosen: Expiration, ambiguous: frozenset[str], config: IcechunkLakeConfig) -> Iterator[dict[str, Any]]:
    ids = graph.ids
    for edit in chosen.edits:
        walk = edit.walks[0]
        pointer = walk.pointer
        others = f" (and for {len(edit.walks) - 1:,} other refs)" if len(edit.walks) > 1 else ""
        what = "its head is expired" if walk.head_expired else "the last snapshot kept"
        yield {
            "snapshot_id": ids[edit.snapshot],
            "action": "edit_parent",
            "ref_name": pointer.ref.ref_name,
            "ref_type": pointer.ref.ref_type,
            "old_parent_id": ids[graph.history.forest.parent[edit.snapshot]],
            "new_parent_id": ids[edit.new_parent],
            "reason": f"{config.expiry.semantics}: {what} by {pointer.rule} on {pointer.label}{others}; "
            "what lies between it and the first snapshot is abandoned",
        }
    for walk in chosen.deleted:
        yield _deletion(ids[walk.pointer.head], walk.pointer, f"its head is {walk.pointer.rule.beyond} and no other ref reaches it")
    if config.retention.tags == "ignore":
        for pointer in graph.pointers:
            lost = pointer.ref.ref_type == "tag" and pointer.head not in chosen.reached and pointer.ref.ref_name not in ambiguous
            if lost:
                why = "retention.tags is `ignore`, and a tag on a snapshot that is gone makes every later walk of the library fail"
                yield _deletion(ids[pointer.head], pointer, why)


def _deletion(head: str, pointer: Pointer, reason: str) -> dict[str, Any]:
    ref = pointer.ref
    return {"snapshot_id": head, "action": "delete_ref", "ref_name": ref.ref_name, "ref_type": ref.ref_type, "reason": reason}


def _notes(
    lake: str,
    graph: Graph,
    outcome: Mapping[Semantics, Expiration],
    protected: Mapping[int, str],
    ambiguous: frozenset[str],
    config: IcechunkLakeConfig,
) -> Iterator[str]:
    now = {index for index, reach in enumerate(graph.reach) if reach.count}
    gone = {semantics: now.difference(expired.reached, protected) for semantics, expired in outcome.items()}
    if gone["seed"] != gone["icechunk-v1"]:
        counts = ", ".join(f"`{semantics}` {len(lost):,}" for semantics, lost in gone.items())
        rules = "the two rules by which a history may expire (`expiry.semantics`)"
        yield f"lake {lake}: {rules} differ in how many snapshots they let go: {counts}; configured is `{config.expiry.semantics}`"
    for index, parent in graph.missing_parent.items():
        if graph.reach[index].count:
            yield (
                f"lake {lake}: snapshot {graph.ids[index]} on the history of {graph.reach[index].names[0]} names the parent {parent}, "
                "which snapshots/ does not have; nothing of that history expires until it is restored"
            )
    if graph.history.forest.cyclic:
        yield f"lake {lake}: the parents of {len(graph.history.forest.cyclic):,} snapshots form a cycle; they are kept"
    for pointer in outcome[config.expiry.semantics].skewed:
        yield (
            f"lake {lake}: the first snapshot of {pointer.label} is younger than {pointer.rule} and later ones are older (a wrong clock); "
            "its history is kept whole, and the library itself cannot expire it"
        )
    for name in sorted(ambiguous):
        yield f"lake {lake}: a branch and a tag are both named {name!r}; neither is ever deleted"
    if config.expiry.delete_expired_tags and config.retention.tags == "keep":
        yield f"lake {lake}: delete_expired_tags does nothing while retention.tags is `keep`; say `policy` to let tags lapse"
    if config.retention.dangling_cutoff().forever and (left := len(protected.keys() - now)):
        yield (
            f"lake {lake}: {left:,} snapshots that no ref reaches are kept, because retention.dangling keeps for ever; "
            "write a duration to let the leftovers of aborted and reset work go"
        )
    for index, why in graph.unreadable.items():
        yield f"{why} (snapshot {graph.ids[index]}, which nothing needs)"
