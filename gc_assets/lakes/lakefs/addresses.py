"""Resolve entry addresses (lakeFS `catalog.proto`, AddressType).

An address is relative to the repository's storage namespace, or full. The same file may have both
spellings. A server addresses a local block store by its own mount point, which can differ from the
path on this machine. The REST listing even writes the store's root twice. Every possible name of a
full address is therefore yielded, because extra names only keep garbage, whereas missing names
would lose data.
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
# Directory for the results of lifecycle rules, as in lakeFS's proposal.
RESULTS: Final = f"{METADATA}retention/lc/"
_SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*://"
_LOCAL: Final = "local://"


def is_full(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Return a mask of the full addresses.

    As in lakeFS, addresses of the deprecated type `BY_PREFIX` are full if they begin with a scheme.
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
        others: Additional folders, which may contain any object.
        is_renamed: True if the server may use an address other than `location` for the namespace.
    """

    location: str
    others: tuple[str, ...]
    is_renamed: bool = False

    @classmethod
    def of(cls, location: str, storages: Iterable[str], *, is_renamed: bool = False) -> Roots:
        """Collect the roots, i.e. the namespace, every storage, and the folders between them.

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
        """Return True if a full address may refer to an object in a root that has another address.

        Addresses in the namespace are literal. In all other addresses, even a bucket with the name
        of the namespace's bucket may be another bucket on the server.
        """
        return address.startswith(_LOCAL) or (self.is_renamed and not address.startswith(self.location))

    def names_under_roots(self, end: str) -> Iterator[str]:
        """Yield the possible names of a path suffix under each of the roots."""
        if end.startswith(DATA):
            yield self.location + end
        for root in self.others:
            yield root + end


def possible_names(roots: Roots, address: str) -> Iterator[str]:
    """Yield all distinct possible names of a full address.

    The most likely name comes first, i.e. the name in the namespace's own data, or the address
    itself. `local://` is a path on the server's disk. A server on another machine or in a container
    has a different mount point, so every suffix of the path may be under any of the roots. The same
    applies to every address outside the namespace if the server may use another address for the
    namespace. If the store's root was written before a full path, the suffix is the full path.
    Names outside all roots are in no storage.
    """
    yield from dict.fromkeys(name for spelling in _spellings(roots, address) for name in _names_of(roots, spelling))


def _spellings(roots: Roots, address: str) -> Iterator[str]:
    """Yield an address and the names of the object that a server would read at this address.

    Servers decode the path of an address in a bucket and remove its query (`resolveFull` in
    `pkg/block/namespace.go`, lakeFS #9466). Imports from Azure record encoded web addresses. A key
    with a `..` component is never a candidate (`hidden_path` in docs/safety.md).
    """
    yield address
    # A whole web address is decoded when it is resolved, but a suffix of it under a root is not.
    is_enough = address.startswith(_LOCAL) or (address.startswith("http") and not roots.is_renamed)
    if is_enough or not {"%", "?"}.intersection(address):
        return
    located = address.partition("?")[0]
    yield located
    try:
        decoded = unquote_to_bytes(located).decode()
    except UnicodeDecodeError:
        return  # No key has such a name.
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
    if address.startswith(roots.others):  # The address is in a storage.
        yield from names
        return
    # The shortest of several, because the server's block store may be in a folder with the name data.
    likely_name = min((name for name in names if name.startswith(f"{roots.location}{DATA}")), key=len, default=next(iter(names)))
    yield likely_name
    yield from (name for name in names if name != likely_name)
