"""Discover lakes and their storages for `gc-assets init`.

Each kind discovers its own lakes with `LakeKind.discover`. Discovery is read-only and yields only
lakes that it could read.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.paths import FILE, Location, is_in_bucket, scheme_of
from gc_assets.core.untrusted_input import parse_json

# Tables are two or three levels deep in a warehouse. Deeper folders contain data.
_DEPTH: Final = 3
_TIMEOUT_SECONDS: Final = 10.0
# Maximum number of files examined, and returned, when searching for metadata without a catalog.
_MAX_FILES: Final = 100_000
_MAX_FOUND: Final = 1_000


@dataclass(frozen=True, slots=True)
class DiscoveryTarget:
    """Address of a server or catalog, a local path, or a location in a bucket.

    A local folder is a target, as is each folder under it, down to three levels.
    """

    address: str
    objects: Objects
    environment: Mapping[str, str]

    @property
    def is_server(self) -> bool:
        return scheme_of(self.address) in {"http", "https"}

    @property
    def path(self) -> Path | None:
        """The path on this machine if it exists, or None for any other target."""
        if scheme_of(self.address) != FILE:
            return None
        path = Path("/", Location.parse(self.address).root)
        return path if path.exists() else None

    def get_json(self, address: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Send a GET request and return the status and the JSON body (None if the body is not
        JSON).

        Raises:
            LakeUnreadable: If the server does not respond.
        """
        import urllib3

        try:
            response = urllib3.request("GET", address, headers=headers, timeout=_TIMEOUT_SECONDS, retries=False, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            where = re.sub(r"://[^/@]*@", "://", address)
            raise LakeUnreadable(f"{where} does not answer ({type(error).__name__}); check that the server runs there") from None
        try:
            return response.status, parse_json(response.data)
        except ValueError:
            return response.status, None


@dataclass(frozen=True, slots=True)
class DiscoveredLake:
    """Lake to be written to `lakes.yaml` by `gc-assets init`.

    Attributes:
        name: Suggested name, not necessarily unique.
        entry: The entry of `lakes.yaml` without `name`.
        locations: Folders recorded by the lake. New tables are expected in the same folders.
        note: Values to be added by the user, empty if the entry is complete.
        file: The catalog's file if it is on this machine, otherwise empty.
    """

    name: str
    entry: Mapping[str, Any]
    locations: tuple[str, ...] = ()
    note: str = ""
    file: str = ""


def list_folders(address: str) -> Iterator[str]:
    """Yield an address and, for a local folder, its subfolders, outer folders first.

    Hidden folders are skipped.

    Raises:
        OSError: If a folder cannot be read, because lakes in it would be missed.
    """
    yield address
    if scheme_of(address) != FILE or not (root := Path("/", Location.parse(address).root)).is_dir():
        return
    for directory, names, _ in os.walk(root, onerror=_raise):
        depth = len(Path(directory).relative_to(root).parts)
        names[:] = sorted(name for name in names if not name.startswith(".")) if depth < _DEPTH else []
        yield from (str(Path(directory, name)) for name in names)


def _raise(error: OSError) -> None:
    raise error


def find_metadata(address: str, objects: Objects, pattern: str) -> list[str]:
    """Return the addresses of the files in a folder or location whose keys match a pattern.

    At most `_MAX_FILES` files are examined and at most `_MAX_FOUND` addresses returned.

    Args:
        address: A local folder, or a location in a bucket. For other addresses, nothing is returned.
        objects: Access to buckets.
        pattern: Regular expression for keys.
    """
    scheme = scheme_of(address)
    if scheme == FILE:
        root = Path("/", Location.parse(address).root)
        files: Iterator[str] = (str(Path(directory, name)) for directory, _, names in os.walk(root) for name in sorted(names))
    elif is_in_bucket(address):
        files = (item[0] for item in objects.list(f"{address.rstrip('/')}/"))
    else:
        return []
    matching = (file for file in itertools.islice(files, _MAX_FILES) if re.search(pattern, file))
    return list(itertools.islice(matching, _MAX_FOUND))


def choose_storages(found: Sequence[DiscoveredLake], targets: Iterable[str]) -> list[Location]:
    """Return non-overlapping storage locations that contain all lake locations.

    Locations inside one of `targets` share a storage at their innermost common folder. All other
    locations get one storage per lake.
    """
    parents = [Location.parse(address) for address in targets]
    groups: dict[tuple[str, int], list[Location]] = {}
    for number, lake in enumerate(found):
        for location in map(Location.parse, lake.locations):
            parent = next((index for index, target in enumerate(parents) if target.contains(location)), None)
            groups.setdefault(("target", parent) if parent is not None else ("lake", number), []).append(location)
    needed = {location for members in groups.values() for location in _innermost(members)}
    return [one for one in sorted(needed, key=str) if not any(other != one and other.contains(one) for other in needed)]


def _innermost(locations: Sequence[Location]) -> Iterator[Location]:
    """Yield the innermost common folder of the locations.

    There is one per bucket, and one per top-level folder of a disk, because the root itself cannot
    be a storage.
    """
    grouped: dict[tuple[str, str], list[list[str]]] = {}
    for location in locations:
        parts = location.root.split("/")[:-1]
        top = "/".join(parts[:2]) if location.scheme == FILE else parts[0]
        grouped.setdefault((location.scheme, top), []).append(parts)
    for (scheme, _), members in grouped.items():
        first, last = min(members), max(members)  # Parts shared by these two are shared by all.
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        yield Location.parse(f"{scheme}://{'/'.join(part for part, _ in shared)}/")


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """Return a valid lakes.yaml name that is not in `taken`."""
    stem = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "lake"
    stem = f"_{stem}" if stem[0].isdigit() else stem
    names, name, number = set(taken), stem, 1
    while name in names:
        number += 1
        name = f"{stem}_{number}"
    return name


def server_name(address: str, kind: str) -> str:
    """Return a lake name for a server: the first label of its host name, or the kind for an IP
    address and `localhost`.
    """
    host = urlsplit(address).hostname or "localhost"
    return kind if host == "localhost" or _is_ip_address(host) else host.partition(".")[0]


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
