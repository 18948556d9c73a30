"""Access to objects in buckets by address, including conditional changes of single objects."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from gc_assets.buckets.identity import build_identity, token_of
from gc_assets.buckets.protocol import Change, ConditionalBucket, ObjectInfo, Role
from gc_assets.config.connections import DEFAULT_CONNECTIONS, Connections, StoreSettings
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import ObjectChanged, StoreError
from gc_assets.stores.protocol import RESERVED_PREFIX


@dataclass(frozen=True, slots=True)
class BucketObjects(ABC):
    """Implements `EditableObjects` for buckets, whose connection settings are in `connections`."""

    connections: Connections = DEFAULT_CONNECTIONS

    @classmethod
    def of(cls, settings: StoreSettings) -> Self:
        """Create an accessor that uses the same settings for every address."""
        return cls(Connections.of(settings))

    @abstractmethod
    def open(self, address: str) -> tuple[ConditionalBucket, str]:
        """Split an address into its bucket, opened without a prefix, and the key.

        Raises:
            StoreError: If the address belongs to another kind of store.
        """
        ...

    def read(self, address: str) -> bytes:
        return self.read_identified(address)[0]

    def read_identified(self, address: str) -> tuple[bytes, str]:
        return self.read_with_etag(address, "read")

    def cached_identity(self, address: str) -> None:
        del address

    def size(self, address: str) -> int:
        def read_size() -> int:
            bucket, key = self.open(address)
            return _require_object(bucket.head(key, "read"), address).size_bytes

        return run_with_deadline(self.connections.read_seconds, address, read_size)

    def identity(self, address: str) -> str | None:
        def read_identity() -> str | None:
            bucket, key = self.open(address)
            found = bucket.head(key, "read")
            return None if found is None else found.identity

        return run_with_deadline(self.connections.read_seconds, address, read_identity)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """List the objects under a prefix, without objects written by gc-assets itself.

        Raises:
            StoreError: If a key is not UTF-8, so that no address can contain it.
        """
        return ((address, size, modified) for address, size, modified, _ in self._list(prefix))

    def list_identities(self, prefix: str) -> Iterator[tuple[str, str]]:
        """List objects with their identities, except those that the server lists without a token."""
        return ((address, build_identity(token, size, modified)) for address, size, modified, token in self._list(prefix) if token)

    def _list(self, prefix: str) -> Iterator[tuple[str, int, datetime, str]]:
        if not prefix.endswith("/"):
            raise StoreError(f"cannot list {prefix!r}: a prefix must end in '/'")
        bucket, base = self.open(prefix)
        reserved, start = f"{base}{RESERVED_PREFIX}".encode(), len(base.encode())
        for page in bucket.list_pages(base):
            for key, size, modified, token in zip(page.keys, page.sizes, page.modified, page.etags, strict=True):
                if not key.startswith(reserved) and len(key) > start:
                    yield prefix + _decode_key(key[start:], prefix), size, datetime.fromisoformat(modified), token

    def read_with_etag(self, address: str, role: Role = "change") -> tuple[bytes, str]:
        def read_object() -> tuple[bytes, str]:
            bucket, key = self.open(address)
            content, found = bucket.read(key, role)
            return content, found.identity

        # A server that keeps sending single bytes would never exceed the connection's read timeout.
        return run_with_deadline(self.connections.read_seconds, address, read_object)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the object if it still has the given etag.

        The etag consists of a token, the size and the time of the object. The server compares the
        token as part of the write, and this method compares size and time immediately before. If
        the response to a successful write is lost, the write is recognized by the bytes of the
        object.
        """
        bucket, key = self.open(address)
        _require_identity(bucket.head(key), address, etag)
        change = bucket.put_if_match(key, content, token_of(etag))
        if change.verdict != "changed":
            self.verify_replaced(bucket, key, etag, change.require())
            return
        found, current = bucket.read(key)
        if found == content:
            return
        _require_identity(current, address, etag)
        raise ObjectChanged(
            f"{address!r}: left alone, because this server rejects a conditional replace (If-Match) although it is still {etag}; "
            "run gc-assets doctor to see what the server supports"
        )

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        del new_directories  # a bucket has none
        bucket, key = self.open(address)
        change = self.put_new(bucket, key, content)
        if change.verdict == "changed":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), address) from change.error
        self.verify_created(bucket, key, content, change.require())

    def put_new(self, bucket: ConditionalBucket, key: str, content: bytes) -> Change:
        """Put an object at a key that has none."""
        return bucket.put_if_absent(key, content)

    def verify_created(self, bucket: ConditionalBucket, key: str, content: bytes, change: Change) -> None:
        """Check that the server did not allow another writer to create the same object.

        Raises:
            FileExistsError: If another writer has created the object too.
        """
        del bucket, key, content, change

    def verify_replaced(self, bucket: ConditionalBucket, key: str, etag: str, change: Change) -> None:
        """Check that the server has replaced the expected object.

        Raises:
            ObjectChanged: If the server has replaced another object.
        """
        del bucket, key, etag, change

    def remove(self, address: str, etag: str) -> None:
        """Remove the object if it still has the given etag.

        Some servers ignore tokens in deletes, so that another writer could replace the object after
        the comparison. The delete is therefore never retried.
        """
        bucket, key = self.open(address)
        _require_identity(bucket.head(key), address, etag)
        change = bucket.delete_if_match(key, token_of(etag))
        if change.verdict == "unsupported":  # nothing has been changed yet, and the comparison is recent
            change = bucket.delete_if_match(key, None)
        if change.verdict == "changed":
            raise ObjectChanged(
                f"{address!r}: expected {etag} as read before; it has just been replaced and was left alone"
            ) from change.error
        change.require()


def _require_object(found: ObjectInfo | None, address: str) -> ObjectInfo:
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return found


def _require_identity(current: ObjectInfo | None, address: str, etag: str) -> None:
    found = _require_object(current, address).identity
    if found != etag:
        raise ObjectChanged(f"{address!r}: expected {etag} as read before, found {found}; left alone")


def _decode_key(key: bytes, prefix: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{prefix}{key.decode('utf-8', 'backslashreplace')}: the key is not UTF-8, so no address contains it") from error
