"""Locate a repository's storage namespace (its files), and detect overlapping repositories.

No requests are sent to the server.
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
    """Return the location of a namespace, with one trailing `/`.

    The result is the configured location, or else the namespace's own address. The address of a
    local namespace contains a mount point on the server's machine, so it is matched to the storage
    whose last folder has the same name.

    Args:
        lake: Name of the lake for error messages.
        namespace: Address of the namespace on the server.
        configured: `location` in the configuration.
        storages: Locations of the configured storages.

    Raises:
        LakeUnreadable: If a local namespace does not match exactly one storage.
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
    """Verify that the namespace does not overlap with another repository on the server.

    Raises:
        LakeUnreadable: If it overlaps. Files of the other repository would look like orphans.
    """
    others = {name: namespace for name, namespace in namespaces.items() if name != repository}
    if (name := find_overlap(own_namespace, others)) is not None:
        raise LakeUnreadable(
            f"lake {lake}: repository {name} has the storage namespace {others[name]}, which overlaps {own_namespace} of {repository}; "
            "files of one would look like orphans of the other, so nothing is collected. Delete or move one of them."
        )


def find_overlap(own_namespace: str, namespaces: Mapping[str, str]) -> str | None:
    """Return the first repository whose namespace contains the given one or is inside it."""
    own = _normalize(own_namespace)
    for name, namespace in sorted(namespaces.items()):
        pairs = product(own, _normalize(namespace))
        if any(other.startswith(mine) or mine.startswith(other) for mine, other in pairs):
            return name
    return None


def find_incomparable(location: str, namespaces: Mapping[str, str]) -> str | None:
    """Return the first repository whose namespace is outside the bucket of a location.

    Such a namespace cannot be compared with the location, because a configured location may be
    another address of the same data, for example a mount, an access point or a gateway.
    """
    bucket = _bucket_of(location)
    return next((name for name, namespace in sorted(namespaces.items()) if _bucket_of(namespace) != bucket), None)


def _bucket_of(address: str) -> list[str]:
    """Return the scheme and bucket of an address."""
    return ["local"] if address.startswith(_LOCAL) else storage_address(address).partition("?")[0].split("/")[:3]


def _normalize(namespace: str) -> set[str]:
    """Return the locations that a namespace may have, each with one trailing `/`.

    Servers store a namespace as the user entered it. A local block store normalizes the path
    (`block/local/adapter.go`). For a bucket, servers decode the path and remove the query
    (`resolveRelative` in `pkg/block/namespace.go`), whereas a configured `location` is literal.
    """
    if namespace.startswith(_LOCAL):
        return {f"{_LOCAL}{posixpath.normpath('/' + namespace.removeprefix(_LOCAL).lstrip('/')).rstrip('/')}/"}
    literal = storage_address(namespace)
    scheme, separator, path = literal.partition("?")[0].partition("://")
    decoded = f"{scheme.lower()}{separator}{unquote(path, errors='surrogateescape')}"
    return {f"{address.rstrip('/')}/" for address in (literal, decoded)}
