"""The snapshots of one table as a forest (a snapshot has one parent at most): positions, cycles,
and the refs that reach each.

Pure and linear in snapshots and refs; knows no retention. A parent that is no longer listed ends
the ancestry, as in Iceberg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_PARENT = -1
REFS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Forest:
    """Snapshots by position. `parent[i]` is a position or `NO_PARENT`. `cyclic` holds the positions
    on a cycle of parents.
    """

    ids: Sequence[str]
    position: Mapping[str, int]
    parent: Sequence[int]
    children_first: Sequence[int]
    cyclic: frozenset[int]


def forest_of(ids: Sequence[str], parent_ids: Sequence[str | None]) -> Forest:
    """Returns the forest of the listed snapshots, ordered so that children come before parents."""
    position = {commit_id: index for index, commit_id in enumerate(ids)}
    parent = [NO_PARENT if parent_id is None else position.get(parent_id, NO_PARENT) for parent_id in parent_ids]
    children = [0] * len(ids)
    for above in parent:
        if above != NO_PARENT:
            children[above] += 1
    order = [index for index, count in enumerate(children) if count == 0]
    for index in order:  # grows while it is walked: Kahn's topological order from the leaves
        above = parent[index]
        if above != NO_PARENT:
            children[above] -= 1
            if children[above] == 0:
                order.append(above)
    return Forest(ids, position, parent, order, frozenset(range(len(ids))).difference(order))


@dataclass(frozen=True, slots=True)
class Reach:
    """How many refs reach a snapshot through listed parents, and the first `REFS_SHOWN` of their
    names.
    """

    count: int
    names: tuple[str, ...]


def refs_reaching(forest: Forest, heads: Mapping[int, Sequence[str]]) -> list[Reach]:
    """Returns for each position the refs whose head is at it or descends from it. Names are unique
    over `heads`. Cycles are left empty.
    """
    nothing = Reach(0, ())
    reach = [nothing] * len(forest.ids)
    for index in forest.children_first:
        if index in heads:
            own = Reach(len(heads[index]), tuple(sorted(heads[index])[:REFS_SHOWN]))
            reach[index] = _joined(reach[index], own)
        above = forest.parent[index]
        if above != NO_PARENT and above not in forest.cyclic:
            reach[above] = _joined(reach[above], reach[index])
    return reach


def _joined(one: Reach, other: Reach) -> Reach:
    if not one.count or not other.count:
        return one if one.count else other
    return Reach(one.count + other.count, tuple(sorted(one.names + other.names)[:REFS_SHOWN]))
