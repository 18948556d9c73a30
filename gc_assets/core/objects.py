"""Whole objects by their addresses: what lakes ask for, and every store answers.

Pure: the two protocols, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol


class Objects(Protocol):
    """Reads whole objects by address, in driver and executors.

    Implementations pickle and are safe to use from threads. Raises `FileNotFoundError` where there
    is no such object and `OSError` for everything else.
    """

    def read(self, address: str) -> bytes: ...
    def read_identified(self, address: str) -> tuple[bytes, str]:
        """Returns the object's bytes, and its identity as a listing of its store shows it."""
        ...

    def identity_at_hand(self, address: str) -> str | None:
        """Returns the identity of the object that stands there, where the store tells it without a
        request. Null where it does not, and where nothing stands there that can be looked at.
        """
        ...

    def size(self, address: str) -> int: ...
    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Returns every object below a prefix that ends in `/`, recursively. Rows are (address,
        size in bytes, last modified). A prefix without objects is empty.
        """
        ...


class EditableObjects(Objects, Protocol):
    """Objects that a lake may change.

    Each change is atomic, durable when the call returns, and conditional. Besides the errors of
    `Objects`, `ObjectChanged` says that the condition did not hold, so nothing was changed.
    """

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        """Returns the object's bytes, and the identity on which a later change is conditional."""
        ...

    def replace(self, address: str, content: bytes, etag: str) -> None:
        """Replaces the object's bytes, if it is still the one of that identity. Readers meet the
        old bytes or the new ones, nothing else.
        """
        ...

    def create(self, address: str, content: bytes) -> None:
        """Creates an object of these bytes. Raises `FileExistsError` where there was one already,
        whatever its bytes.
        """
        ...

    def remove(self, address: str, etag: str) -> None:
        """Removes the object, if it is still the one of that identity."""
        ...
