"""Store the state in a bucket, with conditional requests instead of locks.

If a put is rejected because its condition is not met, an earlier attempt of the same put may have
succeeded although its response was lost. To find out, the stored bytes are read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gc_assets.buckets.identity import token_of
from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion, ObjectInfo, Page
from gc_assets.buckets.requests import map_concurrently, pause_before_retry
from gc_assets.core.errors import StateError, StoreError
from gc_assets.state import conditions
from gc_assets.state.backend import FileStat

# The number is low because each read keeps a part in memory.
_PARALLEL_READS: Final = 4
# Maximum number of attempts if deletes fail temporarily.
_ATTEMPTS: Final = 5
_TEMPORARY: Final = frozenset({"failed", "unknown"})
# After these outcomes of a delete, the file is compared again.
_REPEATED: Final = _TEMPORARY | {"changed"}
_DELETED: Final = frozenset({"done", "absent"})


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """The files under a prefix of a bucket.

    Attributes:
        bucket: The bucket with the prefix.
        spark_scheme: The URL scheme for the bucket in Spark's file systems.
    """

    bucket: ConditionalBucket
    spark_scheme: str

    @property
    def parallel_reads(self) -> int:
        return _PARALLEL_READS

    @property
    def server(self) -> Hashable:
        return self.bucket.name, self.bucket.settings

    @property
    def unknown_version(self) -> str:
        return self.bucket.unknown_token

    def uri(self, path: str) -> str:
        return self.bucket.address(path)

    def spark_uri(self, path: str) -> str:
        return f"{self.spark_scheme}://{self.bucket.name}/{self.bucket.prefix}{path}"

    def read(self, path: str) -> bytes:
        return self.read_version(path)[0]

    def read_version(self, path: str) -> tuple[bytes, str]:
        content, found = self.bucket.read(path)
        return content, token_of(found.identity)

    def replace(self, path: str, content: bytes) -> None:
        self.bucket.put(path, bytes(content)).require()

    def replace_if(self, path: str, content: bytes, version: str | None) -> str | None:
        conditions.require_conditions(self)
        return self.put_if(path, content, version)

    def put_if(self, path: str, content: bytes, version: str | None) -> str | None:
        """Put an object if it still has `version`, or if it does not exist and `version` is None.

        The response to a failed put is not reliable. If an earlier response was lost, a retried put
        finds its own object. Ceph also responds with status 500 if another writer was faster. The
        outcome is therefore determined by reading the stored object.

        Returns:
            The new version if the stored object has the new content, otherwise None.

        Raises:
            OSError: If the object is still the old one. The outcome is then unknown, because the
                put may still be executed.
        """
        content = bytes(content)
        change = self.bucket.put_if_absent(path, content) if version is None else self.bucket.put_if_match(path, content, version)
        if change.verdict == "unsupported":
            raise OSError(errno.ENOSYS, change.reason, self.uri(path)) from change.error
        if change.verdict == "denied":
            change.require()
        if change.is_done and change.token is not None:
            return change.token
        found, at = self._read_or_none(path)
        if found == content:
            return at
        if at == version and change.verdict in _TEMPORARY:
            change.require()
        return None

    def check_conditions(self) -> str:
        conditions.check_races(self)
        return "the server evaluates conditions and lets exactly one of several writers succeed"

    def free_bytes(self) -> int | None:
        return None

    def size(self, path: str) -> int:
        return self._head(path).size_bytes

    def modified_at(self, path: str) -> datetime:
        """Return the modification time, rounded down to seconds."""
        return self._head(path).modified.astimezone(UTC).replace(microsecond=0)

    def list(self, path: str, *, recursive: bool) -> Sequence[FileStat]:
        base = f"{self.bucket.prefix}{_directory(path)}"
        found: list[FileStat] = []
        for page in self._pages(path, "" if recursive else "/"):
            for key, size in zip(page.keys, page.sizes, strict=True):
                name = self._decode_key(key)[len(base) :]
                # Web consoles represent directories as keys that end in a slash.
                if name and not name.endswith("/"):
                    found.append(FileStat(name, size))
        return sorted(found)

    def directories(self, path: str) -> Sequence[str]:
        base = f"{self.bucket.prefix}{_directory(path)}"
        return sorted(
            name for page in self._pages(path, "/") for prefix in page.common if (name := self._decode_key(prefix)[len(base) : -1])
        )

    def delete(self, path: str) -> None:
        """Delete the file, unless another process replaces it in the meantime."""
        found = self.bucket.head(path)
        if found is not None:
            self._delete_compared(path, token_of(found.identity), is_current=True)

    def delete_directory(self, path: str) -> None:
        for page in self._pages(path, ""):
            names = [self._decode_key(key).removeprefix(self.bucket.prefix) for key in page.keys]
            self._delete_many(list(zip(names, page.etags, strict=True)))

    def _delete_many(self, files: Sequence[tuple[str, str]]) -> None:
        """Delete files in batches, and then one by one if a batch was not completely successful.

        Args:
            files: Pairs of path and token from a listing.
        """
        is_compared = self.bucket.compares_in_batches
        changes = self.bucket.delete([Deletion(path, token=token if is_compared else None) for path, token in files])
        remaining = list[tuple[str, str]]()
        for file, change in zip(files, changes, strict=True):
            if change.verdict == "denied":
                change.require()
            if change.verdict not in _DELETED:
                remaining.append(file)
        if remaining:
            pause_before_retry(0)
            map_concurrently(remaining, lambda file: self._delete_compared(*file, is_current=False))

    def _delete_compared(self, path: str, token: str, *, is_current: bool) -> None:
        """Delete a file if it still has the expected token (such as its ETag).

        The token is checked again before each retry.

        Args:
            path: The path of the file.
            token: The expected token.
            is_current: True if the caller has just found the file with this token.

        Raises:
            OSError: If another process has replaced the file, or it cannot be deleted.
        """
        condition: str | None = token
        change: Change | None = None
        for attempt in range(_ATTEMPTS):
            found = None if is_current else self.bucket.head(path)
            if not is_current and found is None:
                return
            if found is not None and token_of(found.identity) != token:
                text = "another process replaced the file while it was being deleted; left alone"
                raise OSError(errno.EAGAIN, text, self.uri(path))
            if found is not None and change is not None and change.verdict == "changed":
                condition = None  # the server rejects a token that it has returned itself
            is_current, change = False, self.bucket.delete_if_match(path, condition)
            if change.verdict in _DELETED:
                return
            if change.verdict == "unsupported" and condition is not None:
                condition = None  # nothing was deleted; the next attempt compares the file immediately before
            elif change.verdict not in _REPEATED or attempt + 1 == _ATTEMPTS:
                change.require()
            else:
                pause_before_retry(attempt)

    def _read_or_none(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        try:
            return self.read_version(path)
        except FileNotFoundError:
            return None, None

    def _head(self, path: str) -> ObjectInfo:
        found = self.bucket.head(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(path))
        return found

    def _pages(self, path: str, delimiter: str) -> Iterator[Page]:
        try:
            yield from self.bucket.list_pages(_directory(path), delimiter=delimiter, role="change")
        except StoreError as error:
            raise StateError(str(error)) from error

    def _decode_key(self, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            shown = key.decode("utf-8", "backslashreplace")
            address = f"{self.bucket.location.removesuffix(self.bucket.prefix)}{shown}"
            raise StateError(f"{address}: gc-assets does not write such names; move it out of the state") from error


def _directory(path: str) -> str:
    return f"{path}/" if path else ""
