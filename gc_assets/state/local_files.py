"""The state's files on a local disk, or on a file system mounted like one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from pyarrow import fs

from gc_assets.state.place import FileStat, outlives_its_writer


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files below an absolute path. A lock beside each file makes conditional writers wait."""

    root: str

    @property
    def reads_at_once(self) -> int:
        return 1

    def uri(self, path: str) -> str:
        return f"file://{self.root}/{path}"

    def spark_uri(self, path: str) -> str:
        return self.uri(path)

    def read(self, path: str) -> bytes:
        with fs.LocalFileSystem().open_input_file(f"{self.root}/{path}") as source:
            return cast(bytes, source.read())

    def read_version(self, path: str) -> tuple[bytes, str]:
        content = self.read(path)
        return content, _version_of(content)

    def replace(self, path: str, content: bytes) -> None:
        local, lasts = Path(f"{self.root}/{path}"), outlives_its_writer(path)
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
        with _exclusive(Path(f"{self.root}/{path}"), lasts=outlives_its_writer(path)):
            try:
                found = self.read_version(path)[1]
            except FileNotFoundError:
                found = None
            if found != version:
                return None
            self.replace(path, content)
            return _version_of(content)

    def prove(self) -> str:
        return "a lock of the disk lets one of several writers succeed"

    def size(self, path: str) -> int:
        info = fs.LocalFileSystem().get_file_info(f"{self.root}/{path}")
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{self.root}/{path}")
        return cast(int, info.size)

    def modified_at(self, path: str) -> datetime:
        return datetime.fromtimestamp(Path(f"{self.root}/{path}").stat().st_mtime, UTC)

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]:
        base = f"{self.root}/{path}" if path else self.root
        infos = fs.LocalFileSystem().get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
        found = [FileStat(info.path[len(base) :].lstrip("/"), info.size) for info in infos if info.type == fs.FileType.File]
        return sorted(found)

    def directories(self, path: str) -> Sequence[str]:
        selector = fs.FileSelector(f"{self.root}/{path}" if path else self.root, allow_not_found=True)
        infos = fs.LocalFileSystem().get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def delete(self, path: str) -> None:
        fs.LocalFileSystem().delete_file(f"{self.root}/{path}")

    def delete_directory(self, path: str) -> None:
        fs.LocalFileSystem().delete_dir(f"{self.root}/{path}")


def _version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _exclusive(path: Path, *, lasts: bool) -> Generator[None]:
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
    """Makes the directory and its parents. What lasts survives a power cut: a directory's name lies
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
