"""Locate a repository's storage namespace and check for overlapping repositories.

The functions are pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final
from urllib.parse import unquote

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.paths import Location
from gc_assets.core.urls import storage_address

_LOCAL: Final = "local://"


def namespace_location(lake: str, namespace: str, configured: str | None, storages: Sequence[str]) -> str:
    """Return the location of a namespace, ending in one `/`.

    This is the configured location or, by default, the location of the namespace. A local namespace
    contains the mount point on the server's machine, so it is matched to the storage with the same
    last folder.

    Args:
        lake: Name of the lake, for error messages.
        namespace: Address of the namespace on the server.
        configured: `location` in the configuration.
        storages: Locations of the configured storages.

    Raises:
        LakeUnreadable: If no storage or several storages match a local namespace.
    """
    if configured is not None:
        return str(Location.parse(configured))
    if not namespace.startswith(_LOCAL):
        return f"{storage_address(namespace).rstrip('/')}/"
    folder = namespace.rstrip("/").rpartition("/")[2]
    matching = [storage for storage in storages if storage.rstrip("/").rpartition("/")[2] == folder]
    if len(matching) != 1:
        raise LakeUnreadable(
            f"lake {lake}: its storage namespace is {namespace}, and {len(matching)} configured storages end in the folder {folder!r}; "
            "expected one. Set `location` of the lake to the location of the namespace."
        )
    return f"{matching[0].rstrip('/')}/"


def refuse_overlap(lake: str, repository: str, own_namespace: str, namespaces: Mapping[str, str]) -> None:
    """Verify that no other repository on the server has an overlapping namespace.

    Raises:
        LakeUnreadable: If a namespace overlaps, because the files of that repository would look
            like orphans.
    """
    others = {name: namespace for name, namespace in namespaces.items() if name != repository}
    if (name := find_overlap(own_namespace, others)) is not None:
        raise LakeUnreadable(
            f"lake {lake}: repository {name} has the storage namespace {others[name]}, which overlaps {own_namespace} of {repository}; "
            "files of one would look like orphans of the other, so nothing is collected. Delete or move one of them."
        )


def find_overlap(own_namespace: str, namespaces: Mapping[str, str]) -> str | None:
    """Return the first repository with a namespace that contains, or is inside, the given one."""
    own = _normalize(own_namespace)
    for name, namespace in sorted(namespaces.items()):
        pairs = product(own, _normalize(namespace))
        if any(other.startswith(mine) or mine.startswith(other) for mine, other in pairs):
            return name
    return None


def find_incomparable(location: str, namespaces: Mapping[str, str]) -> str | None:
    """Return the first repository with a namespace outside the bucket of a location.

    A configured location can be another address of a namespace, such as the address of a mount, an
    access point or a gateway.
    """
    bucket = _bucket_of(location)
    return next((name for name, namespace in sorted(namespaces.items()) if _bucket_of(namespace) != bucket), None)


def _bucket_of(address: str) -> list[str]:
    """Return the scheme and the bucket of an address."""
    return ["local"] if address.startswith(_LOCAL) else storage_address(address).partition("?")[0].split("/")[:3]


def _normalize(namespace: str) -> set[str]:
    """Return the possible locations of a namespace, each ending in one `/`.

    Servers store a namespace as it was entered. A local block store normalizes its path
    (`block/local/adapter.go`). For a bucket, servers decode the path and remove the query
    (`resolveRelative` in `pkg/block/namespace.go`), but a `location` is literal.
    """
    if namespace.startswith(_LOCAL):
        return {f"{_LOCAL}{posixpath.normpath('/' + namespace.removeprefix(_LOCAL).lstrip('/')).rstrip('/')}/"}
    literal = storage_address(namespace)
    scheme, separator, path = literal.partition("?")[0].partition("://")
    decoded = f"{scheme.lower()}{separator}{unquote(path, errors='surrogateescape')}"
    return {f"{address.rstrip('/')}/" for address in (literal, decoded)}
