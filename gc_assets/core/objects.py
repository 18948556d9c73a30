"""Protocols to read and change objects by address. Lakes use them and stores implement them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol


class Objects(Protocol):
    """Read access to objects by address, in driver and executors.

    Implementations pickle and are thread-safe. Methods raise `FileNotFoundError` if the object does
    not exist, and `OSError` for all other errors.
    """

    def read(self, address: str) -> bytes: ...
    def read_identified(self, address: str) -> tuple[bytes, str]:
        """Return the bytes of the object, and its identity as a listing of the store shows it."""
        ...

    def cached_identity(self, address: str) -> str | None:
        """Return the identity of the object if the store knows it without a request, otherwise
        None.

        Also returns None if there is no object that can be inspected.
        """
        ...

    def size(self, address: str) -> int: ...
    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Yield every object under a prefix that ends in `/`, recursively.

        Rows are (address, size in bytes, last modified). A prefix without objects yields nothing.
        """
        ...


class EditableObjects(Objects, Protocol):
    """Objects that a lake may change.

    Each change is atomic, durable when the call returns, and conditional. `ObjectChanged` means
    that the condition failed and nothing was changed.
    """

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        """Return the bytes of the object, and the identity for later conditional changes."""
        ...

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replace the bytes of the object if its identity is still `etag`.

        Readers see either the old or the new bytes.
        """
        ...

    def create(self, address: str, content: bytes) -> None:
        """Create an object.

        Raises:
            FileExistsError: If the object exists already, whatever its bytes.
        """
        ...

    def remove(self, address: str, etag: str) -> None:
        """Remove the object if its identity is still `etag`."""
        ...
