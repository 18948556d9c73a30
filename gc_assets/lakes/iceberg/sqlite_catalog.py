"""SQL catalog in an SQLite file, which readers in this process never leave locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final, cast
from weakref import WeakSet

from pyiceberg.catalog import PY_CATALOG_IMPL, TYPE, URI
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import make_url

# How long a commit waits for other writers of the file. SQLite's default is 5 s.
_WAIT_SECONDS: Final = 30.0


class _Connection(sqlite3.Connection):
    """SQLite connection that ends its statements when it is closed.

    In Python 3.11 and later, a statement only ends when its cursor is destroyed. If its results
    were not read to the end, it locks the file until then, even if the connection is closed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors = WeakSet[sqlite3.Cursor]()

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Return a new cursor that `close` will close."""
        cursor = super().cursor(factory)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Close all cursors and the connection."""
        for cursor in list(self._cursors):
            cursor.close()
        super().close()


class SqliteCatalog(SqlCatalog):
    """pyiceberg's SQL catalog, but with a new connection for each request.

    A pool would keep connections with open statements, because pyiceberg does not always read
    results to the end. Writers of the file would then fail with `database is locked`.
    """

    _engine: Engine

    @property
    def engine(self) -> Engine:  # pyright: ignore[reportIncompatibleVariableOverride]  # set by SqlCatalog before it connects
        """Engine without a connection pool."""
        return self._engine

    @engine.setter
    def engine(self, pooled: Engine) -> None:
        waits = {} if "timeout" in pooled.url.query else {"timeout": _WAIT_SECONDS}
        self._engine = create_engine(pooled.url, echo=pooled.echo, poolclass=NullPool, connect_args={"factory": _Connection, **waits})


def open_sqlite_catalog(name: str, properties: Mapping[str, str]) -> SqliteCatalog | None:
    """Open a catalog as pyiceberg's `load_catalog` does. Returns None if it is not in SQLite."""
    merged = cast(dict[str, str], merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    uri = merged.get(URI)
    if not isinstance(uri, str) or not uri.startswith("sqlite"):
        return None
    if PY_CATALOG_IMPL in merged or merged.get(TYPE, "sql").lower() != "sql":
        return None
    return SqliteCatalog(name, **merged) if make_url(uri).database not in {None, "", ":memory:"} else None
