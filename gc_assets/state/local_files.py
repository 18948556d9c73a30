"""Store the state on a local disk or a mounted file system."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gc_assets.core.errors import StateError
from gc_assets.core.file_locks import lock_exclusively
from gc_assets.core.moments import from_timestamp
from gc_assets.core.regular_files import read_regular
from gc_assets.state.backend import FileStat, outlives_process

# These errors mean that an entry was removed during the listing, or is a dangling link.
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The files under an absolute path. Conditional writers of a file wait for its lock file."""

    root: str

    @property
    def parallel_reads(self) -> int:
        return 1

    def uri(self, path: str) -> str:
        return f"file://{self.root}/{path}"

    def spark_uri(self, path: str) -> str:
        return self.uri(path)

    def read(self, path: str) -> bytes:
        return read_regular(f"{self.root}/{path}")

    def read_version(self, path: str) -> tuple[bytes, str]:
        content = self.read(path)
        return content, _version_of(content)

    def replace(self, path: str, content: bytes) -> None:
        local, durable = Path(f"{self.root}/{path}"), outlives_process(path)
        _make_directory(local.parent, durable=durable)
        temporary = local.with_name(f".{local.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as sink:
                sink.write(content)
                if durable:
                    sink.flush()
                    os.fsync(sink.fileno())
            temporary.replace(local)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _fsync_directory(local.parent)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        with _lock_path(Path(f"{self.root}/{path}"), durable=outlives_process(path)):
            try:
                found = self.read_version(path)[1]
            except FileNotFoundError:
                found = None
            if found != version:
                return None
            self.replace(path, content)
            return _version_of(content)

    def check_conditions(self) -> str:
        return "a file lock lets exactly one of several writers succeed"

    def free_bytes(self) -> int | None:
        # If the state does not exist yet, it would be created in the nearest existing directory.
        root = next(path for path in (Path(self.root), *Path(self.root).parents) if path.is_dir())
        found = os.statvfs(root)
        return found.f_bavail * found.f_frsize

    def missing_directories(self) -> Sequence[Path]:
        """Return the root and those of its parents that do not exist, beginning with the root."""
        return _missing(Path(self.root))

    def size(self, path: str) -> int:
        try:
            info = Path(f"{self.root}/{path}").stat()
        except NotADirectoryError:
            raise FileNotFoundError(f"{self.root}/{path}") from None
        if not stat.S_ISREG(info.st_mode):
            raise FileNotFoundError(f"{self.root}/{path}")
        return info.st_size

    def modified_at(self, path: str) -> datetime:
        return from_timestamp(Path(f"{self.root}/{path}").stat().st_mtime)

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]:
        found = _entries(f"{self.root}/{path}" if path else self.root, recursive=recursive)
        return sorted(FileStat(name, info.st_size) for name, info in found if stat.S_ISREG(info.st_mode))

    def directories(self, path: str) -> Sequence[str]:
        found = _entries(f"{self.root}/{path}" if path else self.root, recursive=False)
        return sorted(name for name, info in found if stat.S_ISDIR(info.st_mode))

    def delete(self, path: str) -> None:
        Path(f"{self.root}/{path}").unlink()

    def delete_directory(self, path: str) -> None:
        from pyarrow import fs  # slow to import, and not needed for reading

        fs.LocalFileSystem().delete_dir(f"{self.root}/{path}")


def _entries(directory: str, *, recursive: bool, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[tuple[str, os.stat_result]]:
    """List a directory and follow symbolic links.

    A missing directory counts as empty. Entries that disappear during the listing are skipped.

    Args:
        above: Device and inode of the directories above. Links to them are not followed.

    Yields:
        Relative path and status of each entry.

    Raises:
        StateError: If a name is not UTF-8.
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
    outer = above | {(status.st_dev, status.st_ino)}
    with found:
        for entry in found:
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                name = os.fsencode(entry.name)
                raise StateError(
                    f"{directory} contains the name {name!r}, which gc-assets does not write; move it out of the state"
                ) from None
            try:
                info = entry.stat()
            except OSError as error:
                if error.errno in _MISSING:
                    continue
                raise
            yield entry.name, info
            if recursive and stat.S_ISDIR(info.st_mode):
                inner = _entries(entry.path, recursive=True, above=outer) if (info.st_dev, info.st_ino) not in outer else ()
                yield from ((f"{entry.name}/{name}", child) for name, child in inner)


def _version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _lock_path(path: Path, *, durable: bool) -> Generator[None]:
    """Hold an exclusive lock for a path.

    Raises:
        StateError: If another process does not release the lock in time.
    """
    _make_directory(path.parent, durable=durable)
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_exclusively(lock))
        except TimeoutError as error:
            raise StateError(f"{lock}: {error.strerror}") from error
        yield


def _make_directory(directory: Path, *, durable: bool) -> None:
    """Create a directory and its parents. If `durable` is True, they survive a power failure."""
    if directory.is_dir():
        return
    new = _missing(directory) if durable else ()
    directory.mkdir(parents=True, exist_ok=True)
    for path in new:
        _fsync_directory(path.parent)


def _missing(directory: Path) -> Sequence[Path]:
    return [path for path in (directory, *directory.parents) if not path.exists()]


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
