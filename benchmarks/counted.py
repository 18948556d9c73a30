"""Requests to a catalog's database and to a store, counted at the edges, whoever makes them.

A module of its own because pyiceberg loads the FileIO by its name: there must be one counter, whatever the program is called.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from sqlalchemy import event
from sqlalchemy.engine import Engine

from gc_assets.stores.local.objects import LocalObjects

REQUESTS: Counter[str] = Counter()
_LOCK = threading.Lock()


def count(what: str) -> None:
    with _LOCK:
        REQUESTS[what] += 1


class CountedFile(PyArrowFile):
    """Counts what would be a request to an object store."""

    def open(self, seekable: bool = True) -> Any:
        count("read")
        return super().open(seekable)

    def create(self, overwrite: bool = False) -> Any:
        count("written")
        return super().create(overwrite)

    def exists(self) -> bool:
        count("asked")
        return super().exists()


class CountedFileIO(PyArrowFileIO):
    """pyiceberg's own FileIO, counted; catalogs load it by its name."""

    def new_input(self, location: str) -> CountedFile:
        return self._counted(super().new_input(location))

    def new_output(self, location: str) -> CountedFile:
        return self._counted(super().new_output(location))

    def _counted(self, file: PyArrowFile) -> CountedFile:
        return CountedFile(location=file.location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)


class CountedObjects(LocalObjects):
    def read_identified(self, address: str) -> tuple[bytes, str]:
        count("read")
        return super().read_identified(address)

    def size(self, address: str) -> int:
        count("asked")
        return super().size(address)


@contextmanager
def counted_statements() -> Iterator[None]:
    def statement(*_: Any) -> None:
        count("statements")

    event.listen(Engine, "before_cursor_execute", statement)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
