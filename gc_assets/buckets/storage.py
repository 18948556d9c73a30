"""The base class of buckets: a storage's address and settings."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Self, TypeVar

from gc_assets.config.connections import StoreSettings
from gc_assets.core.errors import StoreError
from gc_assets.core.paths import Location, bucket_and_key
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES

_Settings = TypeVar("_Settings", bound=StoreSettings)

# The limit of S3 (User Guide, "Naming Amazon S3 objects") and Google Cloud (Cloud Storage
# documentation, "Object names"), in UTF-8 bytes. Azure allows 1,024 characters, which is more.
MAX_KEY_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class BucketStorage(Generic[_Settings]):
    """A bucket, or a prefix in a bucket. It contains no secrets, so it can be pickled.

    Attributes:
        name: The name of the bucket. On Azure, this is `container@account.dfs.core.windows.net`.
        prefix: The prefix, which is empty or ends in `/`.
        settings: How to connect to the server.
    """

    name: str
    prefix: str
    settings: _Settings

    @classmethod
    def of(cls, location: str, settings: _Settings) -> Self:
        """Create the storage for a location."""
        return cls(*bucket_and_key(str(Location.parse(location)), settings.SCHEME), settings)

    @property
    def location(self) -> str:
        return self.address("")

    @property
    def max_key_bytes(self) -> int:
        return MAX_KEY_BYTES

    @property
    def max_key_segments(self) -> int | None:
        return None

    def address(self, key: str) -> str:
        return f"{self.settings.SCHEME}://{self.name}/{self.prefix}{key}"

    def require_time(self, found: datetime | None) -> datetime:
        """Return the server's time, or raise `StoreError` if its responses do not contain it."""
        if found is None:
            raise StoreError(f"{self.location}: the responses of the server have no Date header, which the grace period requires")
        return found

    def require_readable(self, key: str, size_bytes: int) -> None:
        """Check that an object is not too large to be metadata.

        Raises:
            OSError: If the object is larger than `MAX_OBJECT_BYTES`. The error number is `EFBIG`.
        """
        if size_bytes > MAX_OBJECT_BYTES:
            found = f"expected metadata of at most {MAX_OBJECT_BYTES:,} bytes, found {size_bytes:,}"
            raise OSError(errno.EFBIG, found, self.address(key))
