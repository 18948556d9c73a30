"""What `doctor` asks of a local storage: does it exist, can it be changed, is what waits in quarantine
private, does somebody hold it, which symbolic links are there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding, run_check
from gc_assets.stores.doctor_checks import check_lease
from gc_assets.stores.local.lease import read_holder
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.probe import probe
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import RESERVED_PREFIX, SymbolicLink

# Directories looked at for mount points and links. A night meets the deeper ones: the quarantine
# never crosses a mount, and the listing names each link.
MAX_DIRECTORIES: Final = 1_000
_CONTROL: Final = RESERVED_PREFIX.rstrip("/")


def examine(storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """As `Store.examine` says. Canaries are written in a storage of mode `apply` only."""
    root = Path(local_path(storage.location))
    yield from run_check(storage.name, "listable", lambda: _listable(root, storage))
    yield from run_check(storage.name, "quarantine", lambda: _quarantine(root, storage))
    yield from run_check(storage.name, "private", lambda: _private(root / _CONTROL, storage))
    if storage.mode == "apply" and os.access(root, os.W_OK | os.X_OK):
        yield from run_check(storage.name, "traits", lambda: _traits(storage))
    yield from run_check(storage.name, "lease", lambda: check_lease(storage.name, lambda: read_holder(storage.location), now))


def _listable(root: Path, storage: StorageConfig) -> Iterator[Finding]:
    if not root.is_dir():
        yield Finding(storage.name, "listable", FAIL, f"there is no directory {root}", "Mount it, or mend `location`.")
        return
    with os.scandir(root) as entries:
        count = sum(1 for _ in entries)
    yield Finding(storage.name, "listable", OK, f"{root} has {count:,} entries at its top")


def _quarantine(root: Path, storage: StorageConfig) -> Iterator[Finding]:
    open_quarantine(storage.quarantine, storage.location, "doctor")
    if not os.access(root, os.W_OK | os.X_OK):
        verdict = FAIL if storage.mode == "apply" else WARN
        yield Finding(storage.name, "quarantine", verdict, f"{root} is not writable for this user", "Plans can be made, and not applied.")
        return
    days = f"{storage.quarantine_days} days"
    if storage.quarantine == "deferred":
        yield Finding(storage.name, "quarantine", OK, f"deferred: nothing moves, purged after {days}; mode {storage.mode}")
        return
    elsewhere = sorted(_other_file_systems(root))
    if elsewhere:
        found = f"{len(elsewhere):,} directories are on another file system than the trash: {', '.join(elsewhere[:3])}"
        yield Finding(storage.name, "quarantine", WARN, found, "Make each mount a storage of its own, or use `quarantine: deferred`.")
    else:
        yield Finding(storage.name, "quarantine", OK, f"trash on the same file system, purged after {days}; mode {storage.mode}")


def _private(control: Path, storage: StorageConfig) -> Iterator[Finding]:
    """Checks that nobody else may enter the quarantine, which holds what private directories held."""
    try:
        found = control.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        what = f"{control} is no directory, expected the collector's own"
        yield Finding(storage.name, "private", FAIL, what, "Remove it: nothing can be applied here while it stands there.")
    elif found.st_mode & 0o077:
        what = f"{control} has the mode {stat.S_IMODE(found.st_mode):04o}, expected 0700: others may look into the quarantine"
        yield Finding(storage.name, "private", FAIL, what, f"chmod 700 {control}")
    else:
        yield Finding(storage.name, "private", OK, f"nobody else may enter {control}")


def _other_file_systems(root: Path) -> Iterator[str]:
    """Returns directories where another file system begins."""
    device = root.stat().st_dev
    return (entry.path for entry in _entries(root) if _is_below_another(entry, device))


def find_links(name: str, location: str) -> Iterator[SymbolicLink]:
    """As `StoreKind.find_links` says, of the first `MAX_DIRECTORIES` met."""
    root = Path(local_path(location))
    for entry in _entries(root) if root.is_dir() else ():
        if entry.is_symlink():
            yield SymbolicLink(name, entry.path, os.path.realpath(entry.path))


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yields what lies in the first `MAX_DIRECTORIES` directories met, but the collector's own. A
    directory of another file system is not entered.
    """
    device, own = root.stat().st_dev, str(root / _CONTROL)
    pending, met = [root], 0
    while pending and met < MAX_DIRECTORIES:
        with os.scandir(pending.pop(0)) as entries:
            for entry in entries:
                if entry.path == own:
                    continue
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    met += 1
                    if not _is_below_another(entry, device):
                        pending.append(Path(entry.path))


def _is_below_another(entry: os.DirEntry[str], device: int) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_dev != device


def _traits(storage: StorageConfig) -> Iterator[Finding]:
    """Says by canaries what the disk below the storage can do."""
    traits = probe(storage.location)
    if not traits.create_if_absent:
        found = "a file cannot be created for one writer only: this file system has no hard links"
        yield Finding(storage.name, "traits", FAIL, found, "Nothing can be applied here: no lease keeps two plans apart. Move the lake.")
    elif not traits.rename and storage.quarantine == "trash":
        found = "a file cannot be renamed aside and come back without replacing another"
        yield Finding(storage.name, "traits", FAIL, found, "Use `quarantine: deferred`.")
    elif not traits.replace_if_match:
        found = "a file cannot be replaced on a condition"
        yield Finding(storage.name, "traits", WARN, found, "Histories of Icechunk repositories here cannot be edited.")
    else:
        yield Finding(storage.name, "traits", OK, "canary files were created once, replaced on a condition, moved aside and put back")
