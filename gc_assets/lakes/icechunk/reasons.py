"""Explain why each snapshot is kept, expired or dangling, and how long its age keeps it.

The modules `expiration` and `retention` make the decisions.
"""

from __future__ import annotations

from collections.abc import Iterable

from gc_assets.core.forest import NO_PARENT
from gc_assets.core.moments import LATEST_MICROS, MICROSECOND
from gc_assets.core.units import count_of
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.expiration import Expiration, History, RefPointer
from gc_assets.lakes.icechunk.graph import Graph


class Reasons:
    """Explains why snapshots are kept, expired or dangling."""

    def __init__(self, graph: Graph, expiration: Expiration, config: IcechunkLakeConfig, protecting: Iterable[RefPointer]) -> None:
        self._graph = graph
        self._expiration = expiration
        self._semantics = config.expiry.semantics
        self._heads: dict[int, RefPointer] = {}
        for pointer in graph.pointers:
            known = self._heads.get(pointer.head)
            if known is None or (known.ref.ref_type == "tag" and pointer.ref.ref_type == "branch"):
                self._heads[pointer.head] = pointer
        self._deleted = {id(walk.pointer) for walk in expiration.deleted}
        self._protecting = {id(pointer) for pointer in protecting}
        self._reached_from = _first_through(graph)

    def explain_kept(self, index: int) -> str:
        """Explain why a snapshot that a ref reaches after expiry is kept."""
        history, walk = self._graph.history, self._expiration.reached[index]
        if index in self._heads and id(self._heads[index]) not in self._deleted:
            return f"kept: head of {self._heads[index].label}"
        if history.first[index] == NO_PARENT:
            return f"kept: a snapshot in the history of {walk.pointer.label} is lost, so no part of this history expires"
        keeper = self._expiration.keepers.get(index)
        if keeper is not None:
            return _kept_by_rule(history, keeper.pointer, index)
        if history.first[index] == index:
            return f"kept: first snapshot of the history of {walk.pointer.label}, which never expires"
        if self._semantics == "seed" and walk.head_expired:
            rule = "and with `expiry.semantics: seed` a ref with an expired head keeps its history"
            return f"kept: the head of {walk.pointer.label} is {walk.pointer.rule.beyond}, {rule}"
        return f"kept: {walk.pointer.rule} requires no edit of the history of {walk.pointer.label}"

    def explain_lost(self, index: int) -> str:
        """Explain why a snapshot is not kept."""
        if not self._graph.reach[index].count:
            return "dangling: no ref reaches it, and it is older than retention.dangling and the grace period"
        pointer = self._reached_from[index]
        further = self._graph.reach[index].count - 1
        others = f" (and {count_of(further, 'other ref')})" if further > 0 else ""
        if id(pointer) in self._deleted:
            return f"expired: {pointer.label}{others}, {pointer.rule.beyond}, will be deleted"
        if id(pointer) not in self._protecting:
            return f"expired: only {pointer.label}{others} reaches it, and retention.tags is `ignore`"
        return f"expired: {pointer.rule.beyond} on {pointer.label}{others}"


def _kept_by_rule(history: History, pointer: RefPointer, index: int) -> str:
    cutoff, moment = pointer.rule.cutoff, pointer.rule.moment
    if cutoff.forever:
        return f"kept: {pointer.label} keeps its history permanently ({pointer.rule.path})"
    if moment is not None and history.stamps[index] >= moment:
        return f"kept: {pointer.rule.within} on {pointer.label}"
    if cutoff.keep_last is not None and history.depth[pointer.head] - history.depth[index] < cutoff.keep_last:
        return f"kept: {pointer.rule.within} on {pointer.label}"
    return f"kept: {pointer.label} reaches a snapshot through it that is {pointer.rule.within}"


def _first_through(graph: Graph) -> dict[int, RefPointer]:
    """Map each snapshot to a ref that reaches it before any edit, if possible to a branch."""
    through: dict[int, RefPointer] = {}
    for pointer in sorted(graph.pointers, key=lambda item: item.ref.ref_type != "branch"):
        index = pointer.head
        while index != NO_PARENT and index not in through:
            through[index] = pointer
            index = graph.history.forest.parent[index]
    return through


def keep_until(graph: Graph, expiration: Expiration, index: int, reason: str) -> int | None:
    """Return the time, in microseconds since 1970, until which the age of a snapshot keeps it.

    The result is None if the snapshot is not kept because of its age.
    """
    keeper = expiration.keepers.get(index)
    if keeper is None or not reason.startswith("kept: within"):
        return None
    cutoff, moment = keeper.pointer.rule.cutoff, keeper.pointer.rule.moment
    if cutoff.keep_last is not None or cutoff.max_age is None or moment is None or graph.history.first[index] == index:
        return None
    return min(graph.history.stamps[index] + cutoff.max_age // MICROSECOND, LATEST_MICROS)
