"""Protocols for reading and changing objects, implemented by stores and used by lakes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol


class Objects(Protocol):
    """Read access to objects in driver and executors.

    Implementations are picklable and thread-safe. Methods raise `FileNotFoundError` if the object
    does not exist, and `OSError` for all other errors.
    """

    def read(self, address: str) -> bytes: ...
    def read_identified(self, address: str) -> tuple[bytes, str]:
        """Return the object's bytes and its identity as shown in store listings."""
        ...

    def cached_identity(self, address: str) -> str | None:
        """Return the object's identity if it is available without a request, otherwise None.

        Also returns None if the object does not exist or cannot be inspected.
        """
        ...

    def size(self, address: str) -> int: ...
    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Recursively yield all objects under a prefix ending in `/`.

        Rows are (address, size in bytes, last modified). A prefix without objects yields nothing.
        """
        ...


class EditableObjects(Objects, Protocol):
    """Write access to the objects of a lake.

    Each change is atomic, conditional, and durable when the call returns. `ObjectChanged` means
    that the condition failed and nothing was changed.
    """

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        """Return the object's bytes, and its etag for later conditional changes."""
        ...

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the object if its etag is unchanged.

        Readers see either the old or the new bytes.
        """
        ...

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        """Create an object.

        Args:
            new_directories: Maximum number of missing directories to create. A larger number would
                create a directory tree under the mount point of an unmounted disk.

        Raises:
            FileExistsError: If the object already exists, even with the same bytes.
            FileNotFoundError: If more directories are missing.
        """
        ...

    def remove(self, address: str, etag: str) -> None:
        """Remove the object if its etag is unchanged."""
        ...
