"""Count the requests to the database of a catalog and to a store.

This is a separate module because pyiceberg imports the FileIO by its module path: all programs must
share one counter.
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


def count(kind: str) -> None:
    with _LOCK:
        REQUESTS[kind] += 1


class CountingFile(PyArrowFile):
    """Counts the calls that would be requests to an object store."""

    def open(self, seekable: bool = True) -> Any:
        count("read")
        return super().open(seekable)

    def create(self, overwrite: bool = False) -> Any:
        count("written")
        return super().create(overwrite)

    def exists(self) -> bool:
        count("head")
        return super().exists()


class CountingFileIO(PyArrowFileIO):
    """pyiceberg's own FileIO with counters."""

    def new_input(self, location: str) -> CountingFile:
        return self._wrap(super().new_input(location))

    def new_output(self, location: str) -> CountingFile:
        return self._wrap(super().new_output(location))

    def _wrap(self, file: PyArrowFile) -> CountingFile:
        return CountingFile(location=file.location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)


class CountingObjects(LocalObjects):
    def read_identified(self, address: str) -> tuple[bytes, str]:
        count("read")
        return super().read_identified(address)

    def size(self, address: str) -> int:
        count("head")
        return super().size(address)


@contextmanager
def count_statements() -> Iterator[None]:
    def statement(*_: Any) -> None:
        count("statements")

    event.listen(Engine, "before_cursor_execute", statement)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
