"""Whole small files in the state, on a local disk or an object store, and the one atomic step that publication needs.

Knows bytes and paths, not what they mean. Paths are relative to the root.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from pyarrow import fs

from gc_assets.core.errors import UsageError


class FileStat(NamedTuple):
    """Name relative to the listed directory, and size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Files:
    """Files below a root: `file:///…`, a bare path, or `s3://…`/`s3a://…`. Pickles; the connection opens on use."""

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
        """The address by which Spark reads `path`."""
        filesystem, root = self._open()
        if isinstance(filesystem, fs.LocalFileSystem):
            return f"file://{root}/{path}"
        return f"s3a://{root}/{path}"

    def read(self, path: str) -> bytes:
        """Raises `FileNotFoundError` where there is no such file."""
        filesystem, root = self._open()
        with filesystem.open_input_file(f"{root}/{path}") as source:
            return cast(bytes, source.read())

    def replace(self, path: str, content: bytes) -> None:
        """`path` holds `content`, or what it held before: nothing in between is ever visible."""
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

    def size(self, path: str) -> int:
        """Raises `FileNotFoundError` where there is no such file."""
        filesystem, root = self._open()
        info = filesystem.get_file_info(f"{root}/{path}")
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{root}/{path}")
        return cast(int, info.size)

    def list(self, path: str, *, recursive: bool = False) -> Sequence[FileStat]:
        """Files (not directories) below `path`, in order of name; empty where there is no such directory."""
        filesystem, root = self._open()
        base = f"{root}/{path}" if path else root
        infos = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
        found = [FileStat(info.path[len(base) :].lstrip("/"), info.size) for info in infos if info.type == fs.FileType.File]
        return sorted(found)

    def directories(self, path: str) -> Sequence[str]:
        """Names of the directories directly below `path`, in order."""
        filesystem, root = self._open()
        infos = filesystem.get_file_info(fs.FileSelector(f"{root}/{path}" if path else root, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def delete(self, path: str) -> None:
        filesystem, root = self._open()
        filesystem.delete_file(f"{root}/{path}")

    def delete_directory(self, path: str) -> None:
        filesystem, root = self._open()
        filesystem.delete_dir(f"{root}/{path}")


def _make_directory(directory: Path) -> None:
    """The directory and its parents exist, also after a power cut: a directory's name lies in its parent."""
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
