"""Find complete keys from a part of them, for example from a key shortened in a printed table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.printable import ELLIPSIS
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.browse import batches
from gc_assets.state.listings import open_listing
from gc_assets.state.schemas import DELETION_LOG, STORAGE_INVENTORY

# The search stops after this number of matches.
MAX_MATCHES: Final = 20


def find_keys(context: RunContext, storage: str, text: str) -> list[str]:
    """Return up to `MAX_MATCHES` sorted keys of a storage that begin or end with a string.

    An ellipsis in the string matches any characters. The search covers the listing of the run date
    and all deletion logs.
    """
    found = set[str]()
    for keys in _read_keys(context, storage):
        found.update(keys.filter(_matches(keys, text)).to_pylist())
        if len(found) > MAX_MATCHES:
            break
    return sorted(found)[:MAX_MATCHES]


def _matches(keys: pa.Array, text: str) -> pa.Array:
    if ELLIPSIS not in text:
        return pc.or_(pc.starts_with(keys, text), pc.ends_with(keys, text))
    head, _, tail = text.partition(ELLIPSIS)
    is_longer = pc.greater_equal(pc.utf8_length(keys), len(head) + len(tail))
    return pc.and_(is_longer, pc.and_(pc.starts_with(keys, head), pc.ends_with(keys, tail)))


def _read_keys(context: RunContext, storage: str) -> Iterator[pa.Array]:
    state = context.state
    inventory = context.find(STORAGE_INVENTORY, storage)
    if inventory is not None:
        listed = open_listing(state, inventory).paths()
        yield from (batch.column("key") for batch in batches(state, STORAGE_INVENTORY.schema, listed, ["key"]))
    for source in state.segment_files(state.history(storage, DELETION_LOG.name)):
        yield from (batch.column("key") for batch in batches(state, DELETION_LOG.schema, [source.path], ["key"]))
