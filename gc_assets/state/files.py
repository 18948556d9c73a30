"""Whole small files in the state, on a local disk or an object store, and the one atomic step that
publication needs.

Knows bytes and paths, not what they mean. Paths are relative to the root.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gc_assets.config.s3 import DEFAULT_CONNECTIONS, S3Config
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.paths import S3, scheme_of
from gc_assets.state.backend import ABSENT, Backend, FileStat, VersionedContent
from gc_assets.state.local_files import LocalFiles

# A conditional write that lost against another begins again. This many losses in a row are no
# coincidence.
_ATTEMPTS: Final = 200
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Files:
    """Files below a root: `file:///…`, a bare path, or `s3://…` (`s3a://` and `s3n://` are the same
    place). `s3` says how a place on S3 is reached. Pickles, and holds no secret: the connection
    opens on use.
    """

    root: str
    s3: S3Config = DEFAULT_CONNECTIONS.default

    def _backend(self) -> Backend:
        if "://" not in self.root and not self.root.startswith("file:"):
            return LocalFiles(str(Path(self.root).absolute()))
        if self.root.startswith("file:"):
            return LocalFiles("/" + self.root.removeprefix("file:").lstrip("/").rstrip("/"))
        if scheme_of(self.root) == S3:
            from gc_assets.state.s3_files import s3_files  # what it imports is slow to load, and of no use on a disk

            return s3_files(self.root, self.s3)
        scheme = self.root.partition("://")[0]
        raise UsageError(f"state: {self.root!r} has the scheme {scheme!r}; file:// and s3:// are known")

    @property
    def are_local(self) -> bool:
        """True on a disk that every process of the cluster reads by the same path."""
        return isinstance(self._backend(), LocalFiles)

    def uri(self, path: str) -> str:
        """Return the address of `path`."""
        return self._backend().uri(path)

    def spark_uri(self, path: str) -> str:
        """Return the address by which a file system of Spark knows `path`: `file://`, or `s3a://`
        where it has one for that.
        """
        return self._backend().spark_uri(path)

    def read(self, path: str) -> bytes:
        """Return the content. Raises `FileNotFoundError` where there is no such file."""
        return self._backend().read(path)

    def contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of files in the order of their paths. From an object store some are
        read ahead.
        """
        at_once = self._backend().parallel_reads
        if at_once == 1 or len(paths) == 1:
            yield from map(self.read, paths)
            return
        waiting, under_way = iter(paths), deque[Future[bytes]]()
        with ThreadPoolExecutor(at_once) as pool:
            for _ in range(len(paths)):
                while len(under_way) < at_once and (path := next(waiting, None)) is not None:
                    under_way.append(pool.submit(self.read, path))
                yield under_way.popleft().result()

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content atomically: readers see the old content or the new one, nothing in
        between.

        Where this raises, an object store may have written nevertheless, and may even do so later.
        """
        self._backend().replace(path, content)

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Return the content, and a token that `replace_if` compares. Equal tokens mean equal
        content (an object store's ETag).

        Raises `FileNotFoundError` where there is no such file.
        """
        return self._backend().read_version(path)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        """Replace `path` only while it is at `version`, or only while it is absent if `version` is
        None. Returns the token of the new content, as `read_version` would, or None where it did
        not replace.

        Of several writers in any processes that saw the same version exactly one succeeds. On an
        object store, writers of the very same bytes may all be told that they did, and a writer
        whose answer was lost may be told that it did not where another has replaced its content
        since. Raises `StateError` where the store turns out not to compare.
        """
        return self._backend().replace_if(path, content, version)

    def check_conditions(self) -> str:
        """Return in words why `replace_if` can be relied on here. Raises `StateError` where it
        cannot.
        """
        return self._backend().check_conditions()

    def change(self, path: str, new: Callable[[bytes | None], bytes], seen: VersionedContent | None = None) -> VersionedContent:
        """Replace the content by the result of `new`, which gets the content so far, or None where
        there is no file. Returns what stands there afterwards.

        Whoever has just `seen` what is there spares this a request. It need not be there any more:
        `new` is called again on what another process wrote meanwhile. Raises `StateError` where
        that does not end.
        """
        for attempt in range(_ATTEMPTS):
            before = seen if seen is not None else self._read_or_absent(path)
            after = new(before.content)
            if after == before.content and seen is None:
                return before
            if after != before.content and (version := self.replace_if(path, after, before.version)) is not None:
                return VersionedContent(after, version)
            if seen is not None:
                seen = None
                continue
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 50)))  # noqa: S311  (spreads writers, no secret)
        raise StateError(f"{self.root}/{path} was replaced by other processes {_ATTEMPTS} times in a row; repeat this when less runs")

    def _read_or_absent(self, path: str) -> VersionedContent:
        try:
            return VersionedContent(*self.read_version(path))
        except FileNotFoundError:
            return ABSENT

    def size(self, path: str) -> int:
        """Return the size in bytes. Raises `FileNotFoundError` where there is no such file."""
        return self._backend().size(path)

    def sizes(self, paths: Sequence[str]) -> Sequence[int]:
        """Return the sizes of files, by one listing of each directory that holds some of them.
        Raises `FileNotFoundError` for a file that is not there.
        """
        directories = sorted({path.rpartition("/")[0] for path in paths})
        with ThreadPoolExecutor(self._backend().parallel_reads) as pool:
            listed = dict(zip(directories, pool.map(self.list, directories), strict=True))
        found = {f"{directory}/{stat.name}": stat.size_bytes for directory, stats in listed.items() for stat in stats}
        if gone := [path for path in paths if path not in found]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.root}/{gone[0]}")
        return [found[path] for path in paths]

    def modified_at(self, path: str) -> datetime:
        """Return when the file was written, by the clock of the disk or store."""
        return self._backend().modified_at(path)

    def list(self, path: str, *, recursive: bool = False) -> Sequence[FileStat]:
        """Return the files (not directories) below `path`, in order of name. The list is empty
        where there is no such directory.
        """
        return self._backend().list(path, recursive=recursive)

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories directly below `path`, in order."""
        return self._backend().directories(path)

    def delete(self, path: str) -> None:
        """Delete a file that was there. An object store does not tell whether it was."""
        self._backend().delete(path)

    def delete_directory(self, path: str) -> None:
        """Delete a directory and everything below it. An object store has no directories, so it
        does not tell whether this one was there.
        """
        if not path.strip("/"):
            raise ValueError("the whole state is no directory to delete")
        self._backend().delete_directory(path)


def is_read_only(error: OSError) -> bool:
    """Return True if the error tells that this process only reads the state."""
    return error.errno in _READ_ONLY
