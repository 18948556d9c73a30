"""Compute the set of refs that reach each node, sharing equal sets.

Sets are propagated from children to parents, chain by chain, as bit masks over the refs. Unchanged
sets are shared rather than copied, so the cost grows with the number of branch and merge points
instead of refs times commits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gc_assets.core.chains import Chains, Ints, topological_order


@dataclass(frozen=True, slots=True)
class RefSets:
    """Ref sets by node.

    Attributes:
        set_of: Set number per node.
        counts: Set sizes.
        members: Lowest members of each set, up to the requested limit.
    """

    set_of: Ints
    counts: Ints
    members: tuple[Ints, ...]

    def lists(self, names: pa.Array) -> pa.Array:
        """Return the member names, one list per set."""
        offsets = np.cumsum([0, *map(len, self.members)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.concatenate(self.members))))


def reaching_sets(nodes: int, child: Ints, parent: Ints, heads: Ints, limit: int) -> RefSets:
    """Compute the refs (positions in `heads`) that reach each node in an acyclic graph."""
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
    """Return the union of two sets, with the number of the larger one if it contains the other.

    A new set has no number yet.
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
