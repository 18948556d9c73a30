"""Which refs reach which nodes, as few shared sets instead of one list for each node.

Sets flow from children to parents, chain by chain, as bit masks over the refs. A set that does not
change on the way is passed on, not copied, so the cost grows with branch and merge points and not
with refs times commits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gc_assets.core.chains import Chains, Ints, forward


@dataclass(frozen=True, slots=True)
class RefSets:
    """The number of each node's set. For each set its size, and its lowest members up to the limit
    that was asked for.
    """

    set_of: Ints
    counts: Ints
    members: tuple[Ints, ...]

    def lists(self, names: pa.Array) -> pa.Array:
        """Returns the members' names, one list for each set."""
        offsets = np.cumsum([0, *map(len, self.members)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.concatenate(self.members))))


def reaching_sets(nodes: int, child: Ints, parent: Ints, heads: Ints, limit: int) -> RefSets:
    """Returns the sets of refs (by their position in `heads`) that reach each node of an acyclic
    graph.
    """
    chains = Chains.of(nodes, child, parent, starts=heads)
    own: dict[int, int] = {}
    for ref, chain in enumerate(chains.chain[heads].tolist()):
        own[chain] = own.get(chain, 0) | 1 << ref

    set_of = np.zeros(len(chains), np.int32)
    members: list[Ints] = [np.zeros(0, np.int32)]
    counts = [0]
    arriving: dict[int, tuple[int, int | None]] = {}  # chain -> mask, and its set if it already has a number
    for chain, following in forward(len(chains), chains.child, chains.parent):
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
    """Joins two sets. If one holds the other, its number stays; a new set has no number yet."""
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
