"""Read access to objects on a local disk, which are addressed by `file:` URLs or paths.

Percent signs in addresses are part of the name and never decoded. In this package, paths are bytes,
because keys are UTF-8 no matter which locale the process has.
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
from gc_assets.core.printable import decode_name, is_utf8
from gc_assets.core.regular_files import NEVER_WAIT, require_regular
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES
from gc_assets.stores.local.mounts import find_mount_point, may_hang
from gc_assets.stores.protocol import RESERVED_PREFIX, StoredObject

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDENTITY = re.compile(r"\d+-(-?\d+)-\d+", re.ASCII)
# A mount that does not answer within this time is treated as unavailable.
_SEARCH_SECONDS = 1.0
# In the year 2262.
LATEST_NS = 2**63 - 1
# These errors mean that there is no object at an address.
_NO_OBJECT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_RESERVED_NAME = RESERVED_PREFIX.rstrip("/").encode()


def local_path(address: str) -> str:
    """Extract the path from an address.

    The forms `file:/p`, `file:///p`, `file://localhost/p` and `/p` are supported. Nothing in the
    path is decoded or normalized.

    Raises:
        StoreError: If the address does not have one of these forms.
    """
    if address.startswith("file:///") and "\0" not in address:  # the usual form, which a run parses for each container
        return address[7:]
    rest = address
    if address[:5].lower() == "file:":
        rest = address[5:]
        if rest.startswith("//"):
            authority, slash, path = rest[2:].partition("/")
            if authority.lower() not in {"", "localhost"}:
                raise StoreError(f"{address!r} contains the host {authority!r}; a local address is file:///path, file:/path or /path")
            rest = slash + path
    if not rest.startswith("/") or "\0" in rest:
        raise StoreError(f"{address!r} is not on a local disk; expected file:///path, file:/path or an absolute path")
    return rest


def etag_of(status: os.stat_result) -> str:
    """Build the identity of a file, which is `<size>-<mtime in ns>-<inode>`.

    It stays the same when the file is renamed, but changes when the file is rewritten.
    """
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def modified_us(etag: str) -> int | None:
    """Extract the modification time from an identity, in microseconds."""
    found = _IDENTITY.fullmatch(etag)
    return int(found[1]) // 1000 if found else None


def identity(address: str) -> str | None:
    """Return the identity of the file to which an address leads (see `Store.identity`)."""
    if scheme_of(address) != FILE or "\0" in address:  # file systems do not allow NUL in names
        return None
    try:
        status = _stat(address)
    except OSError as error:
        if error.errno in _NO_OBJECT:
            return None
        raise StoreError(
            f"cannot check live file {address}: {error.strerror}. It could be a file of a storage under another path. "
            "Make it readable for this process, or repair the link"
        ) from error
    return etag_of(status) if stat.S_ISREG(status.st_mode) else None


def is_hidden(address: str) -> bool:
    """Return True if an address may lead to a file that this process cannot examine.

    See `stores.store.local_file_is_hidden`.
    """
    if "\0" in address:
        return False
    try:
        if identity(address) is not None or not os.path.islink(_path_bytes(address)):  # noqa: PTH114  (a path of bytes)
            return False
        _stat(address)
    except StoreError:
        return True
    except OSError as error:
        # A dangling link. Its target may exist on another machine, or in a mount that this machine
        # lacks.
        return error.errno in {errno.ENOENT, errno.ENOTDIR}
    return False


def can_search(directory: str) -> bool | None:
    """Return whether this process can examine a directory's files, or None if it does not exist."""
    try:
        os.stat(f"{directory}/.")  # noqa: PTH116  (looking up `.` requires the permission to search the directory)
    except ValueError:  # no file system allows such a name
        return None
    except OSError as error:
        return None if error.errno in _NO_OBJECT else False
    return True


def can_search_in_time(directory: str) -> bool | None:
    """Call `can_search`, but return None if the file system does not respond in time."""
    try:
        return run_with_deadline(_SEARCH_SECONDS, find_mount_point(directory), lambda: can_search(directory), exclusive=True)
    except TimeoutError:
        return None


def real_path(address: str) -> str | None:
    """Resolve the symbolic links in an address (see `stores.store.resolve_links`)."""
    if scheme_of(address) != FILE or "\0" in address:
        return None
    try:
        return os.path.realpath(_path_bytes(address)).decode("utf-8")
    except UnicodeDecodeError:
        return None


def find_object(address: str) -> StoredObject | None:
    """Look up the regular file at an address (see `Store.find_object`)."""
    try:
        status = os.lstat(_path_bytes(address))
    except OSError as error:
        if error.errno in _NO_OBJECT:
            return None
        raise
    return StoredObject(etag_of(status), status.st_size, _read_time(status)) if stat.S_ISREG(status.st_mode) else None


def modified_ns(status: os.stat_result) -> int:
    """Return the modification time of a file in nanoseconds since 1970.

    If it does not fit into 64 bits, the latest possible time is returned, so that the file counts
    as new and is kept. The identity of the file still contains the real time.
    """
    is_representable = -(2**63) <= status.st_mtime_ns <= LATEST_NS
    return status.st_mtime_ns if is_representable else LATEST_NS


def _read_time(status: os.stat_result) -> datetime:
    return EPOCH + timedelta(microseconds=modified_ns(status) // 1000)


def content_of(source: BinaryIO, address: str) -> bytes:
    """Read a file completely.

    Raises:
        OSError: If the address is not a regular file, since reading a device or FIFO may never end.
            Also raised if the file is larger than any metadata file.
    """
    status = os.fstat(source.fileno())
    require_regular(status, address)
    if status.st_size > MAX_OBJECT_BYTES:
        raise OSError(errno.EFBIG, f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {status.st_size:,}", address)

    content = source.read(MAX_OBJECT_BYTES + 1)
    if len(content) > MAX_OBJECT_BYTES:
        raise OSError(errno.EFBIG, f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found a larger file that is growing", address)
    return content


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Implements `Objects` for local disks.

    Reads from mounts that may hang are aborted after `read_seconds`.
    """

    read_seconds: float = field(default=READ_SECONDS, kw_only=True)

    def read(self, address: str) -> bytes:
        return self.read_identified(address)[0]

    def read_identified(self, address: str) -> tuple[bytes, str]:
        # The time limit needs a thread, which would take longer than reading from a local disk.
        if may_hang(local_path(address)):
            return run_with_deadline(self.read_seconds, address, lambda: self._read_identified(address))
        return self._read_identified(address)

    def _read_identified(self, address: str) -> tuple[bytes, str]:
        with os.fdopen(os.open(os.fsdecode(_path_bytes(address)), os.O_RDONLY | NEVER_WAIT), "rb") as source:
            etag = etag_of(os.fstat(source.fileno()))
            return content_of(source, address), etag

    def cached_identity(self, address: str) -> str | None:
        try:
            return identity(address)
        except StoreError:
            return None

    def identity(self, address: str) -> str | None:
        return identity(address)

    def size(self, address: str) -> int:
        status = _stat(address)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{address} is not a regular file")
        return status.st_size

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """List the objects under a prefix, without the directory reserved for gc-assets itself.

        Nothing else is skipped, because a skipped metadata file could reference live files.

        Raises:
            OSError: If a directory cannot be read.
            StoreError: If an entry is a symbolic link or a special file, or if its name is not
                UTF-8.
        """
        if not prefix.endswith("/"):
            raise StoreError(f"cannot list {prefix!r}: a prefix must end in '/'")
        top = _path_bytes(prefix)
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
                        raise StoreError(f"{prefix}{decode_name(relative)}: the name is not UTF-8, so no address can contain it; rename it")
                    if entry.is_dir(follow_symlinks=False):
                        if relative != _RESERVED_NAME:
                            pending.append(relative + b"/")
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        raise StoreError(
                            f"{prefix}{relative.decode()}: expected a file or a directory, found {_describe_entry(entry)}; move it away"
                        )
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed while the directory was being read
                    yield prefix + relative.decode(), status.st_size, _read_time(status)

    def list_identities(self, prefix: str) -> Iterator[tuple[str, str]]:
        for address, _, _ in self.list(prefix):
            if (found := identity(address)) is not None:
                yield address, found


def _stat(address: str) -> os.stat_result:
    # `Path.stat` would take five times as long, and a run calls this for every known container.
    return os.stat(_path_bytes(address))  # noqa: PTH116


def _path_bytes(address: str) -> bytes:
    return local_path(address).encode("utf-8")


def _describe_entry(entry: os.DirEntry[bytes]) -> str:
    return "a symbolic link" if entry.is_symlink() else "a socket, fifo or device"
