"""Resolve the addresses in lakeFS entries (lakeFS `catalog.proto`, AddressType).

An address is either full or relative to the repository's storage namespace (the location of its
files), and entries may use both for the same file. For a local block store, addresses contain the
server's mount point, which may differ from the path on this machine. The REST listing even writes
the root of the store twice. For a full address, we therefore yield every name that the file may
have. A superfluous name would only keep some garbage, whereas a missing name would lose data.
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
# Linux does not open longer paths, and keys in buckets have at most 1,024 characters.
LONGEST_KEY: Final = 4_096


def is_full(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Return a mask that is true for full addresses.

    Like lakeFS, treat addresses of the deprecated type `BY_PREFIX` as full if they have a scheme.
    """
    by_text = pc.match_substring_regex(addresses, _SCHEME)
    return pc.if_else(pc.equal(types, BY_PREFIX), by_text, pc.equal(types, FULL))


def absolute_addresses(location: str, relative: pa.Array) -> pa.Array:
    """Prepend `location` to relative addresses.

    `location` is the address of the namespace, with one trailing `/`.
    """
    return pc.binary_join_element_wise(pa.scalar(location), relative, "")


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders to which a path on the server's disk may correspond. All of them end in `/`.

    Attributes:
        location: Location of the namespace. It contains objects of this repository only.
        others: Other folders, which may contain any objects.
        is_renamed: True if the server may have another address than `location` for the namespace.
    """

    location: str
    others: tuple[str, ...]
    is_renamed: bool = False

    @classmethod
    def of(cls, location: str, storages: Iterable[str], *, is_renamed: bool = False) -> Roots:
        """Collect the namespace, every storage, and all folders between storage and namespace.

        The folders in between may contain other repositories.
        """
        others: list[str] = []
        for storage in storages:
            others.append(storage)
            if location.startswith(storage):
                steps = location.removeprefix(storage).split("/")[:-1]
                others += [f"{storage}{'/'.join(steps[:count])}/" for count in range(1, len(steps))]
        return cls(location, tuple(root for root in dict.fromkeys(others) if root != location), is_renamed)

    def has_other_names(self, address: str) -> bool:
        """Return True if the object at a full address may have another address on this machine.

        Addresses in the namespace are literal. Any other object may have another address for the
        server. Even a bucket with the same name as the namespace's bucket may be a different bucket
        for the server.
        """
        return address.startswith(_LOCAL) or (self.is_renamed and not address.startswith(self.location))

    def names_under_roots(self, end: str) -> Iterator[str]:
        """Yield the names that a file may have under each root, given the end of its path."""
        if end.startswith(DATA):
            yield self.location + end
        for root in self.others:
            yield root + end


def possible_names(roots: Roots, address: str) -> Iterator[str]:
    """Yield all distinct names that the file at a full address may have, the most likely one first.

    The most likely name is the one in the namespace's own data, if it exists. Otherwise it is the
    address itself. `local://` is a path on the server's disk. A server in a container or on another
    machine has another mount point, so any suffix of the path may be under any of the roots. If the
    server may use another address for the namespace, this applies to all addresses outside of it as
    well. Sometimes the root of the store is written before a full path, and then the suffix is that
    path. Names outside all roots do not belong to any storage.
    """
    yield from dict.fromkeys(name for spelling in _spellings(roots, address) for name in _names_of(roots, spelling))


def _spellings(roots: Roots, address: str) -> Iterator[str]:
    """Yield an address, and other encodings with which a server would read the same object.

    For addresses in a bucket, servers decode the path and remove the query (`resolveFull` in
    `pkg/block/namespace.go`, lakeFS #9466). Imports from Azure record encoded URLs. A key
    with a `..` component is never a candidate (`hidden_path` in docs/safety.md).
    """
    yield address
    # Resolving a whole URL decodes it, but this does not apply to a suffix under a root.
    is_enough = address.startswith(_LOCAL) or (address.startswith("http") and not roots.is_renamed)
    if is_enough or not {"%", "?"}.intersection(address):
        return
    located = address.partition("?")[0]
    yield located
    try:
        decoded = unquote_to_bytes(located).decode()
    except UnicodeDecodeError:
        return  # No key can have this name.
    if "\0" not in decoded and ".." not in decoded.split("/"):
        yield decoded


def _list_suffixes(path: str) -> list[str]:
    """Return the suffixes of a path that begin after a slash, longest first, if they can be keys."""
    longest = path if len(path) <= LONGEST_KEY else path[-LONGEST_KEY - 1 :].partition("/")[2]
    steps = longest.split("/")
    return [end for end in ("/".join(steps[position:]) for position in range(len(steps))) if end]


def _names_of(roots: Roots, address: str) -> Iterator[str]:
    if not roots.has_other_names(address):
        yield address
        return
    path = address.partition("://")[2].lstrip("/")
    itself = f"file:///{path}" if address.startswith(_LOCAL) else address
    ends = _list_suffixes(path)
    full = (f"file:///{end}" for end in ends if f"file:///{end}".startswith((roots.location, *roots.others)))
    names = dict.fromkeys((itself, *full, *(name for end in ends for name in roots.names_under_roots(end))))
    if address.startswith(roots.others):  # The address is in a storage.
        yield from names
        return
    # Choose the shortest name, because the server's block store may itself be in a folder named
    # data.
    likely_name = min((name for name in names if name.startswith(f"{roots.location}{DATA}")), key=len, default=next(iter(names)))
    yield likely_name
    yield from (name for name in names if name != likely_name)
