"""Discovery of Icechunk repositories in local folders and in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gc_assets.core.paths import Location, is_in_bucket
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
from gc_assets.lakes.icechunk.envelope import MAGIC
from gc_assets.lakes.icechunk.repository import repo_address

_SNAPSHOTS: Final = "snapshots"
_REFS: Final = "refs"


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the repository if the target is the root of one.

    It has snapshots, and `refs/` in spec version 1 or the object `repo` in version 2.
    """
    if _holds(target, _SNAPSHOTS) and (_holds(target, _REFS) or _has_repo_object(target)):
        location = str(Location.parse(target.address))
        yield DiscoveredLake(location.rstrip("/").rpartition("/")[2], {"kind": "icechunk", "location": location}, (location,))


def _holds(target: DiscoveryTarget, folder: str) -> bool:
    if target.path is not None:
        return (target.path / folder).is_dir()
    return is_in_bucket(target.address) and next(iter(target.objects.list(f"{target.address.rstrip('/')}/{folder}/")), None) is not None


def _has_repo_object(target: DiscoveryTarget) -> bool:
    if target.path is not None:
        path = target.path / "repo"
        if not path.is_file():  # opening a FIFO would block
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    try:
        return target.objects.read(repo_address(target.address.rstrip("/"))).startswith(MAGIC)
    except FileNotFoundError:
        return False
