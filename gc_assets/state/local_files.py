"""The state's files on a local disk, or on a file system mounted like one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gc_assets.core.errors import StateError
from gc_assets.state.backend import FileStat, outlives_process

# Why there is nothing to be said of a name: it went meanwhile, or is a link that leads nowhere.
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files below an absolute path. A lock beside each file makes conditional writers wait."""

    root: str

    @property
    def parallel_reads(self) -> int:
        return 1

    def uri(self, path: str) -> str:
        return f"file://{self.root}/{path}"

    def spark_uri(self, path: str) -> str:
        return self.uri(path)

    def read(self, path: str) -> bytes:
        return Path(f"{self.root}/{path}").read_bytes()

    def read_version(self, path: str) -> tuple[bytes, str]:
        content = self.read(path)
        return content, _version_of(content)

    def replace(self, path: str, content: bytes) -> None:
        local, lasts = Path(f"{self.root}/{path}"), outlives_process(path)
        _make_directory(local.parent, lasts=lasts)
        temporary = local.with_name(f".{local.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as sink:
                sink.write(content)
                if lasts:
                    sink.flush()
                    os.fsync(sink.fileno())
            temporary.replace(local)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if lasts:
            _fsync_directory(local.parent)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        with _lock_path(Path(f"{self.root}/{path}"), lasts=outlives_process(path)):
            try:
                found = self.read_version(path)[1]
            except FileNotFoundError:
                found = None
            if found != version:
                return None
            self.replace(path, content)
            return _version_of(content)

    def check_conditions(self) -> str:
        return "a lock of the disk lets one of several writers succeed"

    def size(self, path: str) -> int:
        try:
            info = Path(f"{self.root}/{path}").stat()
        except NotADirectoryError:
            raise FileNotFoundError(f"{self.root}/{path}") from None
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(f"{self.root}/{path}")
        return info.st_size

    def modified_at(self, path: str) -> datetime:
        return datetime.fromtimestamp(Path(f"{self.root}/{path}").stat().st_mtime, UTC)

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]:
        found = _entries(f"{self.root}/{path}" if path else self.root, recursive=recursive)
        return sorted(FileStat(name, info.st_size) for name, info in found if stat.S_ISREG(info.st_mode))

    def directories(self, path: str) -> Sequence[str]:
        found = _entries(f"{self.root}/{path}" if path else self.root, recursive=False)
        return sorted(name for name, info in found if stat.S_ISDIR(info.st_mode))

    def delete(self, path: str) -> None:
        Path(f"{self.root}/{path}").unlink()

    def delete_directory(self, path: str) -> None:
        from pyarrow import fs  # slow to load, and of no use to a reader

        fs.LocalFileSystem().delete_dir(f"{self.root}/{path}")


def _entries(directory: str, *, recursive: bool, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what lies in a directory, by its path there, and what each link leads to. Nothing where
    there is no such directory; what goes meanwhile is passed over. So is a link that leads to itself
    or up to one of the directories `above` (device and inode).

    Raises `StateError` for a name that is no UTF-8.
    """
    try:
        status = Path(directory).stat()
        found = os.scandir(directory)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if Path(directory).exists():
            raise
        return
    here = above | {(status.st_dev, status.st_ino)}
    with found:
        for entry in found:
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                raise StateError(f"{directory} holds the name {os.fsencode(entry.name)!r}, which no run of gc-assets wrote") from None
            try:
                info = entry.stat()
            except OSError as error:
                if error.errno in _MISSING:
                    continue
                raise
            yield entry.name, info
            if recursive and stat.S_ISDIR(info.st_mode):
                inner = _entries(entry.path, recursive=True, above=here) if (info.st_dev, info.st_ino) not in here else ()
                yield from ((f"{entry.name}/{name}", below) for name, below in inner)


def _version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _lock_path(path: Path, *, lasts: bool) -> Generator[None]:
    """Holds a name for one holder at a time. The kernel frees it when a process dies."""
    _make_directory(path.parent, lasts=lasts)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_directory(directory: Path, *, lasts: bool) -> None:
    """Make the directory and its parents. What lasts survives a power cut: a directory's name lies
    in its parent.
    """
    new = [path for path in (directory, *directory.parents) if not path.exists()] if lasts else []
    directory.mkdir(parents=True, exist_ok=True)
    for path in new:
        _fsync_directory(path.parent)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
