"""The listing of a storage that has no inventory reports, and the schema of listed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.config.models import StorageConfig
from gc_assets.core.errors import StoreError
from gc_assets.core.findings import Finding
from gc_assets.state.schemas import STORAGE_INVENTORY
from gc_assets.stores.protocol import Directory, ListingPlan, Store, StoredObject

INVENTORY_SCHEMA: Final = STORAGE_INVENTORY.schema
# How many requests a task sends concurrently. The rate limiter of the store still applies.
CONCURRENT_REQUESTS: Final = 16
# At most this many keys are looked up by one thread, one after another.
MAX_GROUPED_KEYS: Final = 64
# The detail of the problem with an object that no request to Azure can address (`is_addressable`).
NOT_IN_URLS: Final = "a component of the key is `.` or `..`, which URLs cannot contain: kept"
_YEAR_10000_US: Final = 253_402_300_800_000_000


@dataclass(frozen=True, slots=True)
class StoreLister:
    """A `Lister` that lists the storage itself."""

    store: Store

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        del now
        return ListingPlan(self.store.plan_listing(parallelism, unchanged, settled_before, split_keys))

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        return self.store.find_unchanged_directories(directories)

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        del storage, now
        yield from ()


class NoLookUp:
    """The `LookUp` of a new listing of the storage itself, which contains all objects."""

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        return [None] * len(keys)


def select_unchanged_objects(objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
    """Select the objects of an earlier listing that are directly in `unchanged` directories."""
    return objects.filter(pc.is_in(pc.replace_substring_regex(objects.column("key"), "[^/]*$", ""), unchanged))


@dataclass(frozen=True, slots=True)
class RequestLookUp:
    """Looks up objects that an earlier listing does not contain, with one request for each key."""

    store: Store

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        return [None if found is None else found.size_bytes for found in find_objects(self.store, keys)]


def find_objects(store: Store, keys: Sequence[str]) -> list[StoredObject | None]:
    """Look up objects by their keys, with one request each. Several requests run in parallel.

    Returns:
        The objects in the order of the keys, with None for keys that do not exist.

    Raises:
        StoreError: If the store cannot answer a request.
    """
    stopped = Event()

    def find(key: str) -> StoredObject | None:
        try:
            return store.find_object(key)
        except OSError as error:
            raise StoreError(
                f"cannot look up {store.location.rstrip('/')}/{key}: {error.strerror or error}. Run the command again. "
                "A run that lists the storage (`gc-assets run --listing`, without `inventory`) does not look up single files."
            ) from error

    def find_group(group: Sequence[str]) -> list[StoredObject | None]:
        return [find(key) for key in group if not stopped.is_set()]

    # Keys are passed to threads in groups. On a local disk, looking up a single key is faster than
    # passing it to a thread.
    size = max(1, min(MAX_GROUPED_KEYS, len(keys) // (4 * CONCURRENT_REQUESTS)))
    groups = [keys[start : start + size] for start in range(0, len(keys), size)]
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        try:
            return [found for group in pool.map(find_group, groups) for found in group]
        finally:
            stopped.set()  # after an error, running groups end before their next key


def parse_modification_times(etags: pa.Array, parse_us: Callable[[str], int | None]) -> pa.Array:
    """Build the column that `Store.modification_times` returns.

    Rows with a year after 9999 are null, because Python cannot represent such times.

    Args:
        etags: The identities of objects.
        parse_us: Extracts the time from an identity, in microseconds since 1970.
    """
    parsed = (None if etag is None else parse_us(etag) for etag in etags.to_pylist())
    times = [None if time is None or abs(time) >= _YEAR_10000_US else time for time in parsed]
    return pa.array(times, pa.timestamp("us", "UTC"))
