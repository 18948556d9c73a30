"""Finds Icechunk repositories: folders, and locations on S3 that are one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gc_assets.core.paths import S3, Location, scheme_of
from gc_assets.lakes.discovery import Found, Place

_FOLDERS: Final = ("refs", "snapshots")


def discover(place: Place) -> Iterator[Found]:
    """Yields the repository whose root the place is."""
    path = place.path
    if path is not None:
        is_repository = all((path / name).is_dir() for name in _FOLDERS)
    else:
        is_repository = scheme_of(place.address) == S3 and all(_holds(place, name) for name in _FOLDERS)
    if is_repository:
        location = str(Location.parse(place.address))
        yield Found(location.rstrip("/").rpartition("/")[2], {"kind": "icechunk", "location": location}, (location,))


def _holds(place: Place, name: str) -> bool:
    return next(iter(place.objects.list(f"{place.address.rstrip('/')}/{name}/")), None) is not None
