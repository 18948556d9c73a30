"""Skip the waits for a disk, which no test needs: tests kill processes, but never cut the power."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from sqlalchemy import Engine, event


def skip_syncs() -> None:
    """Let `os.fsync` and the commits of SQLite in this process return before the disk has the data.

    A sync takes about a millisecond, and a run of a few files makes a hundred of them.
    """
    os.fsync = _skip_sync
    event.listen(Engine, "connect", _set_asynchronous)


def _skip_sync(descriptor: int) -> None:
    os.fstat(descriptor)  # a closed file is an error as before


def _set_asynchronous(connection: Any, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
