"""Compute which refs reach each node of a commit graph.

Sets of refs are represented as bit masks. They are propagated from child commits to their parents,
one chain of commits at a time, and only copied if they change. The running time therefore depends
on the number of points at which history branches or merges, and not on the product of refs and
commits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gc_assets.core.chains import Chains, Ints, topological_order


@dataclass(frozen=True, slots=True)
class RefSets:
    """The set of refs that reach each node. Nodes with the same set share it.

    Attributes:
        set_of: The number of each node's set.
        counts: The size of each set.
        members: The members of each set, in ascending order and up to a limit.
    """

    set_of: Ints
    counts: Ints
    members: tuple[Ints, ...]

    def lists(self, names: pa.Array) -> pa.Array:
        """Convert the members of each set to a list of names."""
        offsets = np.cumsum([0, *map(len, self.members)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.concatenate(self.members))))


def reaching_sets(nodes: int, child: Ints, parent: Ints, heads: Ints, limit: int) -> RefSets:
    """Compute which refs reach each node of an acyclic graph.

    Args:
        heads: The head of each ref. In the sets, a ref is identified by its position in this array.
        limit: Maximum number of members to return for each set.
    """
    chains = Chains.of(nodes, child, parent, starts=heads)
    own: dict[int, int] = {}
    for ref, chain in enumerate(chains.chain[heads].tolist()):
        own[chain] = own.get(chain, 0) | 1 << ref

    set_of = np.zeros(len(chains), np.int32)
    members: list[Ints] = [np.zeros(0, np.int32)]
    counts = [0]
    arriving: dict[int, tuple[int, int | None]] = {}  # chain -> mask, and the number of its set if it has one
    for chain, following in topological_order(len(chains), chains.child, chains.parent):
        mask, number = _union(arriving.pop(chain, (0, 0)), (own.get(chain, 0), None))
        if number is None:
            number = len(counts)
            members.append(_lowest_bits(mask, limit))
            counts.append(mask.bit_count())
        set_of[chain] = number
        for other in following:
            arriving[other] = _union(arriving[other], (mask, number)) if other in arriving else (mask, number)
    return RefSets(set_of[chains.chain], np.array(counts, np.int32), tuple(members))


def _union(one: tuple[int, int | None], two: tuple[int, int | None]) -> tuple[int, int | None]:
    """Compute the union of two numbered sets.

    If the union is equal to one of them, it has the same number. The number of a new set is None.
    """
    if one[1] == two[1] and one[1] is not None:
        return one
    mask = one[0] | two[0]
    if mask == one[0]:
        return one
    return two if mask == two[0] else (mask, None)


def _lowest_bits(mask: int, limit: int) -> Ints:
    raw = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    filled = np.flatnonzero(raw)[:limit]
    row, bit = np.nonzero(np.unpackbits(raw[filled, None], axis=1, bitorder="little"))
    return (filled[row] * 8 + bit)[:limit].astype(np.int32)
