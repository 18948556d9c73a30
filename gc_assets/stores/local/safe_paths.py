"""Safe access to files under a root directory. No symbolic link can lead outside it.

A path is opened directory by directory, each relative to its parent (`openat`). Symbolic links
are rejected (`O_NOFOLLOW`). This is safe even if a directory is replaced by a link between a check
and the following change.
"""

from __future__ import annotations

import ctypes
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
_RENAME_EXCHANGE = 2
# These errors mean that the kernel or file system, for example NFS, cannot exchange names.
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class OutOfBounds(StoreError):
    """Raised if a key is not a valid path under the root, or passes through a symbolic link."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file name in an open directory. The file may or may not exist.

    An entry is only valid inside the block of `Tree.entry`.

    Attributes:
        key: The key, relative to the root.
        directory: The descriptor of the open directory, or None if the directory does not exist.
        name: The name in the directory.
    """

    key: str
    directory: int | None
    name: bytes

    def identity(self) -> str | None:
        """Return the etag of the file, or None if it does not exist.

        If the name belongs to anything but a regular file, a description such as `a directory` is
        returned, which never equals an etag.
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

    def exchange_with(self, target: Entry) -> bool:
        """Exchange the names of two files atomically, if the file system supports this.

        Returns:
            False if it is not supported, in which case nothing has changed.
        """
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        if rename(self.directory, self.name, target.directory, target.name, _RENAME_EXCHANGE) == 0:
            return True
        if (number := ctypes.get_errno()) in _NO_EXCHANGE:
            return False
        raise OSError(number, os.strerror(number), target.key)

    def link_to(self, target: Entry) -> None:
        """Give the file a second name. Nothing is ever overwritten.

        Raises:
            FileExistsError: If the name already exists.
        """
        os.link(self.name, target.name, src_dir_fd=self.directory, dst_dir_fd=target.directory, follow_symlinks=False)

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.directory)

    def sync_directory(self) -> None:
        if self.directory is not None:
            os.fsync(self.directory)


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory tree, such as that of a storage. `root` is its absolute path."""

    root: str

    @contextmanager
    def entry(self, key: str, *, create: bool = False, like: str | None = None) -> Generator[Entry]:
        """Open the directory that contains `key`, and yield the key's entry in it.

        Args:
            key: The key, relative to the root.
            create: Whether to create missing directories.
            like: A key whose directories are the model for new ones: mode and owner are copied from
                them, matching both paths from their ends. Other new directories are private.

        Raises:
            OutOfBounds: If the key is invalid, or if its path contains a symbolic link.
        """
        parts = _split_key(key)
        model = _split_key(like)[:-1] if like is not None else []
        with self._directory(parts[:-1], create=create, model=model) as directory:
            yield Entry(key, directory, parts[-1].encode())

    def sync(self, directories: Iterable[str]) -> None:
        """Sync directories to disk, which makes new, renamed and removed entries durable.

        Args:
            directories: Keys of directories, without a trailing `/`. The key of the root is empty.
        """
        for key in directories:
            with self._directory(key.split("/") if key else [], create=False) as directory:
                if directory is not None:
                    os.fsync(directory)

    def _stat_directory(self, parts: Sequence[str]) -> os.stat_result | None:
        """Return a directory's status, or None if it is the root or does not exist."""
        with self._directory(parts, create=False) as directory:
            return os.fstat(directory) if parts and directory is not None else None

    @contextmanager
    def _directory(self, parts: Sequence[str], *, create: bool, model: Sequence[str] = ()) -> Generator[int | None]:
        current: int | None = os.open(self.root.encode(), _DIRECTORY)
        try:
            for depth, part in enumerate(parts):
                child = _open_child(current, part.encode(), "/".join(parts[: depth + 1]))
                if child is None and create:
                    model_depth = max(0, depth + 1 - len(parts) + len(model))  # counted from the end of both paths
                    child = _make_child(current, part.encode(), self._stat_directory(model[:model_depth]))
                os.close(current)
                current = child
                if create and depth == 0 and current is not None and part == _RESERVED_NAME:
                    _restrict_to_owner(current)
                if current is None:
                    break
            yield current
        finally:
            if current is not None:
                os.close(current)


def _split_key(key: str) -> list[str]:
    parts = key.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise OutOfBounds(f"{key!r} is not a valid key: it has an empty, `.` or `..` part")
    return parts


def _open_child(directory: int, name: bytes, key: str) -> int | None:
    """Open a subdirectory, or return None if there is no such directory."""
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OutOfBounds(f"the path contains {key!r}, which is now a symbolic link") from error
        return None  # a file, which has nothing under it


def _make_child(directory: int, name: bytes, model: os.stat_result | None) -> int:
    """Create a subdirectory, unless another task has already created it, and return it open.

    Raises:
        OSError: If the name exists but is not a directory.
    """
    is_new = False
    with suppress(FileExistsError):  # another task may create it first
        os.mkdir(name, _PRIVATE, dir_fd=directory)
        is_new = True
    descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    if is_new and model is not None:
        _copy_owner_and_mode(descriptor, model)
    return descriptor


def _copy_owner_and_mode(directory: int, model: os.stat_result) -> None:
    """Give a new directory the owner and mode of another one, as far as this process may.

    The new directory must never have more permissions than the model. If its group cannot be set,
    the group that it has therefore gets no permissions.
    """
    for owner, group in ((model.st_uid, model.st_gid), (-1, model.st_gid)):
        with suppress(PermissionError):
            os.fchown(directory, owner, group)
            break
    actual, mode = os.fstat(directory), stat.S_IMODE(model.st_mode)
    mode &= 0o7777 if actual.st_gid == model.st_gid else ~stat.S_IRWXG
    mode |= 0 if actual.st_uid == model.st_uid else stat.S_IRWXU
    os.fchmod(directory, mode)


def _restrict_to_owner(directory: int) -> None:
    """Deny other users access to the reserved directory, whose files may have been private."""
    if os.fstat(directory).st_mode & 0o077:
        with suppress(PermissionError):  # it belongs to another user
            os.fchmod(directory, _PRIVATE)


def ancestors(key: str) -> list[str]:
    """List the directories above a key, root first. For `a/b/c` these are ``, `a` and `a/b`."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
