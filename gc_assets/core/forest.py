"""Build the ancestry of a table's snapshots, and find the refs that reach each snapshot.

Each snapshot has at most one parent, so the snapshots form trees. As in Iceberg, the ancestry ends
at a parent that the table's metadata does not list. Damaged metadata may also contain cycles. All
functions run in linear time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_PARENT = -1
MAX_REF_NAMES = 100


@dataclass(frozen=True, slots=True)
class Forest:
    """The parent relation between snapshots, which are identified by their position in a list.

    Attributes:
        ids: Snapshot ids by position.
        position: Positions by snapshot id.
        parent: Position of each snapshot's parent, or `NO_PARENT`.
        children_first: All positions except cyclic ones, with children before their parents.
        cyclic: Positions of snapshots that are their own ancestors.
    """

    ids: Sequence[str]
    position: Mapping[str, int]
    parent: Sequence[int]
    children_first: Sequence[int]
    cyclic: frozenset[int]


def build_forest(ids: Sequence[str], parent_ids: Sequence[str | None]) -> Forest:
    """Build the forest from snapshot ids and the parent id of each snapshot."""
    position = {commit_id: index for index, commit_id in enumerate(ids)}
    parent = [NO_PARENT if parent_id is None else position.get(parent_id, NO_PARENT) for parent_id in parent_ids]
    children = [0] * len(ids)
    for above in parent:
        if above != NO_PARENT:
            children[above] += 1
    order = [index for index, count in enumerate(children) if count == 0]
    for index in order:  # Kahn's algorithm from the leaves: the list grows during the iteration
        above = parent[index]
        if above != NO_PARENT:
            children[above] -= 1
            if children[above] == 0:
                order.append(above)
    return Forest(ids, position, parent, order, frozenset(range(len(ids))).difference(order))


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of refs that reach a snapshot, and up to `MAX_REF_NAMES` of their names."""

    count: int
    names: tuple[str, ...]


def refs_reaching(forest: Forest, heads: Mapping[int, Sequence[str]]) -> list[Reach]:
    """Find the refs that reach each snapshot from their head.

    Snapshots on a cycle of parents are treated as unreachable.

    Args:
        heads: For the position of each head snapshot, the names of its refs. Names must be unique.

    Returns:
        The refs that reach the snapshot at each position.
    """
    nothing = Reach(0, ())
    reach = [nothing] * len(forest.ids)
    for index in forest.children_first:
        if index in heads:
            own = Reach(len(heads[index]), tuple(sorted(heads[index])[:MAX_REF_NAMES]))
            reach[index] = _join(reach[index], own)
        above = forest.parent[index]
        if above != NO_PARENT and above not in forest.cyclic:
            reach[above] = _join(reach[above], reach[index])
    return reach


def _join(one: Reach, other: Reach) -> Reach:
    if not one.count or not other.count:
        return one if one.count else other
    return Reach(one.count + other.count, tuple(sorted(one.names + other.names)[:MAX_REF_NAMES]))
