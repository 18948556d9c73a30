"""Objects of buckets by address: complete reads, listings, and single conditional changes.

The identity of an object is `<etag>-<size>-<modification time in seconds>`. The etag alone does not
suffice, because rewriting the same bytes gives the same etag. The time has whole seconds, because
the answers to GET and HEAD contain no fractions.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import ClientError

from gc_assets.buckets.protocol import Role
from gc_assets.config.connections import DEFAULT_CONNECTIONS, Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import GcError, ObjectChanged, StoreError
from gc_assets.core.paths import bucket_and_key
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES
from gc_assets.s3 import pages
from gc_assets.s3.client import PRECONDITION, error_code, get_client, payer_params, translate_errors
from gc_assets.stores.protocol import RESERVED_PREFIX


def identity(etag: str, size_bytes: int, modified: datetime) -> str:
    return f"{etag.strip(chr(34))}-{size_bytes}-{int(modified.timestamp())}"


def identities(etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
    """Return the identities of objects in the form of `identity`.

    Etags are without quotes, times in microseconds.
    """
    seconds = pc.divide(pc.floor_temporal(modified, unit="second").cast(pa.int64()), pa.scalar(1_000_000, pa.int64()))
    return pc.call_function("binary_join_element_wise", [etags, sizes.cast(pa.string()), seconds.cast(pa.string()), pa.scalar("-")])


def modified_us(object_identity: str) -> int | None:
    """Return the modification time in an identity, in microseconds, or None if it has none."""
    seconds = object_identity.rpartition("-")[2]
    return int(seconds) * 1_000_000 if seconds.isascii() and seconds.isdecimal() else None


def identity_of(answer: Any) -> str:
    """Return the identity of an object from the answer to GET or HEAD."""
    return identity(answer["ETag"], answer["ContentLength"], answer["LastModified"])


def etag_of(object_identity: str) -> str:
    """Return the server's own etag from an identity."""
    return object_identity.rsplit("-", 2)[0]


@dataclass(frozen=True, slots=True)
class S3Objects:
    """`EditableObjects` on S3. `connections` configures access to each address."""

    connections: Connections = DEFAULT_CONNECTIONS

    @classmethod
    def of(cls, settings: S3Config) -> Self:
        """Return objects that are all accessed with the same settings."""
        return cls(Connections.of(settings))

    def read(self, address: str) -> bytes:
        return self.read_identified(address)[0]

    def read_identified(self, address: str) -> tuple[bytes, str]:
        return self.read_with_etag(address, "read")

    def cached_identity(self, address: str) -> None:
        del address

    def size(self, address: str) -> int:
        def read_size() -> int:
            with translate_errors(address):
                client, target = self._request_of(address, "read")
                return client.head_object(**target)["ContentLength"]

        return run_with_deadline(self.connections.read_seconds, address, read_size)

    def identity(self, address: str) -> str | None:
        """Return the identity of an object, or None if it cannot be read."""
        try:
            with translate_errors(address):
                client, target = self._request_of(address, "read")
                return identity_of(client.head_object(**target))
        except (GcError, OSError):
            return None

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """List the objects under a prefix, without the collector's own prefix directly under it.

        Raises:
            StoreError: If a key is not UTF-8, so no address can name it.
        """
        if not prefix.endswith("/"):
            raise StoreError(f"cannot list {prefix!r}: a prefix must end in '/'")
        bucket, base = bucket_and_key(prefix)
        reserved, start = f"{base}{RESERVED_PREFIX}".encode(), len(base.encode())
        for page in pages.list_objects(self.connections.settings_for(prefix, S3Config), bucket, base):
            for key, size, modified in zip(page.keys, page.sizes, page.modified, strict=True):
                if not key.startswith(reserved) and len(key) > start:
                    yield prefix + _decode_key(key[start:], prefix), size, datetime.fromisoformat(modified)

    def read_with_etag(self, address: str, role: Role = "change") -> tuple[bytes, str]:
        def read_object() -> tuple[bytes, str]:
            with translate_errors(address):
                client, target = self._request_of(address, role)
                answer = client.get_object(**target)
                if answer["ContentLength"] > MAX_OBJECT_BYTES:
                    found = f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {answer['ContentLength']:,}"
                    raise OSError(errno.EFBIG, found, address)
                return answer["Body"].read(), identity_of(answer)

        # A server that sends single bytes slowly never exceeds the connection's read timeout.
        return run_with_deadline(self.connections.read_seconds, address, read_object)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the object as the protocol specifies.

        The server compares the etag when it writes. Size and time are compared immediately before.
        If the answer is lost after the server has written, the object's bytes show it.
        """
        with translate_errors(address):
            client, target = self._request_of(address, "change")
            self._require_etag(client, target, address, etag)
            # Some servers expect an etag with quotes, some without.
            for spelling in (etag_of(etag), f'"{etag_of(etag)}"'):
                try:
                    client.put_object(**target, Body=content, IfMatch=spelling)
                except ClientError as error:
                    if error_code(error) not in PRECONDITION:
                        raise
                    if client.get_object(**target)["Body"].read() == content:
                        return
                    self._require_etag(client, target, address, etag)
                else:
                    return
        raise ObjectChanged(
            f"{address!r}: left alone, because this server rejects a conditional replace (If-Match) although it is still {etag}; "
            "run gc-assets doctor to see what the server supports"
        )

    def create(self, address: str, content: bytes) -> None:
        with translate_errors(address):
            client, target = self._request_of(address, "change")
            try:
                client.put_object(**target, Body=content, IfNoneMatch="*")
            except ClientError as error:
                if error_code(error) in PRECONDITION:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), address) from error
                raise

    def remove(self, address: str, etag: str) -> None:
        """Remove the object as the protocol specifies.

        A server that ignores etags in deletes leaves a gap of one request between comparison and
        delete. Therefore the delete is not retried.
        """
        with translate_errors(address):
            client, target = self._request_of(address, "change")
            self._require_etag(client, target, address, etag)
            try:
                get_client(self.connections.settings_for(address, S3Config), "change", attempts=1).delete_object(
                    **target, IfMatch=f'"{etag_of(etag)}"'
                )
            except ClientError as error:
                if error_code(error) in PRECONDITION:
                    raise ObjectChanged(
                        f"{address!r}: expected {etag} as read before; it has just been replaced and was left alone"
                    ) from error
                raise

    def _require_etag(self, client: Any, target: dict[str, Any], address: str, etag: str) -> None:
        found = identity_of(client.head_object(**target))
        if found != etag:
            raise ObjectChanged(f"{address!r}: expected {etag} as read before, found {found}; left alone")

    def _request_of(self, address: str, role: Role) -> tuple[Any, dict[str, Any]]:
        settings = self.connections.settings_for(address, S3Config)
        bucket, key = bucket_and_key(address)
        return get_client(settings, role), {"Bucket": bucket, "Key": key, **payer_params(settings)}


def _decode_key(key: bytes, prefix: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{prefix}{key.decode('utf-8', 'backslashreplace')}: the key is not UTF-8, so no address can name it") from error
