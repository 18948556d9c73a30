"""Compute the history edits that a policy requires, and the snapshots reachable after them.

There are three variants of the rule, called semantics:

* `seed`: as in the Icechunk document `design-docs/007-basic-expiration.md`. Each ref is followed
  from its tip to the oldest snapshot that has not expired. This snapshot gets the first snapshot of
  the history as its new parent. A ref with an expired tip (head) is left unchanged.
* `icechunk-v1`: as in the library since 0.2.11 (PR 870). An expired tip gets the first snapshot as
  its parent, too.
* `icechunk-v2`: as in the library since 2.0, for repositories with spec version 2. It differs from
  `icechunk-v1` in two ways. A snapshot keeps its parent if another ref keeps that parent, and a ref
  with an expired tip is deleted even if another ref has the same tip.

All functions are pure and take linear time in the number of snapshots, except for rules that count
snapshots. Positions of snapshots are indices into a `Forest`. Unlike in the document and the
library, refs may have different cut-offs. An edit that would cut off history of another ref is not
made, so the order of refs does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gc_assets.core.forest import NO_PARENT, Forest
from gc_assets.core.units import Cutoff
from gc_assets.lakes.protocol import Ref

Semantics = Literal["seed", "icechunk-v1", "icechunk-v2"]


def resolve_semantics(configured: str, spec_version: int) -> Semantics:
    """Return the semantics that `expiry.semantics` selects for a repository."""
    if configured == "seed":
        return "seed"
    return "icechunk-v1" if spec_version == 1 else "icechunk-v2"


@dataclass(frozen=True, slots=True)
class Rule:
    """A cut-off in the configuration.

    Attributes:
        path: Path of the rule in the configuration.
        moment: Time of the cut-off in microseconds since 1970, or None if the rule has no age.
    """

    cutoff: Cutoff
    path: str
    moment: int | None

    def __str__(self) -> str:
        return f"{self.path} ({str(self.cutoff).removeprefix('the ')})"

    @property
    def within(self) -> str:
        return f"{self.cutoff.retained_text} ({self.path})"

    @property
    def beyond(self) -> str:
        return f"{self.cutoff.expired_text} ({self.path})"


@dataclass(frozen=True, slots=True)
class RefPointer:
    """A ref, the position of its head snapshot, and the rule that applies to its history."""

    ref: Ref
    head: int
    rule: Rule

    @property
    def label(self) -> str:
        return f"{self.ref.ref_type} {self.ref.ref_name}"


@dataclass(frozen=True, slots=True)
class History:
    """All snapshots of a repository, with the values needed to follow the history of a ref.

    Sequences are indexed by the position of a snapshot in `forest`.

    Attributes:
        stamps: Commit time of each snapshot in microseconds since 1970.
        first: Position of the earliest ancestor, i.e. the first snapshot. `NO_PARENT` if an
            ancestor is missing or the parents form a cycle.
        depth: Number of steps from each snapshot to its first snapshot.
    """

    forest: Forest
    stamps: Sequence[int]
    first: Sequence[int]
    depth: Sequence[int]

    @classmethod
    def of(cls, forest: Forest, stamps: Sequence[int], incomplete: Iterable[int]) -> History:
        """Build the history of a repository.

        Args:
            forest: Parents of the snapshots.
            stamps: Commit time of each snapshot in microseconds since 1970.
            incomplete: Positions of snapshots whose parent is missing.
        """
        first, depth = [NO_PARENT] * len(forest.ids), [0] * len(forest.ids)
        without_parent = set(incomplete)
        for index in reversed(forest.children_first):
            parent = forest.parent[index]
            if parent == NO_PARENT:
                first[index] = NO_PARENT if index in without_parent else index
            else:
                first[index], depth[index] = first[parent], depth[parent] + 1
        return cls(forest, stamps, first, depth)

    def moment_bounds(self, moment: int) -> tuple[Sequence[int], Sequence[int]]:
        """Find each snapshot's earliest ancestors before and after a given time.

        Returns:
            For each snapshot, its earliest ancestor that is not older than `moment`, and its
            earliest ancestor that is older. The snapshot itself counts. `NO_PARENT` means that
            such a snapshot does not exist.
        """
        young, old = [NO_PARENT] * len(self.stamps), [NO_PARENT] * len(self.stamps)
        for index in reversed(self.forest.children_first):
            parent = self.forest.parent[index]
            if parent != NO_PARENT:
                young[index], old[index] = young[parent], old[parent]
            if self.stamps[index] < moment:
                old[index] = index if old[index] == NO_PARENT else old[index]
            else:
                young[index] = index if young[index] == NO_PARENT else young[index]
        return young, old

    def ancestor(self, index: int, steps: int) -> int:
        """Return the ancestor `steps` before a snapshot.

        If it has fewer, return the first snapshot.
        """
        for _ in range(min(steps, self.depth[index])):
            index = self.forest.parent[index]
        return index


@dataclass(frozen=True, slots=True)
class Walk:
    """The part of a ref's history that its rule keeps.

    Attributes:
        last: Oldest snapshot to keep, or `NO_PARENT` to keep nothing. If a clock was wrong, a head
            may have expired although one of its ancestors has not. In this case, `last` is the
            ancestor.
        head_expired: True if the head is older than the cut-off.
    """

    pointer: RefPointer
    last: int
    head_expired: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """History edit that gives a snapshot a new parent.

    The walks (kept parts of the history) of several refs can end at this snapshot. Reports show the
    ref of the first walk.
    """

    snapshot: int
    new_parent: int
    walks: Sequence[Walk]


@dataclass(frozen=True, slots=True)
class Expiration:
    """The history edits required by a policy, and the snapshots that remain after them.

    Attributes:
        edits: New parents of snapshots.
        deleted: Walks of refs to delete.
        keepers: For each position that a rule keeps, the walk that reaches back furthest.
        reached: For each position that is reachable after the edits, the walk of the first ref that
            reaches it.
        skewed: Refs with inconsistent times in their history, see `Bounds.is_skewed`.
    """

    edits: tuple[Edit, ...]
    deleted: tuple[Walk, ...]
    keepers: Mapping[int, Walk]
    reached: Mapping[int, Walk]
    skewed: tuple[RefPointer, ...]


class Bounds:
    """Cached results of `History.moment_bounds`, shared by refs with the same cut-off time."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    def walk(self, pointer: RefPointer) -> Walk:
        """Determine which part of a ref's history its rule keeps.

        Callers handle incomplete histories.
        """
        history, cutoff = self._history, pointer.rule.cutoff
        if cutoff.forever:
            return Walk(pointer, history.first[pointer.head], head_expired=False)
        last = NO_PARENT
        if cutoff.keep_last is not None:
            last = history.ancestor(pointer.head, cutoff.keep_last - 1)
        if pointer.rule.moment is not None:
            young = self._of(pointer.rule.moment)[0][pointer.head]
            if young != NO_PARENT and (last == NO_PARENT or history.depth[young] < history.depth[last]):
                last = young
        old_head = pointer.rule.moment is None or history.stamps[pointer.head] < pointer.rule.moment
        return Walk(pointer, last, head_expired=cutoff.keep_last is None and old_head)

    def is_skewed(self, pointer: RefPointer) -> bool:
        """Return True if a ref's first snapshot is younger than the cut-off, but a later one older.

        Such a history makes the Icechunk library panic.
        """
        if pointer.rule.moment is None or pointer.rule.cutoff.forever:
            return False
        young, old = self._of(pointer.rule.moment)
        return old[pointer.head] != NO_PARENT and young[pointer.head] == self._history.first[pointer.head]

    def _of(self, moment: int) -> tuple[Sequence[int], Sequence[int]]:
        if moment not in self._known:
            self._known[moment] = self._history.moment_bounds(moment)
        return self._known[moment]


def expire(
    history: History,
    pointers: Sequence[RefPointer],
    removable: Sequence[RefPointer],
    semantics: Semantics,
    planned: Collection[int] = (),
) -> Expiration:
    """Compute the edits that the semantics require, and the refs to delete.

    A ref is deleted if its head has expired and is not reachable any more (icechunk issue 1534).
    The head of a deleted ref is never edited. The Icechunk library does edit it, which makes the
    snapshot's object younger. The library's garbage collector therefore keeps the snapshot, but
    deletes the objects that it needs. With `icechunk-v2`, the head may be reachable (issue 1520),
    but it must not be the first snapshot, or one that another ref's rule keeps.

    Args:
        history: Snapshots of the repository.
        pointers: Refs whose history can expire.
        removable: Refs that may be deleted.
        semantics: Variant of the rule.
        planned: Positions of the edits of a plan that is being applied. Every commit after the plan
            moves the end of a rule that counts snapshots. Such a rule keeps the history back to the
            planned edit if no ref would reach the edited snapshot otherwise.
    """
    bounds = Bounds(history)
    walks = [bounds.walk(pointer) for pointer in pointers]
    expiration = _expire(history, bounds, walks, removable, semantics)
    extended = [_extend(history, walk, planned, expiration.reached) for walk in walks]
    return expiration if extended == walks else _expire(history, bounds, extended, removable, semantics)


def _extend(history: History, walk: Walk, planned: Collection[int], reached: Collection[int]) -> Walk:
    """Extend the walk of a rule that counts snapshots to the next planned edit."""
    if not planned or walk.pointer.rule.cutoff.keep_last is None:
        return walk
    index = walk.last
    for _ in range(history.depth[walk.last]):
        if index in planned:
            return walk if index in reached else replace(walk, last=index)
        index = history.forest.parent[index]
    return walk


def _expire(history: History, bounds: Bounds, walks: Sequence[Walk], removable: Sequence[RefPointer], semantics: Semantics) -> Expiration:
    deletable = {id(pointer) for pointer in removable if _is_deletable(history, pointer.head, semantics)}
    expired_heads = [walk for walk in walks if id(walk.pointer) in deletable and walk.last == NO_PARENT]
    leaving = {id(walk.pointer) for walk in expired_heads}
    remaining = [walk for walk in walks if id(walk.pointer) not in leaving]
    keepers = _find_keepers(history, remaining)
    edits = _find_edits(history, remaining, keepers, semantics)
    reached = _find_reached(history, remaining, {edit.snapshot: edit.new_parent for edit in edits})
    retaining = keepers if semantics == "icechunk-v2" else reached
    return Expiration(
        edits=edits,
        deleted=tuple(walk for walk in expired_heads if walk.pointer.head not in retaining),
        keepers=keepers,
        reached=reached,
        skewed=tuple(walk.pointer for walk in walks if bounds.is_skewed(walk.pointer)),
    )


def _is_deletable(history: History, head: int, semantics: Semantics) -> bool:
    first = history.first[head]
    return first != NO_PARENT and (semantics != "icechunk-v2" or first != head)


def _find_keepers(history: History, walks: Sequence[Walk]) -> dict[int, Walk]:
    """Map each snapshot kept by a rule to the walk through it that reaches back furthest."""
    keepers: dict[int, Walk] = {}

    def offer(index: int, walk: Walk) -> None:
        known = keepers.get(index)
        if known is None or history.depth[walk.last] < history.depth[known.last]:
            keepers[index] = walk

    for walk in walks:
        if walk.last != NO_PARENT:
            offer(walk.pointer.head, walk)
    for index in history.forest.children_first:
        walk = keepers.get(index)
        if walk is not None and index != walk.last:
            offer(history.forest.parent[index], walk)
    return keepers


def _find_edits(history: History, walks: Sequence[Walk], keepers: Mapping[int, Walk], semantics: Semantics) -> tuple[Edit, ...]:
    walks_by_end: dict[int, list[Walk]] = {}
    kept = keepers.keys() | {walk.pointer.head for walk in walks} if semantics == "icechunk-v2" else frozenset[int]()
    for walk in walks:
        first = history.first[walk.pointer.head]
        if walk.head_expired and semantics == "seed":
            continue
        editable = walk.pointer.head if walk.last == NO_PARENT else walk.last
        if first == NO_PARENT or editable == first or history.forest.parent[editable] == first:
            continue
        if history.forest.parent[editable] in kept:
            continue
        keeper = keepers.get(editable)
        if keeper is None or keeper.last == editable:
            walks_by_end.setdefault(editable, []).append(walk)
    return tuple(Edit(snapshot, history.first[snapshot], tuple(walks_of_edit)) for snapshot, walks_of_edit in walks_by_end.items())


def _find_reached(history: History, walks: Sequence[Walk], new_parents: Mapping[int, int]) -> dict[int, Walk]:
    """Map each snapshot that is reachable after the edits to the walk of the first ref reaching it."""
    reached: dict[int, Walk] = {}
    for walk in walks:
        index = walk.pointer.head
        while index != NO_PARENT and index not in reached:
            reached[index] = walk
            index = new_parents.get(index, history.forest.parent[index])
    return reached
