"""Find out how mounts of file systems affect the paths of files.

Mounts matter for three reasons:

- A directory can have two paths, because of a bind mount or a file system that is mounted twice.
- Reading from a network file system can block until the server responds.
- A network file system can show local files under other inode numbers, as sshfs does.

Paths and device numbers are not enough to detect this. For example, a bind mount has the same
device number as its source. The kernel's mount table (`proc_pid_mountinfo(5)`) is used instead,
which maps each mount point to a device and a directory on it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from gc_assets.core.paths import Location
from gc_assets.stores.protocol import PathAlias

MOUNTS: Final = Path("/proc/self/mountinfo")
# These file systems store files themselves, so a file in one of them is not in any other.
_DISKS: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})
# Any other file system may block until a server answers.
_OF_THIS_MACHINE: Final = _DISKS | {"overlay"}
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of the mount table.

    Paths have no trailing `/`, so the root directory is an empty string.

    Attributes:
        device: The file system.
        root: The directory of this file system that is mounted.
        point: The directory at which it is mounted.
    """

    device: str
    root: str
    point: str


@dataclass(frozen=True, slots=True)
class _MountedPart:
    storage: str
    device: str
    root: str
    path: str


def find_mounted_aliases(storages: Sequence[tuple[str, str]]) -> list[PathAlias]:
    """Find directories that have two paths in the storages, according to this machine's mounts.

    If there is no mount table, as on other operating systems, nothing is found.

    Args:
        storages: The name and location of each storage.
    """
    try:
        table = MOUNTS.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    roots = {name: Location.parse(location).without_links().root for name, location in storages}
    return [names for names in find_path_aliases(parse_mounts(table), roots) if _is_same(names)]


def may_hang(path: str) -> bool:
    """Return True if reading an absolute path may block until another machine responds.

    Unknown file systems are assumed to block. The path itself is not accessed, so symbolic links in
    it are not resolved. The mount table is read only once in each process.
    """
    return next((slow for point, slow in read_slow_mounts() if _is_within(path, point)), True)


def is_in_one_mount(path: str, other: str) -> bool:
    """Return True if two absolute paths belong to the same mount. The paths are not accessed."""
    points = [point for point, _ in read_mount_types()]
    one, two = (next((point for point in points if _is_within(path, point)), None) for path in (path, other))
    return one == two


def find_mount_point(path: str) -> str:
    """Return the mount point that contains an absolute path. The path is not accessed."""
    return next((point for point, _ in read_slow_mounts() if _is_within(path, point)), "")


def has_same_inodes(directory: str, other: str) -> bool:
    """Return True if inode numbers in two directories of this machine can be compared.

    They cannot be compared if one of the directories is in a network, FUSE or overlay mount that
    does not contain the other one. Such a mount may show files of another file system under its own
    inode numbers.
    """
    paths = [os.path.realpath(path) for path in (directory, other)]
    try:
        one, two = (Path(path).stat().st_dev for path in paths)
    except OSError:
        return False
    if one == two:
        return True
    types = read_mount_types()
    return all(next((kind for point, kind in types if _is_within(path, point)), None) in _DISKS for path in paths)


def read_mount_types() -> list[tuple[str, str]]:
    """Read this machine's mount table (see `find_mount_types`)."""
    try:
        return find_mount_types(MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return []


@functools.cache
def read_slow_mounts() -> tuple[tuple[str, bool], ...]:
    """Read this machine's mount table, once in each process (see `find_slow_mounts`)."""
    try:
        return tuple(find_slow_mounts(MOUNTS.read_text("utf-8", "surrogateescape")))
    except OSError:
        return ()


def find_slow_mounts(table: str) -> list[tuple[str, bool]]:
    """List the mount points in a mount table, deepest first, and whether reads may hang."""
    return [(point, kind not in _OF_THIS_MACHINE) for point, kind in find_mount_types(table)]


def find_mount_types(table: str) -> list[tuple[str, str]]:
    """List the mount points in a mount table, deepest first, with the types of their file systems."""
    types: dict[str, str] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        types[_unescape(fields.split(" ")[4])] = super_fields.split(" ")[0]
    return sorted(types.items(), key=lambda item: len(item[0]), reverse=True)


def _is_same(names: PathAlias) -> bool:
    """Return True if both paths really lead to the same directory, or if this is unknown.

    A later mount may hide one of the paths. Only inodes are compared, because the device is known
    to be the same, although its number may differ if an export is mounted twice.
    """
    try:
        return Path(names.path).stat().st_ino == Path(names.other_path).stat().st_ino
    except OSError:
        return True


def parse_mounts(table: str) -> list[Mount]:
    """Parse a mount table.

    If several mounts have the same mount point, only the last one is returned, because it hides the
    others.
    """
    mounts: dict[str, Mount] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        _, _, device, root, point, *_ = fields.split(" ")
        source = _unescape(super_fields.split(" ")[1])
        mounts[_unescape(point)] = Mount(*_device(device, _unescape(root), source), _unescape(point))
    return list(mounts.values())


def _device(device: str, root: str, source: str) -> tuple[str, str]:
    """Identify a file system and the directory of it that is mounted.

    If a server's export (`host:/path`, `//host/share`) is mounted several times, its device numbers
    may differ, so it is identified by its source instead.
    """
    if source.startswith("//"):
        host, _, share = source[2:].partition("/")
        return f"//{host}", f"/{share.rstrip('/')}{root}"
    host, colon, path = source.partition(":/")
    return (host, f"/{path}".rstrip("/") + root) if colon and "/" not in host else (device, root)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text).rstrip("/")


def find_path_aliases(mounts: Sequence[Mount], roots: Mapping[str, str]) -> list[PathAlias]:
    """Find directories that have two paths in the storages.

    Args:
        mounts: The mounts of a machine.
        roots: The real path of each storage, keyed by storage name.
    """
    parts = [part for storage, root in roots.items() for part in _find_parts(mounts, storage, root.rstrip("/"))]
    found: dict[PathAlias, None] = {}
    for one, other in combinations(parts, 2):
        for outer, inner in ((one, other), (other, one)):
            if outer.device == inner.device and _is_within(inner.root, outer.root):
                path = outer.path + inner.root[len(outer.root) :]
                if path != inner.path:
                    found[PathAlias(outer.storage, path or "/", inner.storage, inner.path or "/")] = None
                break
    return list(found)


def _find_parts(mounts: Sequence[Mount], storage: str, root: str) -> Iterator[_MountedPart]:
    """Find the mounted parts of file systems that make up a storage."""
    enclosing = max((mount for mount in mounts if _is_within(root, mount.point)), key=lambda mount: len(mount.point), default=None)
    if enclosing is not None:
        yield _MountedPart(storage, enclosing.device, enclosing.root + root[len(enclosing.point) :], root)
    for mount in mounts:
        if mount.point != root and _is_within(mount.point, root):
            yield _MountedPart(storage, mount.device, mount.root, mount.point)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
