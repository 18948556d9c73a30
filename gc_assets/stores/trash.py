"""List the objects that are really in the trash of a storage, whether or not they are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gc_assets.core.objects import Objects
from gc_assets.stores.protocol import RESERVED_PREFIX


@dataclass(frozen=True, slots=True)
class TrashedObject:
    """An object in the trash, at `.gc-assets/trash/<plan id>/<key>`."""

    plan_id: str
    key: str
    size_bytes: int


def trash_address(location: str, plan_id: str = "", key: str = "") -> str:
    """Return the address of the trash or, with a plan id and a key, of an object in it."""
    trash = f"{location.rstrip('/')}/{RESERVED_PREFIX}trash/"
    return f"{trash}{plan_id}/{key}" if plan_id else trash


def list_trash(objects: Objects, location: str) -> Iterator[TrashedObject]:
    """List the trash of a storage.

    Raises:
        OSError: If it cannot be listed.
        StoreError: If it contains anything but objects, such as a symbolic link.
    """
    trash = trash_address(location)
    for address, size_bytes, _ in objects.list(trash):
        plan_id, _, key = address.removeprefix(trash).partition("/")
        if key:
            yield TrashedObject(plan_id, key, size_bytes)
