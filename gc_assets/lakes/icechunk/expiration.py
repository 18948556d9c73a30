"""Which edits of history a policy asks for, and what refs reach once they are made. Two semantics,
by name:

* `seed`: the public text (icechunk `design-docs/007-basic-expiration.md`). For each ref, take the
  last snapshot on the walk from its tip that is not expired. It gets the first snapshot of the
  history as parent. A ref whose tip is expired is left alone.
* `icechunk-v1`: the library since 0.2.11 (its PR 870). The same, and an expired tip gets the first
  snapshot as parent too.

Pure and linear in snapshots, apart from rules that count snapshots. Positions are those of
`Forest`. Unlike the text and the library, refs may have different cut-offs: an edit that would cut
what another ref keeps is not made, so the order of refs changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gc_assets.core.forest import NO_PARENT, Forest
from gc_assets.core.units import Cutoff
from gc_assets.lakes.protocol import Ref

Semantics = Literal["seed", "icechunk-v1"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A cut-off, the configuration path that gives it, and its moment on this run date
    (microseconds; null where age decides nothing).
    """

    cutoff: Cutoff
    path: str
    moment: int | None

    @property
    def within(self) -> str:
        return f"{self.cutoff.retained_text} ({self.path})"

    @property
    def beyond(self) -> str:
        return f"{self.cutoff.expired_text} ({self.path})"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A ref with the position of its head and the rule for its history."""

    ref: Ref
    head: int
    rule: Rule

    @property
    def label(self) -> str:
        return f"{self.ref.ref_type} {self.ref.ref_name}"


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots with what every walk needs: times in microseconds, the first snapshot of each
    one's ancestry, and the distance to it.

    `first` is `NO_PARENT` where the ancestry cannot be told: it lacks a snapshot, or its parents
    form a cycle.
    """

    forest: Forest
    stamps: Sequence[int]
    first: Sequence[int]
    depth: Sequence[int]

    @classmethod
    def of(cls, forest: Forest, stamps: Sequence[int], incomplete: Iterable[int]) -> History:
        """Builds the history. `incomplete` holds the positions of snapshots whose parent is named
        and not among the snapshots.
        """
        first, depth = [NO_PARENT] * len(forest.ids), [0] * len(forest.ids)
        lacking = set(incomplete)
        for index in reversed(forest.children_first):
            above = forest.parent[index]
            if above == NO_PARENT:
                first[index] = NO_PARENT if index in lacking else index
            else:
                first[index], depth[index] = first[above], depth[above] + 1
        return cls(forest, stamps, first, depth)

    def moment_bounds(self, moment: int) -> tuple[Sequence[int], Sequence[int]]:
        """Returns for each snapshot the last one on its walk that is not older than the moment, and
        the last one that is; `NO_PARENT` for none.
        """
        young, old = [NO_PARENT] * len(self.stamps), [NO_PARENT] * len(self.stamps)
        for index in reversed(self.forest.children_first):
            above = self.forest.parent[index]
            if above != NO_PARENT:
                young[index], old[index] = young[above], old[above]
            if self.stamps[index] < moment:
                old[index] = index if old[index] == NO_PARENT else old[index]
            else:
                young[index] = index if young[index] == NO_PARENT else young[index]
        return young, old

    def ancestor(self, index: int, steps: int) -> int:
        """Returns the ancestor `steps` parents up, or the first snapshot."""
        for _ in range(min(steps, self.depth[index])):
            index = self.forest.parent[index]
        return index


@dataclass(frozen=True, slots=True)
class Walk:
    """What a ref's rule keeps of its own history: from the head to `last`, or nothing
    (`NO_PARENT`).

    With wrong clocks an expired head may have an ancestor that is not expired. `last` is then that
    ancestor.
    """

    pointer: Pointer
    last: int
    head_expired: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A snapshot gets another parent because the walks of these refs end there. The first ref in
    order speaks for all.
    """

    snapshot: int
    new_parent: int
    walks: Sequence[Walk]


@dataclass(frozen=True, slots=True)
class Expiration:
    """The outcome: edits, refs to delete, and for each snapshot the ref that keeps it afterwards.

    `keepers[i]` is the walk whose rule holds snapshot i with the longest reach. `reached[i]` is the
    first ref that reaches it after the edits.
    """

    edits: tuple[Edit, ...]
    deleted: tuple[Walk, ...]
    keepers: Mapping[int, Walk]
    reached: Mapping[int, Walk]
    skewed: tuple[Pointer, ...]


class Bounds:
    """Remembers the bounds of each moment, so that a thousand tags of one rule cost one pass."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    def walk(self, pointer: Pointer) -> Walk:
        """Returns where the ref's rule stops keeping. The caller keeps incomplete histories whole."""
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

    def skewed(self, pointer: Pointer) -> bool:
        """Returns whether the first snapshot is younger than the cut-off and a later one is older.
        The library panics on such a history.
        """
        if pointer.rule.moment is None or pointer.rule.cutoff.forever:
            return False
        young, old = self._of(pointer.rule.moment)
        return old[pointer.head] != NO_PARENT and young[pointer.head] == self._history.first[pointer.head]

    def _of(self, moment: int) -> tuple[Sequence[int], Sequence[int]]:
        if moment not in self._known:
            self._known[moment] = self._history.moment_bounds(moment)
        return self._known[moment]


def expire(history: History, pointers: Sequence[Pointer], removable: Sequence[Pointer], semantics: Semantics) -> Expiration:
    """Applies the semantics to the history of `pointers`, and deletes those of `removable` whose
    head is expired and would go.

    A removable ref whose head survives stays (issue 1534 of icechunk). The snapshot of a ref that
    goes is never edited. The library does edit it, which renews the object's age, so that its
    collector frees what the snapshot needs and spares the snapshot.
    """
    bounds = Bounds(history)
    walks = [bounds.walk(pointer) for pointer in pointers]
    may_go = {id(pointer) for pointer in removable if history.first[pointer.head] != NO_PARENT}
    lapsing = [walk for walk in walks if id(walk.pointer) in may_go and walk.last == NO_PARENT]
    going = {id(walk.pointer) for walk in lapsing}
    staying = [walk for walk in walks if id(walk.pointer) not in going]
    keepers = _keepers(history, staying)
    edits = _edits(history, staying, keepers, semantics)
    reached = _reached(history, staying, {edit.snapshot: edit.new_parent for edit in edits})
    return Expiration(
        edits=edits,
        deleted=tuple(walk for walk in lapsing if walk.pointer.head not in reached),
        keepers=keepers,
        reached=reached,
        skewed=tuple(pointer for pointer in pointers if bounds.skewed(pointer)),
    )


def _keepers(history: History, walks: Sequence[Walk]) -> dict[int, Walk]:
    """Returns for each snapshot that a rule keeps the walk through it that keeps the most of what
    lies below.
    """
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


def _edits(history: History, walks: Sequence[Walk], keepers: Mapping[int, Walk], semantics: Semantics) -> tuple[Edit, ...]:
    ending: dict[int, list[Walk]] = {}
    for walk in walks:
        first = history.first[walk.pointer.head]
        if walk.head_expired and semantics == "seed":
            continue
        editable = walk.pointer.head if walk.last == NO_PARENT else walk.last
        if first == NO_PARENT or editable == first or history.forest.parent[editable] == first:
            continue
        keeper = keepers.get(editable)
        if keeper is None or keeper.last == editable:
            ending.setdefault(editable, []).append(walk)
    return tuple(Edit(snapshot, history.first[snapshot], tuple(ended)) for snapshot, ended in ending.items())


def _reached(history: History, walks: Sequence[Walk], new_parents: Mapping[int, int]) -> dict[int, Walk]:
    """Returns every snapshot that a ref reaches after the edits, with the first ref that does.
    Cycles end where they close.
    """
    reached: dict[int, Walk] = {}
    for walk in walks:
        index = walk.pointer.head
        while index != NO_PARENT and index not in reached:
            reached[index] = walk
            index = new_parents.get(index, history.forest.parent[index])
    return reached
