"""Objects of buckets by their addresses: whole reads, listings, and single conditional changes.

An object's identity is `<etag>-<size>-<time of last modification in seconds>`. The etag alone is
none: bytes that are written again get the same one. The time is in whole seconds because the
answers to GET and HEAD say no more.
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

from gc_assets.config.s3 import DEFAULT_CONNECTIONS, Connections, S3Config
from gc_assets.core.deadline import run_with_deadline
from gc_assets.core.errors import ObjectChanged, StoreError
from gc_assets.core.paths import bucket_and_key
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES
from gc_assets.s3 import pages
from gc_assets.s3.client import PRECONDITION, Role, error_code, get_client, payer_params, translate_errors
from gc_assets.stores.protocol import RESERVED_PREFIX


def identity(etag: str, size_bytes: int, modified: datetime) -> str:
    return f"{etag.strip(chr(34))}-{size_bytes}-{int(modified.timestamp())}"


def identities(etags: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
    """Returns the identities of objects as `identity` spells one. Etags are without quotes,
    times in microseconds.
    """
    seconds = pc.divide(pc.floor_temporal(modified, unit="second").cast(pa.int64()), pa.scalar(1_000_000, pa.int64()))
    return pc.call_function("binary_join_element_wise", [etags, sizes.cast(pa.string()), seconds.cast(pa.string()), pa.scalar("-")])


def modified_us(known: str) -> int | None:
    """Returns the time of modification in an identity, in microseconds, or null where it has none."""
    seconds = known.rpartition("-")[2]
    return int(seconds) * 1_000_000 if seconds.isascii() and seconds.isdecimal() else None


def identity_of(answer: Any) -> str:
    """Returns the identity of the object that a GET or a HEAD answered with."""
    return identity(answer["ETag"], answer["ContentLength"], answer["LastModified"])


def etag_of(known: str) -> str:
    """Returns the server's own etag in an identity."""
    return known.rsplit("-", 2)[0]


@dataclass(frozen=True, slots=True)
class S3Objects:
    """`EditableObjects` on S3. `places` says how each address is reached."""

    places: Connections = DEFAULT_CONNECTIONS

    @classmethod
    def of(cls, settings: S3Config) -> Self:
        """Returns objects that are all reached in one way."""
        return cls(Connections(default=settings))

    def read(self, address: str) -> bytes:
        return self.read_identified(address)[0]

    def read_identified(self, address: str) -> tuple[bytes, str]:
        return self.read_with_etag(address, "read")

    def cached_identity(self, address: str) -> None:
        del address

    def size(self, address: str) -> int:
        def ask() -> int:
            with translate_errors(address):
                client, target = self._asked(address, "read")
                return client.head_object(**target)["ContentLength"]

        return run_with_deadline(self.places.read_seconds, address, ask)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Lists as the protocol says, without the collector's own prefix directly below `prefix`.

        Raises `StoreError` for a key that is not UTF-8, because no address can name it.
        """
        if not prefix.endswith("/"):
            raise StoreError(f"{prefix!r} is not a prefix to list: it must end in '/'")
        bucket, below = bucket_and_key(prefix)
        reserved, start = f"{below}{RESERVED_PREFIX}".encode(), len(below.encode())
        for page in pages.list_objects(self.places.settings_for(prefix), bucket, below):
            for key, size, modified in zip(page.keys, page.sizes, page.modified, strict=True):
                if not key.startswith(reserved) and len(key) > start:
                    yield prefix + _text(key[start:], prefix), size, datetime.fromisoformat(modified)

    def read_with_etag(self, address: str, role: Role = "change") -> tuple[bytes, str]:
        def ask() -> tuple[bytes, str]:
            with translate_errors(address):
                client, target = self._asked(address, role)
                answer = client.get_object(**target)
                if answer["ContentLength"] > MAX_OBJECT_BYTES:
                    found = f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {answer['ContentLength']:,}"
                    raise OSError(errno.EFBIG, found, address)
                return answer["Body"].read(), identity_of(answer)

        # A server that sends a byte now and then never meets the timeout of a connection.
        return run_with_deadline(self.places.read_seconds, address, ask)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replaces as the protocol says. The server compares the etag as it writes; size and time
        are compared immediately before. An answer that was lost after the server had written is
        known by the bytes that stand there.
        """
        with translate_errors(address):
            client, target = self._asked(address, "change")
            self._require(client, target, address, etag)
            # Some servers take an etag with quotes for another one, some one without.
            for spelling in (etag_of(etag), f'"{etag_of(etag)}"'):
                try:
                    client.put_object(**target, Body=content, IfMatch=spelling)
                except ClientError as error:
                    if error_code(error) not in PRECONDITION:
                        raise
                    if client.get_object(**target)["Body"].read() == content:
                        return
                    self._require(client, target, address, etag)
                else:
                    return
        raise ObjectChanged(
            f"{address!r}: it is {etag} still, and this server replaces nothing here on a condition (If-Match), so it was left alone; "
            "`gc-assets doctor` shows what the server can do"
        )

    def create(self, address: str, content: bytes) -> None:
        with translate_errors(address):
            client, target = self._asked(address, "change")
            try:
                client.put_object(**target, Body=content, IfNoneMatch="*")
            except ClientError as error:
                if error_code(error) in PRECONDITION:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), address) from error
                raise

    def remove(self, address: str, etag: str) -> None:
        """Removes as the protocol says. A server that does not compare as it deletes leaves a gap
        of one request between comparing and deleting, and so it is asked once.
        """
        with translate_errors(address):
            client, target = self._asked(address, "change")
            self._require(client, target, address, etag)
            try:
                get_client(self.places.settings_for(address), "change", attempts=1).delete_object(**target, IfMatch=f'"{etag_of(etag)}"')
            except ClientError as error:
                if error_code(error) in PRECONDITION:
                    raise ObjectChanged(f"{address!r}: expected {etag}, which was read; it was replaced just now and left alone") from error
                raise

    def _require(self, client: Any, target: dict[str, Any], address: str, etag: str) -> None:
        found = identity_of(client.head_object(**target))
        if found != etag:
            raise ObjectChanged(f"{address!r}: expected {etag}, which was read, found {found}; left alone")

    def _asked(self, address: str, role: Role) -> tuple[Any, dict[str, Any]]:
        settings = self.places.settings_for(address)
        bucket, key = bucket_and_key(address)
        return get_client(settings, role), {"Bucket": bucket, "Key": key, **payer_params(settings)}


def _text(key: bytes, prefix: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{prefix}{key.decode('utf-8', 'backslashreplace')}: the key is not UTF-8, so no address can name it") from error
