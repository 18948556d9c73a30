"""Conditional changes of single files on a local disk.

A new version is first written to a temporary file in the same directory, which is then renamed.
Readers therefore never see an incomplete object, even after a crash.

A crash can leave behind a file named `<name>#<digits>`. Icechunk's storage library takes such a
file for an unfinished upload and does not list it. gc-assets treats it as an unreferenced file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import ObjectChanged
from gc_assets.core.file_locks import wait_for_lock
from gc_assets.core.regular_files import NEVER_WAIT
from gc_assets.stores.local.mounts import may_hang
from gc_assets.stores.local.objects import LocalObjects, content_of, etag_of, local_path
from gc_assets.stores.local.safe_paths import Entry, Tree

_NO_LINKS = os.O_NOFOLLOW | NEVER_WAIT
_NEW_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class EditableLocalObjects(LocalObjects):
    """Implements `EditableObjects` for local disks."""

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        if may_hang(local_path(address)):
            return run_with_deadline(self.read_seconds, address, lambda: self._read_with_etag(address))
        return self._read_with_etag(address)

    def _read_with_etag(self, address: str) -> tuple[bytes, str]:
        with _open_entry(address) as entry, os.fdopen(_open_file(entry, os.O_RDONLY), "rb") as source:
            etag = etag_of(os.fstat(source.fileno()))
            return content_of(source, address), etag

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the file if it still has the given etag. Mode and owner are preserved.

        Concurrent calls of this method are serialized by a lock on the file, but other programs do
        not use this lock. If one of them renames its own file to the path between our comparison
        and our rename, its file is put back. On file systems that cannot exchange names, such as
        NFS, it is lost.
        """
        with _open_entry(address) as entry, _lock_file(entry, local_path(address)) as locked_status:
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
        """Remove the file if it still has the given etag.

        The file is moved aside before the final comparison. If another program has replaced the
        file in the meantime, the new file can be put back instead of being deleted.
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
    """Create missing directories, but at most `limit` of them.

    New directories get the owner and mode of their parent, so that other programs can write to
    them.

    Raises:
        OSError: If more directories are missing, or if owner and mode cannot be set.
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
    """Open the directory of an object and yield the object's entry, which is valid in the block.

    If `create` is set, the directory is created if necessary.
    """
    parent, _, name = local_path(address).rpartition("/")
    grandparent, _, directory = parent.rpartition("/")
    with Tree(grandparent or "/").entry(f"{directory}/{name}", create=create) as entry:
        if entry.directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
        yield entry


def _staging_entry(entry: Entry) -> Entry:
    """Choose a random temporary file name in the directory of the object."""
    suffix = f"#{secrets.randbits(62)}"
    return Entry(entry.key + suffix, entry.directory, entry.name + suffix.encode())


def _open_file(entry: Entry, access: int) -> int:
    return os.open(entry.name, access | _NO_LINKS, dir_fd=entry.directory)


@contextmanager
def _lock_file(entry: Entry, path: str) -> Generator[os.stat_result]:
    """Lock a file against concurrent calls of `replace`.

    NFS only allows such a lock if the file is open for writing.

    Raises:
        TimeoutError: If another process does not release the lock in time.
    """
    descriptor = _open_file(entry, os.O_RDWR)
    try:
        wait_for_lock(descriptor, path)
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def write_staged(staged: Entry, content: bytes, like: os.stat_result | None) -> None:
    """Write a temporary file durably, with mode and owner of the file that it will replace."""
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
    """Rename `staged` to `entry`. If this replaced an unexpected file, undo it and raise an error."""
    mine = staged.identity()
    if not staged.exchange_with(entry):
        staged.rename_to(entry)
    elif (found := staged.identity()) != etag:
        staged.exchange_with(entry)
        if staged.identity() != mine:  # another writer has replaced our file, so its file is the newest
            staged.exchange_with(entry)
        raise _changed_error(entry, etag, found)


def require_etag(entry: Entry, etag: str) -> None:
    """Check that a file still has the expected identity.

    Raises:
        FileNotFoundError: If the file does not exist.
        ObjectChanged: If the file has another identity.
    """
    found = entry.identity()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.key)
    if found != etag:
        raise _changed_error(entry, etag, found)


def _changed_error(entry: Entry, etag: str, found: str | None) -> ObjectChanged:
    return ObjectChanged(f"{entry.key!r}: expected {etag} as read before, found {found}; left alone")


def put_back(aside: Entry, entry: Entry) -> None:
    """Give a file that was moved aside its old name, unless there is now another file of that name."""
    with suppress(FileExistsError):  # another program has written the object again, replacing this one
        aside.link_to(entry)


def _unlink_if_exists(staged: Entry) -> None:
    with suppress(FileNotFoundError):  # renamed to its target, or never created
        staged.unlink()
