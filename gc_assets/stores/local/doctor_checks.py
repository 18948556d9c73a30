"""Checks of `gc-assets doctor` for a storage on a local disk.

They find out whether the storage exists and is writable, whether its quarantine is private, whether
an apply holds the lease, and which symbolic links there are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding, run_check, skip_check
from gc_assets.core.units import count_of
from gc_assets.stores.doctor_checks import check_axioms, check_lease
from gc_assets.stores.local.lease import read_holder
from gc_assets.stores.local.objects import local_path
from gc_assets.stores.local.probe import probe
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import RESERVED_PREFIX, SymbolicLink

# Only this many directories are scanned for mount points and links. Nothing is lost by this: the
# listing of a run reports every link, and the quarantine refuses to cross a mount.
MAX_DIRECTORIES: Final = 1_000
_CONTROL: Final = RESERVED_PREFIX.rstrip("/")


def examine(storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """Check the storage as described in `Store.examine`.

    Canary files are only written if the storage is in `apply` mode.
    """
    root = Path(local_path(storage.location))
    yield from run_check(storage.name, "listable", lambda: _check_listable(root, storage))
    yield from run_check(storage.name, "quarantine", lambda: _check_quarantine(root, storage))
    yield from run_check(storage.name, "private", lambda: _check_private(root / _CONTROL, storage))
    if storage.mode == "apply" and os.access(root, os.W_OK | os.X_OK):
        yield from run_check(storage.name, "traits", lambda: _check_traits(storage))
    yield from run_check(storage.name, "lease", lambda: check_lease(storage.name, lambda: read_holder(storage.location), now))


def _check_listable(root: Path, storage: StorageConfig) -> Iterator[Finding]:
    if not root.is_dir():
        yield Finding(storage.name, "listable", FAIL, f"there is no directory {root}", "Mount it, or correct `location`.")
        return
    with os.scandir(root) as entries:
        count = sum(1 for _ in entries)
    yield Finding(storage.name, "listable", OK, f"{root} has {count_of(count, 'top-level entry')}")


def _check_quarantine(root: Path, storage: StorageConfig) -> Iterator[Finding]:
    open_quarantine(storage.quarantine, storage.location, "doctor")
    if not root.is_dir():
        yield skip_check(storage.name, "quarantine", "listable")
        return
    if not os.access(root, os.W_OK | os.X_OK):
        verdict = FAIL if storage.mode == "apply" else WARN
        yield Finding(
            storage.name, "quarantine", verdict, f"{root} is not writable for this user", "Plans can be created, but not applied."
        )
        return
    days = count_of(storage.quarantine_days, "day")
    if storage.quarantine == "deferred":
        yield Finding(storage.name, "quarantine", OK, f"deferred: files stay in place and are purged after {days}; mode {storage.mode}")
        return
    foreign = sorted(_other_file_systems(root))
    if foreign:
        found = f"{count_of(len(foreign), 'directory', 'are')} on a different file system from the trash: {', '.join(foreign[:3])}"
        yield Finding(storage.name, "quarantine", WARN, found, "Configure each mount as its own storage, or use `quarantine: deferred`.")
    else:
        yield Finding(storage.name, "quarantine", OK, f"trash on the same file system, purged after {days}; mode {storage.mode}")


def _check_private(control: Path, storage: StorageConfig) -> Iterator[Finding]:
    """Check that only its owner can enter the quarantine directory, since files may be private."""
    try:
        found = control.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        text = f"{control} is not a directory, expected the collector's own directory"
        yield Finding(storage.name, "private", FAIL, text, "Remove it: plans cannot be applied while it exists.")
    elif found.st_mode & 0o077:
        text = f"{control} has mode {stat.S_IMODE(found.st_mode):04o}, expected 0700: other users may read the quarantine"
        yield Finding(storage.name, "private", FAIL, text, f"chmod 700 {control}")
    else:
        yield Finding(storage.name, "private", OK, f"only its owner may enter {control}")


def _other_file_systems(root: Path) -> Iterator[str]:
    """Find directories that are on a different file system than the root."""
    device = root.stat().st_dev
    return (entry.path for entry in _scan_entries(root) if _is_on_other_device(entry, device))


def find_links(name: str, location: str) -> Iterator[SymbolicLink]:
    """Find symbolic links in the first `MAX_DIRECTORIES` directories of a storage."""
    root = Path(local_path(location))
    for entry in _scan_entries(root) if root.is_dir() else ():
        if entry.is_symlink():
            yield SymbolicLink(name, entry.path, os.path.realpath(entry.path))


def _scan_entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Scan the first `MAX_DIRECTORIES` directories and yield their entries.

    The reserved prefix is skipped. Directories on other file systems are yielded, but not entered.
    """
    device, own = root.stat().st_dev, str(root / _CONTROL)
    pending, scanned = [root], 0
    while pending and scanned < MAX_DIRECTORIES:
        with os.scandir(pending.pop(0)) as entries:
            for entry in entries:
                if entry.path == own:
                    continue
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    scanned += 1
                    if not _is_on_other_device(entry, device):
                        pending.append(Path(entry.path))


def _is_on_other_device(entry: os.DirEntry[str], device: int) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_dev != device


def _check_traits(storage: StorageConfig) -> Iterator[Finding]:
    """Check what the file system supports, using canary files."""
    traits = probe(storage.location)
    yield from check_axioms(storage.name, traits)
    if not traits.create_if_absent:
        found = "a file cannot be created by exactly one writer: this file system has no hard links"
        yield Finding(
            storage.name,
            "traits",
            FAIL,
            found,
            "Plans cannot be applied: without a lease, two plans could run concurrently. Move the lake.",
        )
    elif not traits.rename and storage.quarantine == "trash":
        found = "a file cannot be moved and restored without replacing another"
        yield Finding(storage.name, "traits", FAIL, found, "Use `quarantine: deferred`.")
    elif not traits.replace_if_match:
        found = "a file cannot be replaced conditionally"
        yield Finding(storage.name, "traits", WARN, found, "The history of Icechunk repositories in this storage cannot be edited.")
    elif not traits.broken_axioms:
        yield Finding(storage.name, "traits", OK, "canary files were created once, replaced conditionally, moved and restored")
