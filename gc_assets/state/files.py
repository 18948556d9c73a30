"""Access the files of the state, which may be on a local disk or in an object store.

All paths are relative to the root of the state. Files are replaced atomically.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.paths import AZURE, FILE, GCS, S3, scheme_of
from gc_assets.state.backend import ABSENT, Backend, FileStat, VersionedContent
from gc_assets.state.local_files import LocalFiles

# Maximum number of attempts if other writers keep replacing the same file.
_ATTEMPTS: Final = 200
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_Settings = TypeVar("_Settings", bound=StoreSettings)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def _open_s3(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.config.s3 import S3Config
    from gc_assets.s3.bucket import S3Bucket  # imports slow modules that a local state does not need
    from gc_assets.state.bucket_files import BucketFiles

    return BucketFiles(S3Bucket.of(root, _without_change_role(settings, S3Config)), "s3a")


def _open_azure(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.azure.bucket import AzureBucket
    from gc_assets.config.azure import AzureConfig
    from gc_assets.state.bucket_files import BucketFiles

    return BucketFiles(AzureBucket.of(root, _without_change_role(settings, AzureConfig)), AZURE)


def _open_gcs(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.config.gcs import GcsConfig
    from gc_assets.gcs.bucket import GcsBucket
    from gc_assets.state.bucket_files import BucketFiles

    return BucketFiles(GcsBucket.of(root, _without_change_role(settings, GcsConfig)), GCS)


def _without_change_role(settings: StoreSettings | None, kind: type[_Settings]) -> _Settings:
    """Remove the changing role from settings, because scheduled runs write the state without it."""
    found = settings if isinstance(settings, kind) else kind()
    return found.model_copy(update={name: None for name in kind.IDENTITY_KEYS if name.startswith("apply_")})


@functools.lru_cache(maxsize=16)
def _open_absolute(root: str) -> LocalFiles:
    """Open the files under a path. The result is cached, because even a small run often needs it."""
    return LocalFiles(str(Path(root)))


# Functions that open the files under an address, by scheme.
_BACKENDS: Final[Mapping[str, Callable[[str, StoreSettings | None], Backend]]] = {S3: _open_s3, AZURE: _open_azure, GCS: _open_gcs}


@dataclass(frozen=True, slots=True)
class Files:
    """The files under a root.

    Instances are pickled and sent to Spark executors. They do not contain secrets, because
    connections are opened when needed.

    Attributes:
        root: An address such as `file:///…`, a plain path, or an address in an object store.
        settings: Settings of the object store, or None for the defaults.
    """

    root: str
    settings: StoreSettings | None = None

    def _backend(self) -> Backend:
        if self.root.startswith("/"):
            return _open_absolute(self.root)
        if "://" not in self.root and not self.root.startswith("file:"):
            return LocalFiles(str(Path(self.root).absolute()))
        if self.root.startswith("file:"):
            return LocalFiles("/" + self.root.removeprefix("file:").lstrip("/").rstrip("/"))
        open_files = _BACKENDS.get(scheme_of(self.root))
        if open_files is not None:
            return open_files(self.root, self.settings)
        scheme = self.root.partition("://")[0]
        expected = " or ".join(f"{known}://" for known in (FILE, *_BACKENDS))
        raise UsageError(f"state: {self.root!r} has the scheme {scheme!r}; expected {expected}")

    @property
    def are_local(self) -> bool:
        """Whether the state is on a disk, which all processes of a cluster mount at the same path."""
        return isinstance(self._backend(), LocalFiles)

    def uri(self, path: str) -> str:
        """Return the address of a file or directory."""
        return self._backend().uri(path)

    def spark_uri(self, path: str) -> str:
        """Return the address to use with Spark's file systems, such as `file://…` or `s3a://…`."""
        return self._backend().spark_uri(path)

    def read(self, path: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().read(path)

    def contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of files in the given order. In object stores, files are read ahead."""
        parallel = self._backend().parallel_reads
        if parallel == 1 or len(paths) == 1:
            yield from map(self.read, paths)
            return
        waiting, running = iter(paths), deque[Future[bytes]]()
        with ThreadPoolExecutor(parallel) as pool:
            for _ in range(len(paths)):
                while len(running) < parallel and (path := next(waiting, None)) is not None:
                    running.append(pool.submit(self.read, path))
                yield running.popleft().result()

    def replace(self, path: str, content: bytes) -> None:
        """Replace a file atomically, so that readers see either the old or the new content.

        If this raises an error for an object store, the write may still have succeeded, or may
        succeed later.

        Raises:
            StateError: If the disk or its quota is full.
        """
        with self._explain_full_disk(path):
            self._backend().replace(path, content)

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Read a file and its version, which `replace_if` needs.

        If two versions are equal, the content is equal too. In an object store, this is the ETag.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().read_version(path)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        """Replace a file if it still has the expected version.

        If several processes have read the same version, exactly one of them succeeds. There are two
        exceptions in object stores: If several writers write identical bytes, all of them may
        succeed. If a response is lost and another process then replaces the file, the writer gets
        None although it has succeeded.

        Args:
            version: The expected version, or None if the file must not exist.

        Returns:
            The new version, or None if the file was not replaced.

        Raises:
            StateError: If the store does not support conditions, or the disk or its quota is full.
        """
        with self._explain_full_disk(path):
            return self._backend().replace_if(path, content, version)

    @contextmanager
    def _explain_full_disk(self, path: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise StateError(
                f"Cannot write {self.uri(path)}: {os.strerror(error.errno)}. The disk of the state {self.root} is full. Free some space "
                "there, for example with `gc-assets prune`, and repeat the command."
            ) from error

    def free_bytes(self) -> int | None:
        """Return the free space on the disk of the state, or None for an object store."""
        return self._backend().free_bytes()

    @contextmanager
    def probe(self, path: str, content: bytes) -> Generator[None]:
        """Write a file for the duration of the context.

        Afterwards, the file is removed, together with directories that had to be created for it.
        """
        backend = self._backend()
        new = backend.missing_directories() if isinstance(backend, LocalFiles) else ()
        try:
            self.replace(path, content)
            try:
                yield
            finally:
                self.delete(path)
        finally:
            for directory in new:
                with suppress(OSError):  # missing, or another process writes to it
                    directory.rmdir()

    def check_conditions(self) -> str:
        """Check that the server or disk evaluates the conditions of `replace_if` reliably.

        Returns:
            The reason why it does.

        Raises:
            StateError: If it does not.
        """
        return self._backend().check_conditions()

    def change(self, path: str, new: Callable[[bytes | None], bytes], seen: VersionedContent | None = None) -> VersionedContent:
        """Change a file, and start again if another process changes it at the same time.

        Args:
            path: The path of the file.
            new: Computes the new content from the current one, which is None if the file is
                missing. It may be called several times.
            seen: The content, if the caller has just read it. This saves a request.

        Returns:
            The new content and version.

        Raises:
            StateError: If other processes keep replacing the file.
        """
        for attempt in range(_ATTEMPTS):
            current = seen if seen is not None else self._read_or_absent(path)
            after = new(current.content)
            if after == current.content and seen is None:
                return current
            if after != current.content and (version := self.replace_if(path, after, current.version)) is not None:
                return VersionedContent(after, version)
            if seen is not None:
                seen = None
                continue
            time.sleep(random.uniform(0, 0.002 * min(attempt + 1, 50)))  # noqa: S311  (spreads writers; not a secret)
        raise StateError(
            f"Cannot change {self.root}/{path}, because other processes replaced it {_ATTEMPTS} times in a row. "
            "Try again when fewer processes are running."
        )

    def _read_or_absent(self, path: str) -> VersionedContent:
        try:
            return VersionedContent(*self.read_version(path))
        except FileNotFoundError:
            return ABSENT

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().size(path)

    def sizes(self, paths: Sequence[str]) -> Sequence[int]:
        """Return the sizes of files in bytes, with one listing for each directory.

        Raises:
            FileNotFoundError: If a file does not exist.
        """
        directories = sorted({path.rpartition("/")[0] for path in paths})
        with ThreadPoolExecutor(self._backend().parallel_reads) as pool:
            listed = dict(zip(directories, pool.map(self.list, directories), strict=True))
        found = {f"{directory}/{stat.name}": stat.size_bytes for directory, stats in listed.items() for stat in stats}
        if gone := [path for path in paths if path not in found]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.root}/{gone[0]}")
        return [found[path] for path in paths]

    def modified_at(self, path: str) -> datetime:
        """Return the time of the last modification, according to the clock of the disk or store."""
        return self._backend().modified_at(path)

    def list(self, path: str, *, recursive: bool = False) -> Sequence[FileStat]:
        """List the files in a directory, sorted by name. A missing directory counts as empty."""
        return self._backend().list(path, recursive=recursive)

    def directories(self, path: str) -> Sequence[str]:
        """List the subdirectories of a directory, sorted by name."""
        return self._backend().directories(path)

    def delete(self, path: str) -> None:
        """Delete a file. In an object store, it need not exist."""
        self._backend().delete(path)

    def delete_directory(self, path: str) -> None:
        """Delete a directory recursively. In an object store, it need not exist."""
        if not path.strip("/"):
            raise ValueError("refusing to delete the root of the state")
        self._backend().delete_directory(path)


def is_read_only(error: OSError) -> bool:
    """Return True if the error means that this process must not write to the state."""
    return error.errno in _READ_ONLY
