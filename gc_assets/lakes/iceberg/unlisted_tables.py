"""Ask a catalog for tables that its list lacks.

A catalog may leave out tables that the user may not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gc_assets.core.errors import LakeUnreadable

if TYPE_CHECKING:
    from gc_assets.lakes.iceberg.catalog import CatalogClient


def find_listed(catalog: CatalogClient, tables: Mapping[str, str]) -> dict[str, str]:
    """Return why tables (uuid to name) may still be in a catalog, by uuid."""
    return dict(_find_listed(catalog, tables))


def _find_listed(catalog: CatalogClient, tables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for uuid, name in sorted(tables.items()):
        if "." not in name:  # pyiceberg cannot load a table without a namespace
            continue
        try:
            found = catalog.load(tuple(name.split(".")))
        except LakeUnreadable as error:
            yield uuid, f"its catalog does not confirm that it does not exist: {error}"
            continue
        if found is not None and found.table_uuid in {None, uuid}:
            yield uuid, f"its catalog still has {name}, but does not list it"
