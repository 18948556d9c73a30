"""Where the objects of a repository are: what an entry's address means (lakeFS `catalog.proto`, AddressType).

An address is relative to the repository's storage namespace, or full. One file may have both spellings, and a server names a local
block store by the path where it is mounted there, which need not be where we see it; the REST listing even writes the store's root
twice. So a full address gives every name that it may mean here: too many names keep garbage, one too few would lose data. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

BY_PREFIX, RELATIVE, FULL = 0, 1, 2
DATA: Final = "data/"
METADATA: Final = "_lakefs/"
_SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*://"
_LOCAL: Final = "local://"


def is_full(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Which addresses are full. The deprecated type tells by the text, as lakeFS does: what begins with a scheme is full."""
    by_text = pc.match_substring_regex(addresses, _SCHEME)
    return pc.if_else(pc.equal(types, BY_PREFIX), by_text, pc.equal(types, FULL))


def within(location: str, relative: pa.Array) -> pa.Array:
    """Relative addresses below the namespace's `location`, which ends in one `/`."""
    return pc.binary_join_element_wise(pa.scalar(location), relative, "")


def names_of(location: str, address: str) -> Iterator[str]:
    """Every name that a full address may have here; the first is the address itself, in our words for its store.

    `local://` is a path of the server's disk. Whatever ends like an object of this repository may be one, under another mount point,
    and any shorter path may be meant where the store's root was written in front of a full path.
    """
    if not address.startswith(_LOCAL):
        yield address
        return
    path = "/" + address.removeprefix(_LOCAL).lstrip("/")
    yield f"file://{path}"
    steps = path.split("/")[1:]
    for position, step in enumerate(steps[:-1]):
        rest = "/".join(steps[position + 1 :])
        yield f"file:///{rest}"
        if f"{step}/" == DATA:
            yield f"{location}{DATA}{rest}"
