"""Conditional changes of single objects on a local disk: replace, create, remove.

New bytes are written beside their place and renamed, so that a reader or a crash meets whole
objects only. A crash may leave a file named `<name>#<digits>`. The library behind icechunk takes
such a name for an upload under way and lists it nowhere. To an inventory it is a file that nothing
refers to. Knows bytes and identities, not what they mean.
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

from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import ObjectChanged
from gc_assets.stores.local.mounts import may_hang
from gc_assets.stores.local.objects import NEVER_WAIT, LocalObjects, content_of, etag_of, local_path
from gc_assets.stores.local.safe_paths import Entry, Tree

_NO_LINKS = os.O_NOFOLLOW | NEVER_WAIT
_NEW_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class EditableLocalObjects(LocalObjects):
    """`EditableObjects` on local disks."""

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        if may_hang(local_path(address)):
            return run_with_deadline(self.read_seconds, address, lambda: self._with_etag(address))
        return self._with_etag(address)

    def _with_etag(self, address: str) -> tuple[bytes, str]:
        with _place(address) as place, os.fdopen(_opened(place, os.O_RDONLY), "rb") as source:
            etag = etag_of(os.fstat(source.fileno()))
            return content_of(source, address), etag

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replaces as the protocol says; mode and owner stay. Of two calls at once one waits for
        the other, by a lock on the file.

        A writer that takes no lock and renames its own file to this place in the microseconds
        between comparing and renaming is overwritten. No writer of icechunk rewrites a snapshot
        except its expiry.
        """
        with _place(address) as place, _locked(place) as held:
            staged = _staged(place)
            _require(place, etag)
            try:
                _write(staged, content, like=held)
                _require(place, etag)
                staged.rename_to(place)
            finally:
                _unlink_if_there(staged)
            place.sync_directory()

    def create(self, address: str, content: bytes) -> None:
        with _place(address, create=True) as place:
            staged = _staged(place)
            try:
                _write(staged, content, like=None)
                staged.link_to(place)
            finally:
                _unlink_if_there(staged)
            place.sync_directory()

    def remove(self, address: str, etag: str) -> None:
        """Removes as the protocol says. The file is moved aside before it is compared for the last
        time, so that nothing else is ever destroyed.
        """
        with _place(address) as place:
            _require(place, etag)
            aside = _staged(place)
            place.rename_to(aside)
            found = aside.identity()
            if found != etag:
                _put_back(aside, place)
            aside.unlink()
            place.sync_directory()
            if found != etag:
                raise _changed(place, etag, found)


@contextmanager
def _place(address: str, *, create: bool = False) -> Generator[Entry]:
    """Opens the object's directory and yields its name there. `create` makes that directory."""
    parent, _, name = local_path(address).rpartition("/")
    above, _, directory = parent.rpartition("/")
    with Tree(above or "/").entry(f"{directory}/{name}", create=create) as place:
        if place.directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
        yield place


def _staged(place: Entry) -> Entry:
    """Returns a new name beside an object."""
    suffix = f"#{secrets.randbits(62)}"
    return Entry(place.key + suffix, place.directory, place.name + suffix.encode())


def _opened(place: Entry, access: int) -> int:
    return os.open(place.name, access | _NO_LINKS, dir_fd=place.directory)


@contextmanager
def _locked(place: Entry) -> Generator[os.stat_result]:
    """Opens the file and locks it against other calls of `replace`. It is opened for writing,
    because a lock on NFS needs it.
    """
    descriptor = _opened(place, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _write(staged: Entry, content: bytes, like: os.stat_result | None) -> None:
    """Writes the bytes to disk under the staged name, with mode and owner of the file that they are
    to replace.
    """
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


def _require(place: Entry, etag: str) -> None:
    found = place.identity()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.key)
    if found != etag:
        raise _changed(place, etag, found)


def _changed(place: Entry, etag: str, found: str | None) -> ObjectChanged:
    return ObjectChanged(f"{place.key!r}: expected {etag}, which was read, found {found}; left alone")


def _put_back(aside: Entry, place: Entry) -> None:
    with suppress(FileExistsError):  # written again meanwhile: what lies aside is what that writer meant to replace
        aside.link_to(place)


def _unlink_if_there(staged: Entry) -> None:
    with suppress(FileNotFoundError):  # renamed to its place, or never made
        staged.unlink()
