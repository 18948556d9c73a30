"""Files below one root, reached in a way that no symbolic link can lead out of it.

Every step opens the next directory relative to the one before and refuses links (`openat` with
`O_NOFOLLOW`). A directory that is swapped for a link between check and action therefore changes
nothing. Knows keys and inodes, nothing of plans.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gc_assets.core.errors import StoreError
from gc_assets.stores.local.objects import etag_of
from gc_assets.stores.protocol import RESERVED_PREFIX

SYMBOLIC_LINK = "a symbolic link"
_PRIVATE = 0o700
_RESERVED_NAME = RESERVED_PREFIX.rstrip("/")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OutOfBounds(StoreError):
    """A key that is no plain name below the root, or whose path leads through a symbolic link."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in an open directory; `directory` is null where the directory does not exist. Valid
    while `Tree.entry` is open.
    """

    key: str
    directory: int | None
    name: bytes

    def identity(self) -> str | None:
        """The etag of the file there. Null where there is nothing; where there is no file but
        something else, words that equal no etag.
        """
        if self.directory is None:
            return None
        try:
            status = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return SYMBOLIC_LINK
        if not stat.S_ISREG(status.st_mode):
            return "a directory" if stat.S_ISDIR(status.st_mode) else "a special file"
        return etag_of(status)

    def rename_to(self, target: Entry) -> None:
        os.rename(self.name, target.name, src_dir_fd=self.directory, dst_dir_fd=target.directory)

    def link_to(self, target: Entry) -> None:
        """Gives the file a second name. Raises `FileExistsError` where anything has that name:
        nothing is ever overwritten.
        """
        os.link(self.name, target.name, src_dir_fd=self.directory, dst_dir_fd=target.directory, follow_symlinks=False)

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.directory)

    def sync_directory(self) -> None:
        if self.directory is not None:
            os.fsync(self.directory)


@dataclass(frozen=True, slots=True)
class Tree:
    """The directory at the absolute path `root`."""

    root: str

    @contextmanager
    def entry(self, key: str, *, create: bool = False, like: str | None = None) -> Generator[Entry]:
        """Opens the directory of `key` and yields the name that `key` ends in. Raises `OutOfBounds`.

        `create` makes the directories on the way. Each gets the mode and the owner of the directory
        that has its place above the key `like`, and one that has no such model is for us alone.
        """
        parts = _parts(key)
        model = _parts(like)[:-1] if like is not None else []
        with self._directory(parts[:-1], create=create, model=model) as directory:
            yield Entry(key, directory, parts[-1].encode())

    def sync(self, directories: Iterable[str]) -> None:
        """Makes sure that entries made and removed in these directories (keys without the last `/`,
        empty for the root) survive a power failure.
        """
        for key in directories:
            with self._directory(key.split("/") if key else [], create=False) as directory:
                if directory is not None:
                    os.fsync(directory)

    def _status(self, parts: Sequence[str]) -> os.stat_result | None:
        """Returns what the directory is; null for one that is not there, and for the root."""
        with self._directory(parts, create=False) as directory:
            return os.fstat(directory) if parts and directory is not None else None

    @contextmanager
    def _directory(self, parts: Sequence[str], *, create: bool, model: Sequence[str] = ()) -> Generator[int | None]:
        current: int | None = os.open(self.root.encode(), _DIRECTORY)
        try:
            for depth, part in enumerate(parts):
                below = _open_below(current, part.encode(), "/".join(parts[: depth + 1]))
                if below is None and create:
                    above = max(0, depth + 1 - len(parts) + len(model))  # the place counts from the end of both paths
                    below = _make_below(current, part.encode(), self._status(model[:above]))
                os.close(current)
                current = below
                if create and depth == 0 and current is not None and part == _RESERVED_NAME:
                    _make_private(current)
                if current is None:
                    break
            yield current
        finally:
            if current is not None:
                os.close(current)


def _parts(key: str) -> list[str]:
    parts = key.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise OutOfBounds(f"{key!r} is no key of a file: it has an empty, `.` or `..` part")
    return parts


def _open_below(directory: int, name: bytes, key: str) -> int | None:
    """Opens a directory below another one. Null where there is none, or where something else has
    its name.
    """
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OutOfBounds(f"the path leads through {key!r}, which is a symbolic link now") from error
        return None  # a file stands where a directory was: nothing is below it


def _make_below(directory: int, name: bytes, model: os.stat_result | None) -> int:
    """Makes a directory below another one and opens it. Raises `OSError` where something else has
    its name.
    """
    is_new = False
    with suppress(FileExistsError):  # another task may make it first
        os.mkdir(name, _PRIVATE, dir_fd=directory)
        is_new = True
    made = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    if is_new and model is not None:
        _take_after(made, model)
    return made


def _take_after(directory: int, model: os.stat_result) -> None:
    """Gives a new directory the owner and the mode of another. What we may not give opens nothing to
    others: rights of a group are for that group only.
    """
    for owner, group in ((model.st_uid, model.st_gid), (-1, model.st_gid)):
        with suppress(PermissionError):
            os.fchown(directory, owner, group)
            break
    got, mode = os.fstat(directory), stat.S_IMODE(model.st_mode)
    mode &= 0o7777 if got.st_gid == model.st_gid else ~stat.S_IRWXG
    mode |= 0 if got.st_uid == model.st_uid else stat.S_IRWXU
    os.fchmod(directory, mode)


def _make_private(directory: int) -> None:
    """Shuts the collector's own prefix, which holds what private directories held."""
    if os.fstat(directory).st_mode & 0o077:
        with suppress(PermissionError):  # another user's, who made it
            os.fchmod(directory, _PRIVATE)


def ancestors(key: str) -> list[str]:
    """Returns the directories above a key, root (empty) first: `a/b/c` is below ``, `a` and `a/b`."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
