"""Find out what a file system supports, using canary files (test files that are removed again).

For example, some file systems do not have hard links.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from gc_assets.core.errors import ObjectChanged
from gc_assets.stores.canaries import find_broken_axioms
from gc_assets.stores.local.editing import EditableLocalObjects
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.safe_paths import Tree
from gc_assets.stores.protocol import RESERVED_PREFIX, Traits

_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def probe(location: str) -> Traits:
    """Test which optional properties the file system has.

    The reserved directory is created if necessary.
    """
    root, key = local_path(location).rstrip("/"), f"{RESERVED_PREFIX}canary-{secrets.token_hex(8)}"
    canary, canaries = f"{root}/{key}", LocalCanaries(root, f"{key}-axiom-")
    try:
        return Traits(
            create_if_absent=(created := _is_supported(lambda: _can_create_once(canary))),
            replace_if_match=created and _is_supported(lambda: _can_replace_if_match(canary)),
            rename=created and _is_supported(lambda: _can_move(root, key)),
            broken_axioms=find_broken_axioms(canaries, lambda: datetime.now(UTC)) if created else frozenset(),
        )
    finally:
        for name in (key, f"{key}-aside", f"{key}-axiom-1", f"{key}-axiom-2"):
            _remove_canary(root, name)


def _remove_canary(root: str, key: str) -> None:
    with Tree(root or "/").entry(key) as entry, suppress(FileNotFoundError):
        entry.unlink()


@dataclass(frozen=True, slots=True)
class LocalCanaries:
    """Canary files in a directory, whose names begin with `prefix`."""

    root: str
    prefix: str

    def write(self, name: str, content: bytes) -> None:
        _remove_canary(self.root, f"{self.prefix}{name}")
        EditableLocalObjects().create(f"{self.root}/{self.prefix}{name}", content)

    def read(self, name: str) -> tuple[bytes, str]:
        return EditableLocalObjects().read_identified(f"{self.root}/{self.prefix}{name}")

    def list(self) -> Mapping[str, datetime]:
        directory, _, start = f"{self.root}/{self.prefix}".rpartition("/")
        with os.scandir(directory) as entries:
            found = {entry.name.removeprefix(start): entry.stat().st_mtime for entry in entries if entry.name.startswith(start)}
        return {name: datetime.fromtimestamp(modified, UTC) for name, modified in found.items()}


def _is_supported(test: Callable[[], bool]) -> bool:
    """Run a test. The result is also False if the file system lacks one of the system calls."""
    try:
        return test()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False


def _can_create_once(canary: str) -> bool:
    objects = EditableLocalObjects()
    objects.create(canary, b"first")
    try:
        objects.create(canary, b"second")
    except FileExistsError:
        return objects.read(canary) == b"first"
    return False


def _can_replace_if_match(canary: str) -> bool:
    objects = EditableLocalObjects()
    _, etag = objects.read_with_etag(canary)
    objects.replace(canary, b"replaced", etag)
    try:
        objects.replace(canary, b"unexpected", etag)
    except ObjectChanged:
        return objects.read(canary) == b"replaced"
    return False


def _can_move(root: str, key: str) -> bool:
    """Test whether a file can be renamed, and restored without overwriting another file."""
    tree = Tree(root or "/")
    with tree.entry(key) as entry, tree.entry(f"{key}-aside") as target:
        identity = entry.identity()
        entry.rename_to(target)
        target.link_to(entry)
        return entry.identity() == target.identity() == identity
