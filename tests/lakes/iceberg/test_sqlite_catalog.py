"""Readers of an SQL catalog in an SQLite file leave no lock behind."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.sqlite_catalog import SqliteCatalog, open_sqlite_catalog
from tests.lakes.iceberg.builder import LakeBuilder

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeBuilder:
    lake = LakeBuilder(tmp_path_factory.mktemp("sqlite"))
    lake.table("sales.orders", NOW)
    lake.table("sales.returns", NOW)
    lake.catalog.engine.dispose()
    return lake


def update_all(lake: LakeBuilder) -> int:
    """Write to the catalog without waiting for a lock, and return the number of tables."""
    with closing(sqlite3.connect(lake.root / "catalog.db", timeout=0)) as other, other:
        return other.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL").rowcount


@pytest.fixture
def keep_results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep all results, as a reference cycle does until the garbage collection of Python."""
    kept, execute = list[Any](), Session.execute

    def keep(*args: Any, **options: Any) -> Any:
        kept.append(execute(*args, **options))
        return kept[-1]

    monkeypatch.setattr(Session, "execute", keep)
    return kept


READS: dict[str, Callable[[CatalogClient], Any]] = {
    "check": CatalogClient.check_access,
    "pointers": lambda client: list(client.list_pointers()),
    "views": lambda client: list(client.list_views()),
    "identifiers": CatalogClient.list_identifiers,
    "table": lambda client: client.load(("sales", "orders")),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_partly_read_result_does_not_lock_catalog(read: Callable[[CatalogClient], Any], lake: LakeBuilder, keep_results: list[Any]) -> None:
    client = CatalogClient("sales", lake.catalog_name, lake.config().catalog)
    read(client)
    assert keep_results
    assert update_all(lake) == 2


def test_closing_connection_releases_lock_of_open_statements(lake: LakeBuilder) -> None:
    catalog = open_sqlite_catalog(lake.catalog_name, lake.properties)
    assert catalog is not None
    with catalog.engine.connect() as connection:
        result = connection.execute(text("SELECT table_name FROM iceberg_tables"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            update_all(lake)
    assert update_all(lake) == 2
    del result


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"uri": "http://localhost/"},
        {"uri": "sqlite://"},
        {"uri": "sqlite:///:memory:"},
        {"type": "rest", "uri": "sqlite:///a.db"},
        {"py-catalog-impl": "own.Catalog", "uri": "sqlite:///a.db"},
    ],
)
def test_other_catalogs_are_opened_by_pyiceberg(properties: dict[str, str]) -> None:
    assert open_sqlite_catalog("other", properties) is None


def test_timeout_in_the_uri_is_kept(tmp_path: Path) -> None:
    catalog = SqliteCatalog("a", uri=f"sqlite:///{tmp_path}/a.db?timeout=1", warehouse=str(tmp_path))
    with catalog.engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 1000
