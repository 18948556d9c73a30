"""Words for each snapshot why it stays or goes, and says until when its age keeps it. Decides
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from gc_assets.core.forest import NO_PARENT
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.expiration import Expiration, History, Pointer
from gc_assets.lakes.icechunk.graph import MICROSECOND, Graph


class Reasons:
    """The sentence for each snapshot."""

    def __init__(self, graph: Graph, chosen: Expiration, config: IcechunkLakeConfig, honoured: Iterable[Pointer]) -> None:
        self._graph = graph
        self._chosen = chosen
        self._semantics = config.expiry.semantics
        self._heads: dict[int, Pointer] = {}
        for pointer in graph.pointers:
            known = self._heads.get(pointer.head)
            if known is None or (known.ref.ref_type == "tag" and pointer.ref.ref_type == "branch"):
                self._heads[pointer.head] = pointer
        self._deleted = {id(walk.pointer) for walk in chosen.deleted}
        self._honoured = {id(pointer) for pointer in honoured}
        self._seen_from = _first_through(graph)

    def reached(self, index: int) -> str:
        """Returns why a snapshot is kept that a ref reaches after expiry."""
        history, walk = self._graph.history, self._chosen.reached[index]
        if index in self._heads and id(self._heads[index]) not in self._deleted:
            return f"kept: head of {self._heads[index].label}"
        if history.first[index] == NO_PARENT:
            return f"kept: the history of {walk.pointer.label} lacks a snapshot, so nothing of it expires"
        keeper = self._chosen.keepers.get(index)
        if keeper is not None:
            return _kept_by_rule(history, keeper.pointer, index)
        if history.first[index] == index:
            return f"kept: first snapshot of the history of {walk.pointer.label}, which never expires"
        if self._semantics == "seed" and walk.head_expired:
            words = "and by `expiry.semantics: seed` a ref whose head is that old keeps its history"
            return f"kept: the head of {walk.pointer.label} is {walk.pointer.rule.beyond}, {words}"
        return f"kept: the history of {walk.pointer.label} needs no edit by {walk.pointer.rule.path} ({walk.pointer.rule.cutoff})"

    def lost(self, index: int) -> str:
        """Returns why a snapshot is not kept."""
        if not self._graph.reach[index].count:
            return "dangling: no ref reaches it, and it is older than retention.dangling and the grace period"
        pointer = self._seen_from[index]
        others = f" (and {self._graph.reach[index].count - 1:,} other refs)" if self._graph.reach[index].count > 1 else ""
        if id(pointer) in self._deleted:
            return f"expired: {pointer.label}{others}, {pointer.rule.beyond}, is to be deleted"
        if id(pointer) not in self._honoured:
            return f"expired: only {pointer.label}{others} reaches it, and retention.tags is `ignore`"
        return f"expired: {pointer.rule.beyond} on {pointer.label}{others}"


def _kept_by_rule(history: History, pointer: Pointer, index: int) -> str:
    cutoff, moment = pointer.rule.cutoff, pointer.rule.moment
    if cutoff.forever:
        return f"kept: {pointer.label} keeps its history for ever ({pointer.rule.path})"
    if moment is not None and history.stamps[index] >= moment:
        return f"kept: {pointer.rule.within} on {pointer.label}"
    if cutoff.keep_last is not None and history.depth[pointer.head] - history.depth[index] < cutoff.keep_last:
        return f"kept: {pointer.rule.within} on {pointer.label}"
    return f"kept: {pointer.label} reaches a snapshot through it that is {pointer.rule.within}"


def _first_through(graph: Graph) -> dict[int, Pointer]:
    """Returns for each snapshot one ref that reaches it now, a branch before a tag."""
    through: dict[int, Pointer] = {}
    for pointer in sorted(graph.pointers, key=lambda item: item.ref.ref_type != "branch"):
        index = pointer.head
        while index != NO_PARENT and index not in through:
            through[index] = pointer
            index = graph.history.forest.parent[index]
    return through


def keep_until(graph: Graph, chosen: Expiration, index: int, reason: str) -> int | None:
    """Returns until when a snapshot is kept, only where its own age within a rule's duration is
    what keeps it.
    """
    keeper = chosen.keepers.get(index)
    if keeper is None or not reason.startswith("kept: within"):
        return None
    cutoff, moment = keeper.pointer.rule.cutoff, keeper.pointer.rule.moment
    if cutoff.keep_last is not None or cutoff.max_age is None or moment is None or graph.history.first[index] == index:
        return None
    return graph.history.stamps[index] + cutoff.max_age // MICROSECOND
