"""Table snapshots as a forest, with cycles and the refs that reach each snapshot.

Each snapshot has at most one parent. As in Iceberg, an unlisted parent ends the ancestry. All
functions take linear time in the number of snapshots and refs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_PARENT = -1
REFS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Forest:
    """Snapshots by position.

    Attributes:
        position: Position by id.
        parent: Parent positions, or `NO_PARENT`.
        children_first: Positions ordered so that children precede parents.
        cyclic: Positions on a parent cycle.
    """

    ids: Sequence[str]
    position: Mapping[str, int]
    parent: Sequence[int]
    children_first: Sequence[int]
    cyclic: frozenset[int]


def build_forest(ids: Sequence[str], parent_ids: Sequence[str | None]) -> Forest:
    """Build the forest of the listed snapshots."""
    position = {commit_id: index for index, commit_id in enumerate(ids)}
    parent = [NO_PARENT if parent_id is None else position.get(parent_id, NO_PARENT) for parent_id in parent_ids]
    children = [0] * len(ids)
    for above in parent:
        if above != NO_PARENT:
            children[above] += 1
    order = [index for index, count in enumerate(children) if count == 0]
    for index in order:  # grows during iteration: Kahn's topological order from the leaves
        above = parent[index]
        if above != NO_PARENT:
            children[above] -= 1
            if children[above] == 0:
                order.append(above)
    return Forest(ids, position, parent, order, frozenset(range(len(ids))).difference(order))


@dataclass(frozen=True, slots=True)
class Reach:
    """Number of refs that reach a snapshot, with up to `REFS_SHOWN` of their names."""

    count: int
    names: tuple[str, ...]


def refs_reaching(forest: Forest, heads: Mapping[int, Sequence[str]]) -> list[Reach]:
    """Return for each position the refs that have their head there or at a descendant.

    Ref names must be unique in `heads`. Positions on cycles have no refs.
    """
    nothing = Reach(0, ())
    reach = [nothing] * len(forest.ids)
    for index in forest.children_first:
        if index in heads:
            own = Reach(len(heads[index]), tuple(sorted(heads[index])[:REFS_SHOWN]))
            reach[index] = _join(reach[index], own)
        above = forest.parent[index]
        if above != NO_PARENT and above not in forest.cyclic:
            reach[above] = _join(reach[above], reach[index])
    return reach


def _join(one: Reach, other: Reach) -> Reach:
    if not one.count or not other.count:
        return one if one.count else other
    return Reach(one.count + other.count, tuple(sorted(one.names + other.names)[:REFS_SHOWN]))
