"""Read object sizes or identities, from a listing if it is cheaper than one request per object."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

from gc_assets.core.errors import StoreError
from gc_assets.core.objects import Objects
from gc_assets.stages.mark.decoding import CONCURRENT_READS

T = TypeVar("T")
# Listing 1,000 keys costs as much CPU as 8 HEAD requests, and as much money as 12 (AWS prices).
MIN_LISTED_KEYS: Final = 8
LISTED_KEYS_PER_HEAD: Final = 125
# The identity of an object that cannot be examined. It differs from that of every decoded object.
UNKNOWN: Final = "unknown"


def read_sizes(objects: Objects, addresses: Sequence[str], *, may_list: bool = True) -> list[int]:
    """Return the sizes of objects in bytes, or -1 for missing or unreadable objects.

    If a directory contains at least `MIN_LISTED_KEYS` of the objects, it is listed, but only up to
    `LISTED_KEYS_PER_HEAD` keys per object. Objects that no listing contains are requested one by
    one. If `may_list` is False, all objects are requested.
    """

    def read_size(address: str) -> int:
        try:
            return objects.size(address)
        except (OSError, StoreError):  # includes schemes that no store reads
            return -1  # the decoder reads the same object and reports the error

    def list_sizes(directory: str) -> Iterator[tuple[str, int]]:
        return ((address, size_bytes) for address, size_bytes, _ in objects.list(directory))

    return _look_up(addresses, list_sizes, read_size, may_list=may_list)


def read_identities(objects: Objects, addresses: Sequence[str], *, may_list: bool = True) -> list[str | None]:
    """Return the current identities of objects, from the same requests as `read_sizes`.

    An identity is None if the object does not exist, and `UNKNOWN` if it cannot be examined.
    """

    def read_identity(address: str) -> str | None:
        try:
            return objects.identity(address)
        except (OSError, StoreError):
            return UNKNOWN  # the decoder requests the same object and reports the error

    return _look_up(addresses, objects.list_identities, read_identity, may_list=may_list)


def _look_up(
    addresses: Sequence[str], list_values: Callable[[str], Iterator[tuple[str, T]]], request: Callable[[str], T], *, may_list: bool
) -> list[T]:
    by_directory = defaultdict[str, set[str]](set)
    for address in addresses:
        # A percent-encoded object has two addresses, but a listing contains only one of them.
        if may_list and "%" not in address:
            by_directory[address.rpartition("/")[0] + "/"].add(address)

    def list_directory(directory: str) -> dict[str, T]:
        wanted = by_directory[directory]
        try:
            listed = islice(list_values(directory), LISTED_KEYS_PER_HEAD * len(wanted))
            return {address: value for address, value in listed if address in wanted}
        except (OSError, StoreError):
            return {}  # the directory's objects are requested one by one

    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        directories = [directory for directory, wanted in by_directory.items() if len(wanted) >= MIN_LISTED_KEYS]
        known = {address: value for found in pool.map(list_directory, directories) for address, value in found.items()}
        rest = [address for address in addresses if address not in known]
        known |= zip(rest, pool.map(request, rest), strict=True)
    return [known[address] for address in addresses]
