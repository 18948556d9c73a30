"""Resolve entry addresses (lakeFS `catalog.proto`, AddressType).

An address is relative to the repository's storage namespace, or full. The same file may have both
spellings. A server names a local block store by its own mount point, which can differ from the path
on this machine. The REST listing even writes the store's root twice. A full address therefore
yields every possible name, because extra names keep garbage but missing names lose data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

BY_PREFIX, RELATIVE, FULL = 0, 1, 2
DATA: Final = "data/"
METADATA: Final = "_lakefs/"
# Results of lifecycle rules, in the place of lakeFS's proposal.
RESULTS: Final = f"{METADATA}retention/lc/"
_SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*://"
_LOCAL: Final = "local://"


def is_full(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Return which addresses are full.

    As in lakeFS, an address of the deprecated type `BY_PREFIX` is full if it begins with a scheme.
    """
    by_text = pc.match_substring_regex(addresses, _SCHEME)
    return pc.if_else(pc.equal(types, BY_PREFIX), by_text, pc.equal(types, FULL))


def absolute_addresses(location: str, relative: pa.Array) -> pa.Array:
    """Return the addresses under the namespace's `location`, which ends in one `/`."""
    return pc.binary_join_element_wise(pa.scalar(location), relative, "")


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that may contain a server disk path, all ending in `/`.

    Attributes:
        location: Location of the namespace. It contains only the repository's own objects.
        others: Further folders, which may contain any object.
        is_renamed: True if the server may name the namespace by another address than `location`.
    """

    location: str
    others: tuple[str, ...]
    is_renamed: bool = False

    @classmethod
    def of(cls, location: str, storages: Iterable[str], *, is_renamed: bool = False) -> Roots:
        """Return the roots: the namespace, every storage, and the folders between them.

        Other repositories may be in the same folders.
        """
        others: list[str] = []
        for storage in storages:
            others.append(storage)
            if location.startswith(storage):
                steps = location.removeprefix(storage).split("/")[:-1]
                others += [f"{storage}{'/'.join(steps[:count])}/" for count in range(1, len(steps))]
        return cls(location, tuple(root for root in dict.fromkeys(others) if root != location), is_renamed)

    def has_other_names(self, address: str) -> bool:
        """Return True if a full address may name an object in a root by another address.

        Addresses in the namespace are literal. Any other bucket, including that of the namespace, may
        only have the name of the server's bucket.
        """
        return address.startswith(_LOCAL) or (self.is_renamed and not address.startswith(self.location))

    def names_under_roots(self, end: str) -> Iterator[str]:
        """Yield the names of the end of a path under each root."""
        if end.startswith(DATA):
            yield self.location + end
        for root in self.others:
            yield root + end


def possible_names(roots: Roots, address: str) -> Iterator[str]:
    """Yield every possible name of a full address, each once.

    The most likely name comes first: the name in the namespace's own data, or the address itself.
    `local://` is a path of the server's disk. A server on another machine or in a container has
    another mount point, so every end of the path may be under any of the roots. The same applies to
    each address outside the namespace if the server may name the namespace by another address. If the
    store's root was written before a full path, the end is the full path. Names under no root are in
    no storage.
    """
    yield from dict.fromkeys(name for spelling in _spellings(roots, address) for name in _names_of(roots, spelling))


def _spellings(roots: Roots, address: str) -> Iterator[str]:
    """Yield an address, and the object that a server reads at it.

    Servers decode the path of an address in a bucket and cut its query (`resolveFull` in
    `pkg/block/namespace.go`, lakeFS #9466). Imports from Azure record encoded web addresses.
    A key with a `..` component is never a candidate (`hidden_path` in docs/safety.md).
    """
    yield address
    # A whole web address is decoded when it is resolved, but its end under a root is not.
    is_enough = address.startswith(_LOCAL) or (address.startswith("http") and not roots.is_renamed)
    if is_enough or not {"%", "?"}.intersection(address):
        return
    located = address.partition("?")[0]
    yield located
    try:
        decoded = unquote_to_bytes(located).decode()
    except UnicodeDecodeError:
        return  # no key has such a name
    if "\0" not in decoded and ".." not in decoded.split("/"):
        yield decoded


def _names_of(roots: Roots, address: str) -> Iterator[str]:
    if not roots.has_other_names(address):
        yield address
        return
    path = address.partition("://")[2].lstrip("/")
    itself = f"file:///{path}" if address.startswith(_LOCAL) else address
    steps = path.split("/")
    ends = [end for end in ("/".join(steps[position:]) for position in range(len(steps))) if end]
    full = (f"file:///{end}" for end in ends if f"file:///{end}".startswith((roots.location, *roots.others)))
    names = dict.fromkeys((itself, *full, *(name for end in ends for name in roots.names_under_roots(end))))
    if address.startswith(roots.others):  # in a storage
        yield from names
        return
    # The shortest of several, because the server's block store may be in a folder with the name data.
    likely_name = min((name for name in names if name.startswith(f"{roots.location}{DATA}")), key=len, default=next(iter(names)))
    yield likely_name
    yield from (name for name in names if name != likely_name)
