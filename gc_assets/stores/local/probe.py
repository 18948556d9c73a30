"""What canary files prove of the file system below a storage. Some file systems have no hard links,
for example.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable
from contextlib import suppress

from gc_assets.core.errors import ObjectChanged
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.safe_paths import Tree
from gc_assets.stores.protocol import RESERVED_PREFIX, Traits

_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def probe(location: str) -> Traits:
    """Probes as `Store.probe` says. It leaves the reserved prefix, even where it was not there
    before.
    """
    root, key = local_path(location).rstrip("/"), f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    canary = f"{root}/{key}"
    try:
        return Traits(
            create_if_absent=(created := _supported(lambda: _creates_once(canary))),
            replace_if_match=created and _supported(lambda: _replaces_if_match(canary)),
            rename=created and _supported(lambda: _moves(root, key)),
        )
    finally:
        for name in (key, f"{key}-aside"):
            with Tree(root or "/").entry(name) as entry, suppress(FileNotFoundError):
                entry.unlink()


def _supported(proves: Callable[[], bool]) -> bool:
    """Returns False where the file system lacks a call that the proof makes."""
    try:
        return proves()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False


def _creates_once(canary: str) -> bool:
    objects = EditableLocalObjects()
    objects.create(canary, b"first")
    try:
        objects.create(canary, b"second")
    except FileExistsError:
        return objects.read(canary) == b"first"
    return False


def _replaces_if_match(canary: str) -> bool:
    objects = EditableLocalObjects()
    _, etag = objects.read_with_etag(canary)
    objects.replace(canary, b"replaced", etag)
    try:
        objects.replace(canary, b"by nobody", etag)
    except ObjectChanged:
        return objects.read(canary) == b"replaced"
    return False


def _moves(root: str, key: str) -> bool:
    """Returns True where a file can be renamed aside and come back without replacing another."""
    tree = Tree(root or "/")
    with tree.entry(key) as place, tree.entry(f"{key}-aside") as aside:
        identity = place.identity()
        place.rename_to(aside)
        aside.link_to(place)
        return place.identity() == aside.identity() == identity
