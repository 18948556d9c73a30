"""Discover lakes and their storages for `gc-assets init`.

Each lake kind, such as `iceberg`, finds its own lakes through `LakeKind.discover`. Discovery never
writes anything, and a lake is only reported if it could be read.
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

# Tables are two or three levels deep in a warehouse. Folders below that contain data.
_DEPTH: Final = 3
_TIMEOUT_SECONDS: Final = 10.0
# Limits for a search without a catalog: files to look at, and metadata files to return.
_MAX_FILES: Final = 100_000
_MAX_FOUND: Final = 1_000


@dataclass(frozen=True, slots=True)
class DiscoveryTarget:
    """Search target: a server or catalog, a local path, or a bucket location.

    A local folder is searched together with its subfolders, up to three levels deep.
    """

    address: str
    objects: Objects
    environment: Mapping[str, str]

    @property
    def is_server(self) -> bool:
        return scheme_of(self.address) in {"http", "https"}

    @property
    def path(self) -> Path | None:
        """Path of the target on this machine. None if it is not a local path or does not exist."""
        if scheme_of(self.address) != FILE:
            return None
        path = Path("/", Location.parse(self.address).root)
        return path if path.exists() else None

    def get_json(self, address: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Send a GET request.

        Returns:
            The status and the parsed body. The body is None if it is not valid JSON.

        Raises:
            LakeUnreadable: If the server does not respond.
        """
        import urllib3

        try:
            response = urllib3.request("GET", address, headers=headers, timeout=_TIMEOUT_SECONDS, retries=False, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            where = re.sub(r"://[^/@]*@", "://", address)
            raise LakeUnreadable(f"{where} does not respond ({type(error).__name__}). Check that the server is running") from None
        try:
            return response.status, parse_json(response.data)
        except ValueError:
            return response.status, None


@dataclass(frozen=True, slots=True)
class DiscoveredLake:
    """A lake that `gc-assets init` can write to `lakes.yaml`.

    Attributes:
        name: Suggested name, which may not be unique.
        entry: Lake entry for `lakes.yaml`, without `name`.
        locations: Folders that the lake uses now, and in which new tables are expected.
        note: Values that the user still has to fill in. Empty if the entry is complete.
        file: Path of the catalog file if it is on this machine, otherwise empty.
    """

    name: str
    entry: Mapping[str, Any]
    locations: tuple[str, ...] = ()
    note: str = ""
    file: str = ""


def list_folders(address: str) -> Iterator[str]:
    """Yield the address. If it is a local folder, also yield its visible subfolders, top-down.

    Raises:
        OSError: If a folder cannot be read. Skipping it could hide a lake.
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
    """Find the files under an address whose keys match a pattern.

    The search stops after `_MAX_FILES` files or `_MAX_FOUND` matches.

    Args:
        address: A local folder or a bucket location. The result is empty for anything else.
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
    """Choose storage locations that do not overlap and together contain all locations of the lakes.

    Lake locations under the same target share one storage at their innermost common folder. Each
    lake location outside the targets gets a storage of its own.
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
    """Yield the innermost folder that contains all locations in a bucket.

    On a disk, there is one such folder for each top-level folder, because `/` cannot be a storage.
    """
    grouped: dict[tuple[str, str], list[list[str]]] = {}
    for location in locations:
        parts = location.root.split("/")[:-1]
        top = "/".join(parts[:2]) if location.scheme == FILE else parts[0]
        grouped.setdefault((location.scheme, top), []).append(parts)
    for (scheme, _), members in grouped.items():
        first, last = min(members), max(members)  # All members share the prefix of these two.
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        yield Location.parse(f"{scheme}://{'/'.join(part for part, _ in shared)}/")


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """Turn `wanted` into a name that is valid in lakes.yaml and not in `taken`."""
    stem = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "lake"
    stem = f"_{stem}" if stem[0].isdigit() else stem
    names, name, number = set(taken), stem, 1
    while name in names:
        number += 1
        name = f"{stem}_{number}"
    return name


def server_name(address: str, kind: str) -> str:
    """Suggest a lake name for a server.

    The name is the first label of the host name, or the lake kind for `localhost` and IP addresses.
    """
    host = urlsplit(address).hostname or "localhost"
    return kind if host == "localhost" or _is_ip_address(host) else host.partition(".")[0]


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
