"""Whole small files in the state, on a local disk or an object store, and the one atomic step that
publication needs.

Knows bytes and paths, not what they mean. Paths are relative to the root.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, cast

from pyarrow import fs

from gc_assets.core.errors import StateError, UsageError

# A conditional write that lost against another begins again. This many losses in a row are no
# coincidence.
_ATTEMPTS: Final = 200
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileStat(NamedTuple):
    """Name relative to the listed directory, and size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Files:
    """Files below a root: `file:///…`, a bare path, or `s3://…`/`s3a://…`. Pickles: the connection
    opens on use.
    """

    root: str

    def _open(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.root and not self.root.startswith("file:"):
            return fs.LocalFileSystem(), str(Path(self.root).absolute())
        if self.root.startswith("file:"):
            return fs.LocalFileSystem(), "/" + self.root.removeprefix("file:").lstrip("/").rstrip("/")
        scheme, _, rest = self.root.partition("://")
        if scheme not in {"s3", "s3a"}:
            raise UsageError(f"state: {self.root!r} has the scheme {scheme!r}; file:// and s3a:// are known")
        filesystem, path = fs.FileSystem.from_uri(f"s3://{rest}")
        return filesystem, path.rstrip("/")

    def uri(self, path: str) -> str:
        """Returns the address by which Spark reads `path`."""
        filesystem, root = self._open()
        if isinstance(filesystem, fs.LocalFileSystem):
            return f"file://{root}/{path}"
        return f"s3a://{root}/{path}"

    def read(self, path: str) -> bytes:
        """Returns the content. Raises `FileNotFoundError` where there is no such file."""
        filesystem, root = self._open()
        with filesystem.open_input_file(f"{root}/{path}") as source:
            return cast(bytes, source.read())

    def replace(self, path: str, content: bytes) -> None:
        """Replaces the content atomically: readers see the old content or the new one, nothing in
        between.
        """
        filesystem, root = self._open()
        target = f"{root}/{path}"
        if not isinstance(filesystem, fs.LocalFileSystem):
            with filesystem.open_output_stream(target) as sink:
                sink.write(content)
            return
        local = Path(target)
        _make_directory(local.parent)
        temporary = local.with_name(f".{local.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as sink:
                sink.write(content)
                sink.flush()
                os.fsync(sink.fileno())
            temporary.replace(local)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_directory(local.parent)

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Returns the content, and a token that `replace_if` compares. Equal tokens mean equal
        content (an object store's ETag).

        Raises `FileNotFoundError` where there is no such file.
        """
        content = self.read(path)
        return content, hashlib.sha256(content).hexdigest()

    def replace_if(self, path: str, content: bytes, version: str | None) -> bool:
        """Replaces `path` only while it is at `version`, or only while it is absent if `version` is
        None. Returns whether it did.

        Of several writers in any processes that saw the same version exactly one succeeds. Object
        stores have a put with If-Match for this, and one with If-None-Match: *. They are not built
        yet, so anything but a local disk raises `UsageError`.
        """
        filesystem, root = self._open()
        if not isinstance(filesystem, fs.LocalFileSystem):
            raise UsageError(f"state: {self.root!r} is no local disk; only there can a file be replaced conditionally so far")
        with _exclusive(Path(f"{root}/{path}")):
            try:
                found = self.read_version(path)[1]
            except FileNotFoundError:
                found = None
            if found != version:
                return False
            self.replace(path, content)
            return True

    def change(self, path: str, new: Callable[[bytes | None], bytes]) -> None:
        """Replaces the content by the result of `new`, which gets the content so far, or None where
        there is no file.

        `new` is called again on what another process wrote meanwhile. Raises `StateError` where
        that does not end.
        """
        for attempt in range(_ATTEMPTS):
            try:
                before, version = self.read_version(path)
            except FileNotFoundError:
                before, version = None, None
            after = new(before)
            if after == before or self.replace_if(path, after, version):
                return
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 50)))  # noqa: S311  (spreads writers, no secret)
        raise StateError(f"{self.root}/{path} was replaced by other processes {_ATTEMPTS} times in a row; repeat this when less runs")

    def size(self, path: str) -> int:
        """Returns the size in bytes. Raises `FileNotFoundError` where there is no such file."""
        filesystem, root = self._open()
        info = filesystem.get_file_info(f"{root}/{path}")
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{root}/{path}")
        return cast(int, info.size)

    def list(self, path: str, *, recursive: bool = False) -> Sequence[FileStat]:
        """Returns the files (not directories) below `path`, in order of name. The list is empty
        where there is no such directory.
        """
        filesystem, root = self._open()
        base = f"{root}/{path}" if path else root
        infos = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
        found = [FileStat(info.path[len(base) :].lstrip("/"), info.size) for info in infos if info.type == fs.FileType.File]
        return sorted(found)

    def directories(self, path: str) -> Sequence[str]:
        """Returns the names of the directories directly below `path`, in order."""
        filesystem, root = self._open()
        infos = filesystem.get_file_info(fs.FileSelector(f"{root}/{path}" if path else root, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def delete(self, path: str) -> None:
        filesystem, root = self._open()
        filesystem.delete_file(f"{root}/{path}")

    def delete_directory(self, path: str) -> None:
        filesystem, root = self._open()
        filesystem.delete_dir(f"{root}/{path}")


def may_not_write(error: OSError) -> bool:
    """Says whether the error tells that this process only reads the state."""
    return error.errno in _READ_ONLY


@contextmanager
def _exclusive(path: Path) -> Generator[None]:
    """Holds a name for one holder at a time. The kernel frees it when a process dies."""
    _make_directory(path.parent)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_directory(directory: Path) -> None:
    """Makes the directory and its parents so that they survive a power cut: a directory's name lies
    in its parent.
    """
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in new:
        _fsync_directory(path.parent)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
