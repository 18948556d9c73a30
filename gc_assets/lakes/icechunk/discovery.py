"""Discovery of Icechunk repositories in local folders and at locations on S3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gc_assets.core.paths import S3, Location, scheme_of
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget

_FOLDERS: Final = ("refs", "snapshots")


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the repository if the target is the root of one."""
    path = target.path
    if path is not None:
        is_repository = all((path / name).is_dir() for name in _FOLDERS)
    else:
        is_repository = scheme_of(target.address) == S3 and all(_holds(target, name) for name in _FOLDERS)
    if is_repository:
        location = str(Location.parse(target.address))
        yield DiscoveredLake(location.rstrip("/").rpartition("/")[2], {"kind": "icechunk", "location": location}, (location,))


def _holds(target: DiscoveryTarget, name: str) -> bool:
    return next(iter(target.objects.list(f"{target.address.rstrip('/')}/{name}/")), None) is not None
