"""Define how lakes read and change objects. The stores implement these protocols."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol


class Objects(Protocol):
    """Read access to objects.

    Implementations are picklable and thread-safe, so that Spark executors can use them. If an
    object does not exist, methods raise `FileNotFoundError`. All other errors are raised as
    `OSError`.
    """

    def read(self, address: str) -> bytes: ...
    def read_identified(self, address: str) -> tuple[bytes, str]:
        """Return the object's bytes, and its identity (such as an etag) as it appears in listings."""
        ...

    def cached_identity(self, address: str) -> str | None:
        """Return the object's identity, or None if it cannot be determined without a request.

        Also returns None if the object does not exist or cannot be inspected.
        """
        ...

    def identity(self, address: str) -> str | None:
        """Return the object's current identity. The result is None if the object does not exist.

        Raises:
            OSError: If the object cannot be examined.
            StoreError: If a local file cannot be examined, or the scheme is not supported.
        """
        ...

    def size(self, address: str) -> int: ...
    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """List all objects under a prefix recursively.

        Args:
            prefix: The prefix with a trailing `/`. It need not exist.

        Yields:
            Address, size in bytes and modification time of each object.
        """
        ...

    def list_identities(self, prefix: str) -> Iterator[tuple[str, str]]:
        """List the addresses of all objects under a prefix, like `list`, with their identities."""
        ...


class EditableObjects(Objects, Protocol):
    """Write access to the objects of a lake.

    Every change is atomic and conditional, and durable when the method returns. If the condition is
    not met, `ObjectChanged` is raised and the object is not changed.
    """

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        """Return the object's bytes, and the etag that is required to change the object."""
        ...

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the object, on condition that its etag is still `etag`.

        Readers see either the old bytes or the new ones.
        """
        ...

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        """Create an object that does not exist yet.

        Args:
            new_directories: How many missing directories may be created. The number is limited so
                that no directories are created under the mount point of an unmounted disk.

        Raises:
            FileExistsError: If the object already exists, even with the same bytes.
            FileNotFoundError: If more directories are missing.
        """
        ...

    def remove(self, address: str, etag: str) -> None:
        """Remove the object, on condition that its etag is still `etag`."""
        ...
