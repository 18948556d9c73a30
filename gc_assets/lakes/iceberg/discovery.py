"""Discover Iceberg catalogs: REST servers, sqlite files, and those in pyiceberg's configuration."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from gc_assets.core.paths import scheme_of
from gc_assets.core.regular_files import open_regular
from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget, server_name
from gc_assets.lakes.iceberg.catalog import list_tables
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.nessie_refs import describe_nessie
from gc_assets.lakes.protocol import UnreadableTable

_CONFIGURED: Final = "catalog"
_SUFFIXES: Final = frozenset({".db", ".sqlite", ".sqlite3"})
# Every sqlite file starts with these bytes.
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"


def discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    """Yield the catalogs at a target, as lakes.

    `catalog:NAME` names one in pyiceberg's configuration.
    """
    if scheme_of(target.address) == _CONFIGURED:
        name = target.address.partition(":")[2]
        yield _describe_catalog(name, name, {})
    elif target.is_server:
        _, answer = target.get_json(f"{target.address.rstrip('/')}/v1/config")
        if isinstance(answer, dict) and {"defaults", "overrides"} <= answer.keys():
            found = _describe_catalog(server_name(target.address, "iceberg"), "default", {"type": "rest", "uri": target.address})
            yield replace(found, note=describe_nessie(answer["overrides"]))
    elif (path := target.path) is not None:
        files = sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES) if path.is_dir() else [path]
        for file in files:
            for name in _list_catalogs(file):
                lake = _describe_catalog(name if name != "default" else file.stem, name, {"type": "sql", "uri": f"sqlite:///{file}"})
                yield replace(lake, file=str(file))


def _describe_catalog(name: str, catalog_name: str, catalog: dict[str, str]) -> DiscoveredLake:
    entry: dict[str, Any] = {"kind": "iceberg", "catalog_name": catalog_name, "catalog": catalog}
    lake = IcebergLakeConfig.model_validate({"name": "found", **entry}).with_library_settings()
    properties: dict[str, SecretStr] = dict(lake.catalog)
    tables = [item for item in list_tables(name, catalog_name, properties) if not isinstance(item, UnreadableTable)]
    return DiscoveredLake(name, entry, tuple(sorted({find_folder(item.name, item.metadata_location) for item in tables})))


def find_folder(table: str, metadata_location: str) -> str:
    """Return the folder in which the catalog creates tables, to become the storage's location.

    In the layouts of Iceberg and Hive, each table is in a folder of its namespace, and the returned
    folder is the warehouse. To be safe, a whole bucket or disk is never returned.
    """
    folder = metadata_location.rsplit("/", 3)[0]  # From `<folder>/<table>/metadata/<name>.metadata.json`.
    warehouse, _, name = folder.rpartition("/")
    namespace = table.rpartition(".")[0]
    is_in_namespace = name in {namespace, f"{namespace}.db"}
    return warehouse if is_in_namespace and len([part for part in warehouse.partition("://")[2].split("/") if part]) > 1 else folder


def _list_catalogs(file: Path) -> list[str]:
    """Return the names of the catalogs in a sqlite file. For other files, the list is empty."""
    try:
        with open_regular(file) as opened:
            if opened.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                return []
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return [row[0] for row in database.execute("SELECT DISTINCT catalog_name FROM iceberg_tables ORDER BY 1")]
    except (OSError, sqlite3.Error):  # This is not an Iceberg catalog.
        return []
