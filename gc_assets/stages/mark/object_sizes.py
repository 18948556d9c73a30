"""Read object sizes, from a directory listing if it is cheaper than one request per object."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from gc_assets.core.errors import StoreError
from gc_assets.core.objects import Objects
from gc_assets.stages.mark.decoding import CONCURRENT_READS

# Listing 1,000 keys costs as much CPU as 8 HEAD requests, and as much money as 12 (AWS prices).
MIN_LISTED_KEYS: Final = 8
LISTED_KEYS_PER_HEAD: Final = 125


def read_sizes(objects: Objects, addresses: Sequence[str], *, may_list: bool = True) -> list[int]:
    """Return the sizes of objects in bytes, or -1 for missing or unreadable objects.

    If a directory contains at least `MIN_LISTED_KEYS` of the objects, it is listed, but only up to
    `LISTED_KEYS_PER_HEAD` keys per object. Objects that no listing contains are requested one by
    one. If `may_list` is False, all objects are requested.
    """
    by_directory = defaultdict[str, set[str]](set)
    for address in addresses:
        # A percent-encoded object has two addresses, but a listing contains only one of them.
        if may_list and "%" not in address:
            by_directory[address.rpartition("/")[0] + "/"].add(address)

    def list_sizes(directory: str) -> dict[str, int]:
        wanted, found = by_directory[directory], dict[str, int]()
        try:
            for address, size_bytes, _ in islice(objects.list(directory), LISTED_KEYS_PER_HEAD * len(wanted)):
                if address in wanted:
                    found[address] = size_bytes
        except (OSError, StoreError):
            return {}  # the directory's objects are requested one by one
        return found

    def read_size(address: str) -> int:
        try:
            return objects.size(address)
        except (OSError, StoreError):  # includes schemes that no store reads
            return -1  # the decoder reads the same object and reports the error

    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        directories = [directory for directory, wanted in by_directory.items() if len(wanted) >= MIN_LISTED_KEYS]
        known = {address: size_bytes for found in pool.map(list_sizes, directories) for address, size_bytes in found.items()}
        rest = [address for address in addresses if address not in known]
        known |= zip(rest, pool.map(read_size, rest), strict=True)
    return [known[address] for address in addresses]
