"""Local disk as objects: addresses to paths, the identity of a file, whole reads.

Knows `file:` spellings and bare paths. Percent signs are data and never decoded. Paths are bytes
inside this package: keys are UTF-8 whatever the locale of the process.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from gc_assets.core.deadline import READ_SECONDS, run_with_deadline
from gc_assets.core.errors import StoreError
from gc_assets.core.paths import FILE, scheme_of
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES
from gc_assets.stores.local.mounts import may_hang
from gc_assets.stores.protocol import RESERVED_PREFIX

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDENTITY = re.compile(r"\d+-(-?\d+)-\d+", re.ASCII)
# Opening a FIFO waits for its other end, and opening a terminal may make it ours.
NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# In the year 2262.
LATEST_NS = 2**63 - 1
_RESERVED_NAME = RESERVED_PREFIX.rstrip("/").encode()


def local_path(address: str) -> str:
    """Returns the absolute path that `file:/p`, `file:///p`, `file://localhost/p` or `/p` names,
    exactly as spelled after the scheme.

    Raises `StoreError` for every other address.
    """
    rest = address
    if address[:5].lower() == "file:":
        rest = address[5:]
        if rest.startswith("//"):
            authority, slash, path = rest[2:].partition("/")
            if authority.lower() not in {"", "localhost"}:
                raise StoreError(f"{address!r} names the host {authority!r}; a local address is file:///path, file:/path or /path")
            rest = slash + path
    if not rest.startswith("/") or "\0" in rest:
        raise StoreError(f"{address!r} is not on a local disk; expected file:///path, file:/path or an absolute path")
    return rest


def etag_of(status: os.stat_result) -> str:
    """Returns the identity of a file's bytes: `<size>-<mtime in ns>-<inode>`. A rename keeps it, a
    rewrite does not.
    """
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def modified_us(etag: str) -> int | None:
    """Returns the time of modification in an identity, in microseconds, or null where it has none."""
    found = _IDENTITY.fullmatch(etag)
    return int(found[1]) // 1000 if found else None


def identity(address: str) -> str | None:
    """Returns the identity of the file that an address leads to, as `Store.identity` says."""
    if scheme_of(address) != FILE:
        return None
    try:
        status = _status(address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(
            f"live file {address}: {error.strerror}, so nobody can tell whether it is a file of a storage under another name; "
            "make it readable for this process, or mend the link"
        ) from error
    return etag_of(status) if stat.S_ISREG(status.st_mode) else None


def modified_ns(status: os.stat_result) -> int:
    """Returns when a file was modified, in nanoseconds since 1970. A time that 64 bits cannot tell
    becomes the latest that they can: such a file counts as young, and as another one than its
    identity says.
    """
    known = -(2**63) <= status.st_mtime_ns <= LATEST_NS
    return status.st_mtime_ns if known else LATEST_NS


def content_of(source: BinaryIO, address: str) -> bytes:
    """Returns the bytes of an open file. Raises `OSError` for anything but a regular file, which
    may never end, and for a file that is larger than any metadata.
    """
    status = os.fstat(source.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "expected a regular file, found a directory, socket, fifo or device", address)
    if status.st_size > MAX_OBJECT_BYTES:
        raise OSError(errno.EFBIG, f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {status.st_size:,}", address)

    content = source.read(MAX_OBJECT_BYTES + 1)
    if len(content) > MAX_OBJECT_BYTES:
        raise OSError(errno.EFBIG, f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found more, and it grows", address)
    return content


def is_utf8(name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """`Objects` on local disks. A read from a mount that may hang is waited for `read_seconds`."""

    read_seconds: float = field(default=READ_SECONDS, kw_only=True)

    def read(self, address: str) -> bytes:
        return self.read_identified(address)[0]

    def read_identified(self, address: str) -> tuple[bytes, str]:
        # A thread for each read would cost more than the read of a disk of this machine.
        if may_hang(local_path(address)):
            return run_with_deadline(self.read_seconds, address, lambda: self._identified(address))
        return self._identified(address)

    def _identified(self, address: str) -> tuple[bytes, str]:
        with os.fdopen(os.open(os.fsdecode(_raw(address)), os.O_RDONLY | NEVER_WAIT), "rb") as source:
            etag = etag_of(os.fstat(source.fileno()))
            return content_of(source, address), etag

    def cached_identity(self, address: str) -> str | None:
        try:
            return identity(address)
        except StoreError:
            return None

    def size(self, address: str) -> int:
        status = _status(address)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{address} is not a file")
        return status.st_size

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Lists as the protocol says, without the collector's own prefix directly below `prefix`.

        An unreadable directory raises its `OSError`. A symbolic link, a name that is not UTF-8 or a
        special file raises `StoreError`: a listing of a lake's metadata that skips an entry may
        take what that entry protects for garbage.
        """
        if not prefix.endswith("/"):
            raise StoreError(f"{prefix!r} is not a prefix to list: it must end in '/'")
        top = _raw(prefix)
        pending = [b""]
        while pending:
            below = pending.pop()
            try:
                scan = os.scandir(top + below)
            except FileNotFoundError:
                continue
            with scan:
                for entry in scan:
                    relative = below + entry.name
                    if not is_utf8(entry.name):
                        raise StoreError(f"{prefix}{printable(relative)}: the name is not UTF-8, so no address can name it; rename it")
                    if entry.is_dir(follow_symlinks=False):
                        if relative != _RESERVED_NAME:
                            pending.append(relative + b"/")
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        raise StoreError(
                            f"{prefix}{relative.decode()}: expected a file or a directory, found {_describe(entry)}; move it away"
                        )
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # gone since the directory was read: as if it had been gone before
                    yield prefix + relative.decode(), status.st_size, EPOCH + timedelta(microseconds=modified_ns(status) // 1000)


def _status(address: str) -> os.stat_result:
    # A night asks for every container that it knows, and pathlib takes five times the call itself.
    return os.stat(_raw(address))  # noqa: PTH116


def _raw(address: str) -> bytes:
    return local_path(address).encode("utf-8")


def printable(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _describe(entry: os.DirEntry[bytes]) -> str:
    return "a symbolic link" if entry.is_symlink() else "a socket, fifo or device"
