"""Effects of mounts on paths: directories with two paths, other inodes, and paths that may hang.

A bind mount, or a file system that is mounted twice, gives a directory two paths. A read from a
network file system may wait for its server. It may also show a local directory under other inode
numbers, as sshfs does. Pure, except the functions that read the mounts of this machine.

The source is the kernel's table of mounts (`proc_pid_mountinfo(5)`): which part of which device is
mounted at which directory. A path does not contain this, and neither does a device number, because
a bind mount has the number of its source.
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
# Local file systems that store their files. The same file is in no other file system.
_DISKS: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "tmpfs", "xfs", "zfs"})
# Local file systems. A read from any other may wait for a server.
_OF_THIS_MACHINE: Final = _DISKS | {"overlay"}
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """Part of the file system `device` under its `root`, mounted at the directory `point`.

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
    """Return the directories that have two paths in storages (name, location) on this machine.

    A system without the kernel's table is assumed to have no such mounts.
    """
    try:
        table = MOUNTS.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    roots = {name: Location.parse(location).without_links().root for name, location in storages}
    return [names for names in find_path_aliases(parse_mounts(table), roots) if _is_same(names)]


def may_hang(path: str) -> bool:
    """Return True if a read of an absolute path may wait for another machine.

    True also for an unknown file system. The path itself is not accessed. The mounts are read once
    per process. For a path behind a symbolic link, the location of the link counts.
    """
    return next((slow for point, slow in read_slow_mounts() if _is_within(path, point)), True)


def is_in_one_mount(path: str, other: str) -> bool:
    """Return True if two absolute paths are in the same mount. The paths are not accessed."""
    points = [point for point, _ in read_mount_types()]
    one, two = (next((point for point in points if _is_within(path, point)), None) for path in (path, other))
    return one == two


def find_mount_point(path: str) -> str:
    """Return the directory at which the file system of a path is mounted, without an access."""
    return next((point for point, _ in read_slow_mounts() if _is_within(path, point)), "")


def has_same_inodes(directory: str, other: str) -> bool:
    """Return True if a file has the same inode number in two directories of this machine.

    False if one of them is in a network, FUSE or overlay mount that the other is not in: such a mount
    may show the directory of another file system under its own numbers.
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
    """Return what `find_mount_types` finds on this machine now."""
    try:
        return find_mount_types(MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return []


@functools.cache
def read_slow_mounts() -> tuple[tuple[str, bool], ...]:
    """Return what `find_slow_mounts` finds on this machine. Read once per process."""
    try:
        return tuple(find_slow_mounts(MOUNTS.read_text("utf-8", "surrogateescape")))
    except OSError:
        return ()


def find_slow_mounts(table: str) -> list[tuple[str, bool]]:
    """Return the mounted directories, the deepest first, each with True if it may hang."""
    return [(point, kind not in _OF_THIS_MACHINE) for point, kind in find_mount_types(table)]


def find_mount_types(table: str) -> list[tuple[str, str]]:
    """Return the mounted directories, the deepest first, each with the type of its file system."""
    types: dict[str, str] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        types[_unescape(fields.split(" ")[4])] = super_fields.split(" ")[0]
    return sorted(types.items(), key=lambda item: len(item[0]), reverse=True)


def _is_same(names: PathAlias) -> bool:
    """Return True if both paths lead to one inode, or if this cannot be determined.

    A later mount may hide one of the paths. The devices are known to be the same, although an
    export that is mounted twice may have two device numbers.
    """
    try:
        return Path(names.path).stat().st_ino == Path(names.other_path).stat().st_ino
    except OSError:
        return True


def parse_mounts(table: str) -> list[Mount]:
    """Parse a table of mounts. Of several mounts at one directory, the last one is visible."""
    mounts: dict[str, Mount] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        _, _, device, root, point, *_ = fields.split(" ")
        source = _unescape(super_fields.split(" ")[1])
        mounts[_unescape(point)] = Mount(*_device(device, _unescape(root), source), _unescape(point))
    return list(mounts.values())


def _device(device: str, root: str, source: str) -> tuple[str, str]:
    """Return the name of a file system and the mounted part of it.

    An export of a server (`host:/path`, `//host/share`) may have another number at each mount.
    """
    if source.startswith("//"):
        host, _, share = source[2:].partition("/")
        return f"//{host}", f"/{share.rstrip('/')}{root}"
    host, colon, path = source.partition(":/")
    return (host, f"/{path}".rstrip("/") + root) if colon and "/" not in host else (device, root)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text).rstrip("/")


def find_path_aliases(mounts: Sequence[Mount], roots: Mapping[str, str]) -> list[PathAlias]:
    """Return the directories that have two paths in storages.

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
    """Yield the parts of file systems that are mounted at a storage's root or under it."""
    enclosing = max((mount for mount in mounts if _is_within(root, mount.point)), key=lambda mount: len(mount.point), default=None)
    if enclosing is not None:
        yield _MountedPart(storage, enclosing.device, enclosing.root + root[len(enclosing.point) :], root)
    for mount in mounts:
        if mount.point != root and _is_within(mount.point, root):
            yield _MountedPart(storage, mount.device, mount.root, mount.point)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
