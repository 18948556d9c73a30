"""What `gc-assets init` asks of a place: which lakes stand there, and which storages they need.

Each kind looks for its own lakes (`LakeKind.discover`). Nothing here writes, and nothing is
believed that was not read.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gc_assets.core.documents import parsed_json
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.paths import FILE, Location, scheme_of

# A warehouse has its tables two or three folders down. Deeper ones are data.
_DEPTH: Final = 3
_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """A place that somebody named: the address of a server or catalog, a path, or a location on S3.

    A local folder comes once by itself and once for each folder below it, three levels down.
    """

    address: str
    objects: Objects
    environment: Mapping[str, str]

    @property
    def is_server(self) -> bool:
        return scheme_of(self.address) in {"http", "https"}

    @property
    def path(self) -> Path | None:
        """The path on this machine, null where it is none or nothing stands there."""
        if scheme_of(self.address) != FILE:
            return None
        path = Path("/", Location.parse(self.address).root)
        return path if path.exists() else None

    def ask(self, address: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Returns the status and the JSON that a server answers; null where it answers none.

        Raises `LakeUnreadable` where there is no answer.
        """
        import urllib3

        try:
            found = urllib3.request("GET", address, headers=headers, timeout=_TIMEOUT_SECONDS, retries=False, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            where = re.sub(r"://[^/@]*@", "://", address)
            raise LakeUnreadable(f"{where} does not answer ({type(error).__name__}); check that the server runs there") from None
        try:
            return found.status, parsed_json(found.data)
        except ValueError:
            return found.status, None


@dataclass(frozen=True, slots=True)
class Found:
    """A lake: its entry of `lakes.yaml` without `name`, and a name that others may have too.

    `places` are the folders that hold its files, as far as it tells them. Its new tables are
    expected there too. `note` says what a person has to add, empty where that is nothing.
    """

    name: str
    entry: Mapping[str, Any]
    places: tuple[str, ...] = ()
    note: str = ""


def folders(address: str) -> Iterator[str]:
    """Yields a place, and where it is a folder of this machine the folders in it, outer ones first.

    Those whose names begin with a dot are passed over. Raises `OSError` for one that cannot be
    read: what stands in it would be missing.
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


def storages_of(found: Sequence[Found], asked: Iterable[str]) -> list[Location]:
    """Returns locations that hold every place of the lakes, none in another one.

    What lies in a folder that somebody asked for comes into one storage: the innermost folder that
    holds it. All else does so lake by lake.
    """
    wholes = [Location.parse(address) for address in asked]
    groups: dict[tuple[str, int], list[Location]] = {}
    for number, lake in enumerate(found):
        for place in map(Location.parse, lake.places):
            around = next((at for at, whole in enumerate(wholes) if whole.contains(place)), None)
            groups.setdefault(("asked", around) if around is not None else ("lake", number), []).append(place)
    needed = {place for members in groups.values() for place in _innermost(members)}
    return [place for place in sorted(needed, key=str) if not any(other != place and other.contains(place) for other in needed)]


def _innermost(places: Sequence[Location]) -> Iterator[Location]:
    """Yields the innermost folder that holds the places, one for each bucket, and for each folder
    directly below the root of a disk: the root is no storage.
    """
    grouped: dict[tuple[str, str], list[list[str]]] = {}
    for place in places:
        parts = place.root.split("/")[:-1]
        top = "/".join(parts[:2]) if place.scheme == FILE else parts[0]
        grouped.setdefault((place.scheme, top), []).append(parts)
    for (scheme, _), members in grouped.items():
        first, last = min(members), max(members)  # what these share, all share
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        yield Location.parse(f"{scheme}://{'/'.join(part for part, _ in shared)}/")


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """Returns a name that lakes.yaml allows and nobody has yet."""
    base = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "lake"
    base = f"_{base}" if base[0].isdigit() else base
    names, name, number = set(taken), base, 1
    while name in names:
        number += 1
        name = f"{base}_{number}"
    return name


def host_name(address: str) -> str:
    """Returns the first label of a server's name, for the name of a lake."""
    return (urlsplit(address).hostname or "lake").partition(".")[0]
