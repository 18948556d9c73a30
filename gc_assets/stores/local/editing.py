"""Conditional changes of single objects on a local disk: replace, create, remove.

New bytes are written to a file in the same directory, which is then renamed, so that readers never
see an incomplete object, even after a crash. A crash may leave a file named `<name>#<digits>`.
Icechunk's storage library treats such a name as an unfinished upload and does not list it. In an
inventory it is an unreferenced file. This module does not know lakes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import ObjectChanged
from gc_assets.core.regular_files import NEVER_WAIT
from gc_assets.stores.local.mounts import may_hang
from gc_assets.stores.local.objects import LocalObjects, content_of, etag_of, local_path
from gc_assets.stores.local.safe_paths import Entry, Tree

_NO_LINKS = os.O_NOFOLLOW | NEVER_WAIT
_NEW_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class EditableLocalObjects(LocalObjects):
    """`EditableObjects` on local disks."""

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        if may_hang(local_path(address)):
            return run_with_deadline(self.read_seconds, address, lambda: self._read_with_etag(address))
        return self._read_with_etag(address)

    def _read_with_etag(self, address: str) -> tuple[bytes, str]:
        with _open_entry(address) as entry, os.fdopen(_open_file(entry, os.O_RDONLY), "rb") as source:
            etag = etag_of(os.fstat(source.fileno()))
            return content_of(source, address), etag

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the object as the protocol specifies, keeping mode and owner.

        Concurrent calls are serialized by a lock on the file. A writer without this lock may rename
        its own file to the path between the comparison and the rename. Its file is then put back,
        but is lost on file systems that cannot exchange names, such as NFS.
        """
        with _open_entry(address) as entry, _lock_file(entry) as locked_status:
            staged = _staging_entry(entry)
            require_etag(entry, etag)
            try:
                write_staged(staged, content, like=locked_status)
                require_etag(entry, etag)
                _exchange(staged, entry, etag)
            finally:
                _unlink_if_exists(staged)
            entry.sync_directory()

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        _make_directories(Path(local_path(address)).parent, new_directories)
        with _open_entry(address, create=True) as entry:
            staged = _staging_entry(entry)
            try:
                write_staged(staged, content, like=None)
                staged.link_to(entry)
            finally:
                _unlink_if_exists(staged)
            entry.sync_directory()

    def remove(self, address: str, etag: str) -> None:
        """Remove the object as the protocol specifies.

        The file is renamed before the last comparison, so that no other file can be deleted.
        """
        with _open_entry(address) as entry:
            require_etag(entry, etag)
            aside = _staging_entry(entry)
            entry.rename_to(aside)
            found = aside.identity()
            if found != etag:
                put_back(aside, entry)
            aside.unlink()
            entry.sync_directory()
            if found != etag:
                raise _changed_error(entry, etag, found)


def _make_directories(path: Path, limit: int) -> None:
    """Create at most `limit` missing directories, with the owner and mode of the one above.

    Owner and mode are copied so that other programs can write to the directories. Raises `OSError`
    if that is not permitted, or if more directories are missing.
    """
    if os.path.lexists(path):
        return
    if limit == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    _make_directories(path.parent, limit - 1)
    model = path.parent.stat()
    try:
        path.mkdir(0o700)
    except FileExistsError:
        return  # another writer has created it
    try:
        created = path.stat()
        if (created.st_uid, created.st_gid) != (model.st_uid, model.st_gid):
            os.chown(path, model.st_uid, model.st_gid)
        path.chmod(stat.S_IMODE(model.st_mode))
    except OSError:
        path.rmdir()
        raise


@contextmanager
def _open_entry(address: str, *, create: bool = False) -> Generator[Entry]:
    """Open the object's directory and yield the object's entry.

    If `create` is True, a missing directory is created.
    """
    parent, _, name = local_path(address).rpartition("/")
    grandparent, _, directory = parent.rpartition("/")
    with Tree(grandparent or "/").entry(f"{directory}/{name}", create=create) as entry:
        if entry.directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
        yield entry


def _staging_entry(entry: Entry) -> Entry:
    """Return an entry with an unused temporary name in the object's directory."""
    suffix = f"#{secrets.randbits(62)}"
    return Entry(entry.key + suffix, entry.directory, entry.name + suffix.encode())


def _open_file(entry: Entry, access: int) -> int:
    return os.open(entry.name, access | _NO_LINKS, dir_fd=entry.directory)


@contextmanager
def _lock_file(entry: Entry) -> Generator[os.stat_result]:
    """Open the file and lock it against other calls of `replace`.

    It is opened for writing, because a lock on NFS requires that.
    """
    descriptor = _open_file(entry, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def write_staged(staged: Entry, content: bytes, like: os.stat_result | None) -> None:
    """Write the bytes durably under the temporary name, with mode and owner of the replaced file."""
    created = os.open(staged.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS, _NEW_FILE_MODE, dir_fd=staged.directory)
    with os.fdopen(created, "wb") as sink:
        if like is not None:
            own = os.fstat(created)
            if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(created, like.st_uid, like.st_gid)
            os.fchmod(created, stat.S_IMODE(like.st_mode))
        sink.write(content)
        sink.flush()
        os.fsync(created)


def _exchange(staged: Entry, entry: Entry, etag: str) -> None:
    """Rename `staged` to `entry`, and undo the rename if the replaced file has another identity."""
    mine = staged.identity()
    if not staged.exchange_with(entry):
        staged.rename_to(entry)
    elif (found := staged.identity()) != etag:
        staged.exchange_with(entry)
        if staged.identity() != mine:  # a writer replaced this one too, and its file is the newest
            staged.exchange_with(entry)
        raise _changed_error(entry, etag, found)


def require_etag(entry: Entry, etag: str) -> None:
    """Raise `ObjectChanged` unless the file has this identity.

    Raises `FileNotFoundError` if it does not exist.
    """
    found = entry.identity()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.key)
    if found != etag:
        raise _changed_error(entry, etag, found)


def _changed_error(entry: Entry, etag: str, found: str | None) -> ObjectChanged:
    return ObjectChanged(f"{entry.key!r}: expected {etag} as read before, found {found}; left alone")


def put_back(aside: Entry, entry: Entry) -> None:
    """Restore the name of a file that was moved aside, unless that name has been created again."""
    with suppress(FileExistsError):  # written again since then: that writer meant to replace this object
        aside.link_to(entry)


def _unlink_if_exists(staged: Entry) -> None:
    with suppress(FileNotFoundError):  # renamed to its target, or never created
        staged.unlink()
