"""Find the locations that a table without readable metadata may have.

Files under these locations are never deleted. All functions accept any input, because the metadata
may be damaged or have an unknown format version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import FormatError, GcError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.paths import scheme_of
from gc_assets.core.untrusted_input import gunzip, parse_json

_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def read_locations(raw: bytes) -> tuple[str, ...]:
    """Return the locations in a metadata file of any format version. Invalid JSON has none."""
    try:
        document: Any = parse_json(gunzip(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except Exception:  # noqa: BLE001 - The metadata is written by other programs.
        return ()
    if not isinstance(document, dict):
        return ()
    properties = document.get("properties")
    paths = [properties.get(name) for name in _PATHS] if isinstance(properties, dict) else []
    return tuple(address for address in (document.get("location"), *paths) if isinstance(address, str) and address)


def default_locations(warehouse: str | None, name: str) -> tuple[str, ...]:
    """Return the locations that Iceberg and Hive would choose for a new table with this name."""
    *namespace, table = name.split(".")
    if warehouse is None or not namespace:
        return ()
    root = warehouse.rstrip("/")
    return tuple(
        dict.fromkeys(f"{root}/{folder}/{table}/" for folder in ("/".join(namespace), ".".join(namespace), f"{'.'.join(namespace)}.db"))
    )


def sibling_locations(name: str, others: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield locations that a table may have, based on other tables of its namespace.

    If the directory of another table has that table's name, the given table may be in a directory
    next to it. `others` contains pairs of a table name and a location.
    """
    namespace, _, table = name.rpartition(".")
    for other, location in others:
        other_namespace, _, other_table = other.rpartition(".")
        parent, _, directory = location.rstrip("/").rpartition("/")
        if other_namespace == namespace and directory == other_table:
            yield f"{parent}/{table}/"


def absolute_locations(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct addresses that can be resolved, each ending in a slash."""
    return tuple(dict.fromkeys(f"{address.rstrip('/')}/" for address in addresses if _is_absolute(address)))


def _is_absolute(address: str) -> bool:
    if not address.startswith("/") and "://" not in address and not address.startswith("file:"):
        return False
    try:
        scheme_of(address)
        KeyResolver([]).resolve(pa.array([address], pa.string()))
    except (FormatError, GcError, ValueError):
        return False
    return True
