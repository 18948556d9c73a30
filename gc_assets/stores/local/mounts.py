"""What mounts do to paths: directories of storages that have two names (a bind mount, or a file
system that is mounted twice), and paths behind which a server may hang. Pure, but for
`find_mounted_aliases` and `may_hang`.

The kernel's own table says which part of which device stands where (`proc_pid_mountinfo(5)`). No
path tells it, and neither does a device number: a bind mount has that of its source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from gc_assets.core.paths import Location
from gc_assets.stores.protocol import PathAlias

MOUNTS: Final = Path("/proc/self/mountinfo")
# File systems of this machine alone. A read of any other may wait for a server.
_OF_THIS_MACHINE: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """What stands at the directory `point`: of the file system `device` the part below `root`.
    Paths have no closing `/`, so the root of everything is empty.
    """

    device: str
    root: str
    point: str


@dataclass(frozen=True, slots=True)
class _Part:
    storage: str
    device: str
    root: str
    path: str


def find_mounted_aliases(storages: Sequence[tuple[str, str]]) -> list[PathAlias]:
    """Returns the directories that have two names in storages (name, location) on this machine.

    A system without the kernel's table has no such mounts.
    """
    try:
        table = MOUNTS.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    roots = {name: Location.parse(location).without_links().root for name, location in storages}
    return [names for names in find_path_aliases(parse_mounts(table), roots) if _is_same(names)]


def may_hang(path: str) -> bool:
    """Says whether the file system at an absolute path may wait for another machine. True where
    nobody can tell. The path is not touched.

    Mounts are read once in each process. What a symbolic link leads to counts as where the link
    stands.
    """
    return next((slow for point, slow in _mounted() if _is_below(path, point)), True)


@functools.cache
def _mounted() -> tuple[tuple[str, bool], ...]:
    try:
        return tuple(find_slow_mounts(MOUNTS.read_text("utf-8", "surrogateescape")))
    except OSError:
        return ()


def find_slow_mounts(table: str) -> list[tuple[str, bool]]:
    """Returns the directories of a table of mounts, the deepest first, and of each whether its file
    system may wait for another machine.
    """
    seen: dict[str, bool] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        seen[_plain(fields.split(" ")[4])] = super_fields.split(" ")[0] not in _OF_THIS_MACHINE
    return sorted(seen.items(), key=lambda item: len(item[0]), reverse=True)


def _is_same(names: PathAlias) -> bool:
    """Says whether both names lead to one inode; true where nobody can tell.

    A name is another directory's where a later mount hides it. That the device is one is known:
    one export that is mounted twice may have two device numbers.
    """
    try:
        return Path(names.path).stat().st_ino == Path(names.other_path).stat().st_ino
    except OSError:
        return True


def parse_mounts(table: str) -> list[Mount]:
    """Reads a table of mounts. Of several mounts at one directory the last one is seen."""
    seen: dict[str, Mount] = {}
    for line in table.splitlines():
        fields, _, super_fields = line.partition(" - ")
        _, _, device, root, point, *_ = fields.split(" ")
        source = _plain(super_fields.split(" ")[1])
        seen[_plain(point)] = Mount(*_device(device, _plain(root), source), _plain(point))
    return list(seen.values())


def _device(device: str, root: str, source: str) -> tuple[str, str]:
    """Returns what names a file system, and the part of it.

    An export of a server (`host:/path`, `//host/share`) may have another number at each mount.
    """
    if source.startswith("//"):
        host, _, share = source[2:].partition("/")
        return f"//{host}", f"/{share.rstrip('/')}{root}"
    host, colon, path = source.partition(":/")
    return (host, f"/{path}".rstrip("/") + root) if colon and "/" not in host else (device, root)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text).rstrip("/")


def find_path_aliases(mounts: Sequence[Mount], roots: Mapping[str, str]) -> list[PathAlias]:
    """Returns the directories that have two names in storages. `roots` are their real paths by
    storage name.
    """
    parts = [part for storage, root in roots.items() for part in _parts(mounts, storage, root.rstrip("/"))]
    found: dict[PathAlias, None] = {}
    for one, other in combinations(parts, 2):
        for outer, inner in ((one, other), (other, one)):
            if outer.device == inner.device and _is_below(inner.root, outer.root):
                path = outer.path + inner.root[len(outer.root) :]
                if path != inner.path:
                    found[PathAlias(outer.storage, path or "/", inner.storage, inner.path or "/")] = None
                break
    return list(found)


def _parts(mounts: Sequence[Mount], storage: str, root: str) -> Iterator[_Part]:
    """Yields the parts of file systems that are seen at and below a storage's root."""
    above = max((mount for mount in mounts if _is_below(root, mount.point)), key=lambda mount: len(mount.point), default=None)
    if above is not None:
        yield _Part(storage, above.device, above.root + root[len(above.point) :], root)
    for mount in mounts:
        if mount.point != root and _is_below(mount.point, root):
            yield _Part(storage, mount.device, mount.root, mount.point)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
