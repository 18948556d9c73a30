"""Request tables by name that are missing from a catalog's list of tables.

The list may omit tables that the user is not allowed to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Final

from gc_assets.core.errors import LakeUnreadable

if TYPE_CHECKING:
    from pyiceberg.typedef import Identifier

    from gc_assets.lakes.iceberg.catalog import CatalogClient

# Longer names could be split in too many ways, so only some of the identifiers are tried.
_MAX_PARTS: Final = 6


def find_listed(catalog: CatalogClient, tables: Mapping[str, str], *, is_strict: bool = True) -> dict[str, str]:
    """Find tables that the catalog may still contain. Maps their UUIDs to the reasons.

    `tables` maps table UUIDs to names. If the UUID of a table is unknown, its name takes the place
    of the UUID. A listed table with that name counts as another table. If `is_strict` is False,
    namespace properties do not have to be readable, and an object of another format may have the
    name. Once a request times out, no more requests are sent, and the time-out becomes the reason
    for all remaining tables.
    """
    from gc_assets.lakes.iceberg.catalog import CatalogTimedOut  # This import takes half a second.

    hidden: dict[str, str | None] = {}
    found, checked = dict[str, str](), set[str]()
    try:
        for namespace in sorted({name.rpartition(".")[0] for name in tables.values()} - {""}):
            hidden[namespace] = _find_hidden(catalog, namespace, is_strict=is_strict)
        for uuid, name in sorted(tables.items()):
            reason = hidden.get(name.rpartition(".")[0]) or _find_reason(catalog, uuid, name, is_strict=is_strict)
            if reason is not None:
                found[uuid] = reason
            checked.add(uuid)
    except CatalogTimedOut as error:
        found |= dict.fromkeys(tables.keys() - checked, f"its catalog may still contain it: {error}")
    return found


def _find_hidden(catalog: CatalogClient, namespace: str, *, is_strict: bool) -> str | None:
    from gc_assets.lakes.iceberg.catalog import CatalogTimedOut  # This import takes half a second.

    try:
        is_hidden = catalog.hides_namespace(tuple(namespace.split(".")))
    except CatalogTimedOut:
        raise
    except LakeUnreadable as error:
        return f"its catalog may still contain its namespace: {error}" if is_strict else None
    return f"its catalog still has the namespace {namespace}, but does not list it" if is_hidden else None


def _find_reason(catalog: CatalogClient, uuid: str, name: str, *, is_strict: bool) -> str | None:
    from gc_assets.lakes.iceberg.catalog import CatalogTimedOut, InvalidRequest, NotIceberg  # This import takes half a second.

    for number, identifier in enumerate(list_identifiers(name)):
        try:
            found = catalog.load(identifier)
            if found is not None and found.table_uuid not in {None, uuid} and found.table_uuid in _find_namesakes(catalog, name):
                continue
        except CatalogTimedOut:
            raise
        except LakeUnreadable as error:
            if number and isinstance(error, InvalidRequest):
                continue  # This catalog does not allow dots in names.
            if not is_strict and isinstance(error, NotIceberg):
                continue
            return f"its catalog may still contain it: {error}"
        if found is not None and (found.table_uuid in {None, uuid} or uuid == name):
            return f"its catalog still has {name}, but does not list it"
        if found is not None:
            return f"its catalog has another table {name} with uuid {found.table_uuid}, but does not list it"
    return None


def _find_namesakes(catalog: CatalogClient, name: str) -> set[str | None]:
    """Return the UUIDs of listed tables with this name, if the name can be ambiguous."""
    if name.count(".") < 2:
        return set()
    loaded = (catalog.load(identifier) for identifier in catalog.find_identifiers(name))
    return {table.table_uuid for table in loaded if table is not None}


def list_identifiers(name: str) -> Iterator[Identifier]:
    """Yield the identifiers that a table with this name may have, the most likely one first.

    A dotted name consists of the levels of the namespace and the table name, which may contain dots
    themselves. A table without a namespace has no identifiers, because pyiceberg cannot load it.
    """
    parts = name.split(".")
    if len(parts) > _MAX_PARTS:
        yield tuple(parts)
        yield from ((".".join(parts[:at]), ".".join(parts[at:])) for at in range(len(parts) - 1, 0, -1))
        return
    for ends in product((True, False), repeat=len(parts) - 1):
        identifier, first = list[str](), 0
        for at, is_end in enumerate((*ends, True), 1):
            if is_end:
                identifier.append(".".join(parts[first:at]))
                first = at
        if len(identifier) > 1:
            yield tuple(identifier)
