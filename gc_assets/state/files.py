"""File access for the state on a local disk or an object store, with atomic replacement.

Paths are relative to the root.
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
from typing import Final

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.paths import AZURE, FILE, GCS, S3, scheme_of
from gc_assets.state.backend import ABSENT, Backend, FileStat, VersionedContent
from gc_assets.state.local_files import LocalFiles

# Maximum attempts of a conditional write that keeps losing to other writers.
_ATTEMPTS: Final = 200
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def _open_s3(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.config.s3 import S3Config
    from gc_assets.s3.bucket import S3Bucket  # imports slow modules that a local state does not need
    from gc_assets.state.bucket_files import BucketFiles

    found = settings if isinstance(settings, S3Config) else S3Config()
    # Every run writes the state, and a scheduled job may not have the role that deletes.
    own = found.model_copy(update={"apply_profile": None, "apply_role_arn": None})
    return BucketFiles(S3Bucket.of(root, own), "s3a")


def _open_azure(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.azure.bucket import AzureBucket
    from gc_assets.config.azure import AzureConfig
    from gc_assets.state.bucket_files import BucketFiles

    found = settings if isinstance(settings, AzureConfig) else AzureConfig()
    # Every run writes the state, and a scheduled job may not have the identity that deletes.
    own = found.model_copy(update={"apply_secret_variable": None, "apply_client_id": None})
    return BucketFiles(AzureBucket.of(root, own), AZURE)


def _open_gcs(root: str, settings: StoreSettings | None) -> Backend:
    from gc_assets.config.gcs import GcsConfig
    from gc_assets.gcs.bucket import GcsBucket
    from gc_assets.state.bucket_files import BucketFiles

    found = settings if isinstance(settings, GcsConfig) else GcsConfig()
    # Every run writes the state, and a scheduled job may not have the identity that deletes.
    own = found.model_copy(update={"apply_service_account": None})
    return BucketFiles(GcsBucket.of(root, own), GCS)


@functools.lru_cache(maxsize=16)
def _open_absolute(root: str) -> LocalFiles:
    """Open the files under a path. A small run does it a thousand times."""
    return LocalFiles(str(Path(root)))


# Opens the files under an address of each scheme.
_BACKENDS: Final[Mapping[str, Callable[[str, StoreSettings | None], Backend]]] = {S3: _open_s3, AZURE: _open_azure, GCS: _open_gcs}


@dataclass(frozen=True, slots=True)
class Files:
    """Files under a root: `file:///…`, a bare path, or an address in an object store.

    `settings` are those of the object store, None for its defaults. Picklable and free of secrets,
    because the connection opens on use.
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
        """True on a disk mounted under the same path in every process of the cluster."""
        return isinstance(self._backend(), LocalFiles)

    def uri(self, path: str) -> str:
        """Return the address of `path`."""
        return self._backend().uri(path)

    def spark_uri(self, path: str) -> str:
        """Return the `file://` or `s3a://` address of `path` for Spark's file systems."""
        return self._backend().spark_uri(path)

    def read(self, path: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().read(path)

    def contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield file contents in path order, reading ahead on object stores."""
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
        """Replace the content atomically, so readers see either the old or the new content.

        If this raises on an object store, the write may still have succeeded or may succeed later.

        Raises:
            StateError: If the disk or its quota is full.
        """
        with self._explain_full_disk(path):
            self._backend().replace(path, content)

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Read a file and its version for `replace_if`.

        Equal versions mean equal content (an object store's ETag).

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().read_version(path)

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        """Replace `path` if it is still at `version`; None means that it must not exist.

        Exactly one of the writers that read the same version succeeds, across all processes. On an
        object store, concurrent writers of identical bytes may all succeed. After a lost response,
        a writer may get None if another process has replaced its content in the meantime.

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
        """Return the free space for the state, or None in an object store."""
        return self._backend().free_bytes()

    @contextmanager
    def probe(self, path: str, content: bytes) -> Generator[None]:
        """Write a file, and at the end remove it and the directories that this created."""
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
        """Check that `replace_if` is reliable, and return the reason.

        Raises:
            StateError: If it is not reliable.
        """
        return self._backend().check_conditions()

    def change(self, path: str, new: Callable[[bytes | None], bytes], seen: VersionedContent | None = None) -> VersionedContent:
        """Replace the content with the result of `new`, and retry after losing to another process.

        Args:
            path: The file.
            new: Called with the current content, or None for a missing file, and again after a lost
                race.
            seen: Content just read by the caller, to save a request.

        Returns:
            The content afterwards.

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
        raise StateError(f"{self.root}/{path} was replaced by other processes {_ATTEMPTS} times in a row; retry when fewer processes run")

    def _read_or_absent(self, path: str) -> VersionedContent:
        try:
            return VersionedContent(*self.read_version(path))
        except FileNotFoundError:
            return ABSENT

    def size(self, path: str) -> int:
        """Return the size in bytes.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        return self._backend().size(path)

    def sizes(self, paths: Sequence[str]) -> Sequence[int]:
        """Return file sizes in bytes, using one listing per directory.

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
        """Return the last modification time, by the clock of the disk or store."""
        return self._backend().modified_at(path)

    def list(self, path: str, *, recursive: bool = False) -> Sequence[FileStat]:
        """List the files under `path`, sorted by name. A missing directory is treated as empty."""
        return self._backend().list(path, recursive=recursive)

    def directories(self, path: str) -> Sequence[str]:
        """List the subdirectories of `path`, sorted by name."""
        return self._backend().directories(path)

    def delete(self, path: str) -> None:
        """Delete a file. On an object store a missing file is not an error."""
        self._backend().delete(path)

    def delete_directory(self, path: str) -> None:
        """Delete a directory recursively. A missing directory is an error only on a local disk."""
        if not path.strip("/"):
            raise ValueError("refusing to delete the root of the state")
        self._backend().delete_directory(path)


def is_read_only(error: OSError) -> bool:
    """Check if the error means that this process has no write access to the state."""
    return error.errno in _READ_ONLY
