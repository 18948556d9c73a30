"""Discover Icechunk repositories in local folders and buckets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.core.paths import Location, is_in_bucket
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
from gc_assets.lakes.icechunk.envelope import MAGIC
from gc_assets.lakes.icechunk.repository import repo_address

_SNAPSHOTS: Final = "snapshots"
_REFS: Final = "refs"
_REPO: Final = "repo"
# Limits for the search in a bucket: objects to list, and depth of folders.
MAX_OBJECTS: Final = 100_000
_DEPTH: Final = 3


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the Icechunk repository at a target. In a bucket, also search the folders under it.

    A repository contains snapshots and either `refs/` (spec version 1) or the object `repo` (spec
    version 2).
    """
    if _holds(target, _SNAPSHOTS) and (_holds(target, _REFS) or _has_repo_object(target)):
        location = str(Location.parse(target.address))
        yield DiscoveredLake(location.rstrip("/").rpartition("/")[2], {"kind": "icechunk", "location": location}, (location,))
    elif is_in_bucket(target.address):
        for address in _find_repositories(target):
            yield from discover(replace(target, address=address))


def _find_repositories(target: DiscoveryTarget) -> list[str]:
    """Find locations under the target that look like repositories, up to three levels deep.

    Raises:
        UsageError: If there are too many objects to be sure that no repository was missed.
    """
    start = f"{target.address.rstrip('/')}/"
    found: dict[str, set[str]] = {}
    objects = target.objects.list(start)
    for address, _, _ in itertools.islice(objects, MAX_OBJECTS):
        folders = address.removeprefix(start).split("/")
        for depth, name in enumerate(folders[1:], 1):
            if depth <= _DEPTH and name in {_SNAPSHOTS, _REFS, _REPO}:
                found.setdefault(start + "/".join(folders[:depth]), set()).add(name)
    repositories = [address for address, names in found.items() if _SNAPSHOTS in names and names & {_REFS, _REPO}]
    if repositories and next(objects, None) is not None:
        raise UsageError(
            f"{target.address} has more than {MAX_OBJECTS:,} objects, so some repositories may not be found; specify each of them, such as "
            f"{repositories[0]}"
        )
    return repositories


def _holds(target: DiscoveryTarget, folder: str) -> bool:
    if target.path is not None:
        return (target.path / folder).is_dir()
    return is_in_bucket(target.address) and next(iter(target.objects.list(f"{target.address.rstrip('/')}/{folder}/")), None) is not None


def _has_repo_object(target: DiscoveryTarget) -> bool:
    if target.path is not None:
        path = target.path / "repo"
        if not path.is_file():  # Opening a FIFO would block.
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    try:
        return target.objects.read(repo_address(target.address.rstrip("/"))).startswith(MAGIC)
    except FileNotFoundError:
        return False
