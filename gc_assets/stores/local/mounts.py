"""Detect effects of mounts: directories with two paths, different inodes, and paths that may hang.

A bind mount, or a file system that is mounted twice, gives a directory two paths. A read from a
network file system may block until its server answers. Such a file system may also show a local
directory with different inode numbers, as sshfs does. Only the functions that read this machine's
mounts do I/O.

The source is the kernel's mount table (`proc_pid_mountinfo(5)`), which maps each mount point to a
device and a directory on it. Paths do not contain this information. Device numbers do not either,
because a bind mount has the number of its source.
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
# Local file systems that store their own files, so that no other file system contains the same
# file.
_DISKS: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})
# Local file systems. A read from any other file system may block until a server answers.
_OF_THIS_MACHINE: Final = _DISKS | {"overlay"}
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount: the directory `root` of the file system `device`, mounted at the directory `point`.

    Paths have no trailing `/`, so the root directory is empty.
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
    """Return the directories with two paths in storages (name, location) on this machine.

    A system without the kernel's mount table is assumed to have no such mounts.
    """
    try:
        table = MOUNTS.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    roots = {name: Location.parse(location).without_links().root for name, location in storages}
    return [names for names in find_path_aliases(parse_mounts(table), roots) if _is_same(names)]


def may_hang(path: str) -> bool:
    """Return True if a read of an absolute path may block until another machine answers.

    Also returns True for an unknown file system. The path itself is not accessed, so symbolic links
    are not resolved. The mounts are read once per process.
    """
    return next((slow for point, slow in read_slow_mounts() if _is_within(path, point)), True)


def is_in_one_mount(path: str, other: str) -> bool:
    """Return True if two absolute paths are in the same mount, without accessing the paths."""
    points = [point for point, _ in read_mount_types()]
    one, two = (next((point for point in points if _is_within(path, point)), None) for path in (path, other))
    return one == two


def find_mount_point(path: str) -> str:
    """Return the mount point of an absolute path, without accessing the path."""
    return next((point for point, _ in read_slow_mounts() if _is_within(path, point)), "")


def has_same_inodes(directory: str, other: str) -> bool:
    """Return True if a file would have the same inode number in two directories of this machine.

    Returns False if one directory is in a network, FUSE or overlay mount that does not contain the
    other. Such a mount may show files of another file system with its own inode numbers.
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
    """Read this machine's mount table and return the result of `find_mount_types`."""
    try:
        return find_mount_types(MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return []


@functools.cache
def read_slow_mounts() -> tuple[tuple[str, bool], ...]:
    """Return `find_slow_mounts` for this machine's mount table, which is read once per process."""
    try:
        return tuple(find_slow_mounts(MOUNTS.read_text("utf-8", "surrogateescape")))
    except OSError:
        return ()


def find_slow_mounts(table: str) -> list[tuple[str, bool]]:
    """Return the mount points, the deepest first, each with True if reads may hang."""
    return [(point, kind not in _OF_THIS_MACHINE) for point, kind in find_mount_types(table)]


def find_mount_types(table: str) -> list[tuple[str, str]]:
    """Return the mount points, the deepest first, each with its file system type."""
    types: dict[str, str] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        types[_unescape(fields.split(" ")[4])] = super_fields.split(" ")[0]
    return sorted(types.items(), key=lambda item: len(item[0]), reverse=True)


def _is_same(names: PathAlias) -> bool:
    """Return True if both paths resolve to the same inode, or if this cannot be determined.

    The check is needed because a later mount may hide one of the paths. Devices are not compared:
    they are known to be the same, although an export mounted twice may have two device numbers.
    """
    try:
        return Path(names.path).stat().st_ino == Path(names.other_path).stat().st_ino
    except OSError:
        return True


def parse_mounts(table: str) -> list[Mount]:
    """Parse a mount table. If several mounts have the same mount point, only the last is visible."""
    mounts: dict[str, Mount] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        _, _, device, root, point, *_ = fields.split(" ")
        source = _unescape(super_fields.split(" ")[1])
        mounts[_unescape(point)] = Mount(*_device(device, _unescape(root), source), _unescape(point))
    return list(mounts.values())


def _device(device: str, root: str, source: str) -> tuple[str, str]:
    """Return the name of a file system and its mounted directory.

    A server's export (`host:/path`, `//host/share`) is identified by its source, because it may
    have a different device number at each mount.
    """
    if source.startswith("//"):
        host, _, share = source[2:].partition("/")
        return f"//{host}", f"/{share.rstrip('/')}{root}"
    host, colon, path = source.partition(":/")
    return (host, f"/{path}".rstrip("/") + root) if colon and "/" not in host else (device, root)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text).rstrip("/")


def find_path_aliases(mounts: Sequence[Mount], roots: Mapping[str, str]) -> list[PathAlias]:
    """Return the directories with two paths in storages.

    Args:
        mounts: The mounts of a machine.
        roots: The real paths of the storages by name.
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
    """Yield the mounted parts of file systems at or under a storage's root."""
    enclosing = max((mount for mount in mounts if _is_within(root, mount.point)), key=lambda mount: len(mount.point), default=None)
    if enclosing is not None:
        yield _MountedPart(storage, enclosing.device, enclosing.root + root[len(enclosing.point) :], root)
    for mount in mounts:
        if mount.point != root and _is_within(mount.point, root):
            yield _MountedPart(storage, mount.device, mount.root, mount.point)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
