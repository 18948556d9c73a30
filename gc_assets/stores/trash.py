"""List the objects that are really in the trash of a storage, even without a record of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.core.objects import Objects
from gc_assets.core.phases import ABSENT
from gc_assets.stores.protocol import RESERVED_PREFIX, PlannedAction, Result

PLAN_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


@dataclass(frozen=True, slots=True)
class TrashedObject:
    """An object in the trash, at `.gc-assets/trash/<plan id>/<key>`."""

    plan_id: str
    key: str
    size_bytes: int


def require_plan_id(plan_id: str) -> None:
    """Raise `UsageError` unless a plan id can be part of a key or path."""
    if not PLAN_ID.fullmatch(plan_id):
        raise UsageError(f"plan id {plan_id!r} cannot be part of a key; expected letters, digits, `_` and `-`")


def trash_key(plan_id: str, key: str) -> str:
    return f"{RESERVED_PREFIX}trash/{plan_id}/{key}"


def trash_address(location: str, plan_id: str = "", key: str = "") -> str:
    """Return the address of the trash or, with a plan id and a key, of an object in it."""
    return f"{location.rstrip('/')}/" + (trash_key(plan_id, key) if plan_id else f"{RESERVED_PREFIX}trash/")


def lost_copy_result(planned: PlannedAction, trash_key: str, found: str) -> Result:
    """Return the result of a restore or purge whose copy was overwritten or truncated."""
    text = (
        f"{planned.action}: the quarantined copy of {planned.key!r} is lost: {trash_key!r} is damaged ({found}) and is left alone. If you "
        "need the file, copy it to its key from a backup, or from the trash if its content is right. Then remove it from the trash"
    )
    return Result(ABSENT, text, is_replaced=True)


def list_trash(objects: Objects, location: str) -> Iterator[TrashedObject]:
    """List the trash of a storage.

    Raises:
        OSError: If the trash cannot be listed.
        StoreError: If the trash contains anything but objects, such as a symbolic link.
    """
    trash = trash_address(location)
    for address, size_bytes, _ in objects.list(trash):
        plan_id, _, key = address.removeprefix(trash).partition("/")
        if key:
            yield TrashedObject(plan_id, key, size_bytes)
