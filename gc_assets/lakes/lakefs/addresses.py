"""Says where the objects of a repository are: what an entry's address means (lakeFS
`catalog.proto`, AddressType).

An address is relative to the repository's storage namespace, or full. One file may have both
spellings. A server names a local block store by the path where it is mounted there, which need not
be where we see it. The REST listing even writes the store's root twice. So a full address gives
every name that it may mean here: too many names keep garbage, one too few would lose data. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

BY_PREFIX, RELATIVE, FULL = 0, 1, 2
DATA: Final = "data/"
METADATA: Final = "_lakefs/"
_SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*://"
_LOCAL: Final = "local://"


def is_full(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Decides which addresses are full. The deprecated type decides by the text, as lakeFS does:
    what begins with a scheme is full.
    """
    by_text = pc.match_substring_regex(addresses, _SCHEME)
    return pc.if_else(pc.equal(types, BY_PREFIX), by_text, pc.equal(types, FULL))


def within(location: str, relative: pa.Array) -> pa.Array:
    """Returns relative addresses below the namespace's `location`, which ends in one `/`."""
    return pc.binary_join_element_wise(pa.scalar(location), relative, "")


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders below which a path of the server's disk may lie here; all end in `/`.

    Below the namespace's own `location` only its objects are meant, below `others` anything.
    """

    location: str
    others: tuple[str, ...]

    @classmethod
    def of(cls, location: str, storages: Iterable[str]) -> Roots:
        """Returns the namespace, every storage, and the folder that holds the namespace within its
        storage: other repositories may lie beside it.
        """
        others: list[str] = []
        for storage in storages:
            others.append(storage)
            if location.startswith(storage):
                steps = location.removeprefix(storage).split("/")[:-1]
                others += [f"{storage}{'/'.join(steps[:count])}/" for count in range(1, len(steps))]
        return cls(location, tuple(root for root in dict.fromkeys(others) if root != location))

    def below(self, end: str) -> Iterator[str]:
        """Returns the names of a path's end below each root."""
        if end.startswith(DATA):
            yield self.location + end
        for root in self.others:
            yield root + end


def names_of(roots: Roots, address: str) -> Iterator[str]:
    """Returns every name that a full address may have here, each once. The likeliest comes first:
    the name in the namespace's own data, or the address itself.

    `local://` is a path of the server's disk. Another server, or one in a container, sees the disk
    mounted elsewhere, so whatever the path ends in may lie below any of the `roots`. Where the
    store's root was written in front of a full path, the path's end is the full path. What lies
    below no root is in no storage, and protects nothing.
    """
    if not address.startswith(_LOCAL):
        yield address
        return
    path = address.removeprefix(_LOCAL).lstrip("/")
    steps = path.split("/")
    ends = [end for end in ("/".join(steps[position:]) for position in range(len(steps))) if end]
    full = (f"file:///{end}" for end in ends if f"file:///{end}".startswith((roots.location, *roots.others)))
    names = dict.fromkeys((f"file:///{path}", *full, *(name for end in ends for name in roots.below(end))))
    # The shortest of several: a server may well have its block store in a folder that is itself
    # called data.
    likeliest = min((name for name in names if name.startswith(f"{roots.location}{DATA}")), key=len, default=next(iter(names)))
    yield likeliest
    yield from (name for name in names if name != likeliest)
