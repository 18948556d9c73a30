"""Decides where a repository's storage namespace lies for us, and whether another repository lies
there too. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.paths import Location

_LOCAL: Final = "local://"


def namespace_location(lake: str, namespace: str, configured: str | None, storages: Sequence[str]) -> str:
    """Returns the location of a namespace, ending in one `/`: the configured one, else the storage
    that the server's word for it names.

    `local://<folder>` and full local paths are matched to the one storage whose last folder has
    that name, because a local block store is mounted wherever its server runs. Raises
    `LakeUnreadable` where no storage or several match.
    """
    if configured is not None:
        return str(Location.parse(configured))
    if not namespace.startswith(_LOCAL):
        return f"{namespace.rstrip('/')}/"
    folder = namespace.rstrip("/").rpartition("/")[2]
    matching = [storage for storage in storages if storage.rstrip("/").rpartition("/")[2] == folder]
    if len(matching) != 1:
        raise LakeUnreadable(
            f"lake {lake}: its storage namespace is {namespace}, and {len(matching)} configured storages end in the folder {folder!r}; "
            "expected one. Set `location` of the lake to where the namespace lies here."
        )
    return f"{matching[0].rstrip('/')}/"


def overlapping_repositories(lake: str, repository: str, own_namespace: str, namespaces: Mapping[str, str]) -> None:
    """Raises `LakeUnreadable` where another repository of the server lies on, in or around the
    namespace. Its files would look dead.
    """
    own = _one_spelling(own_namespace)
    for name, namespace in sorted(namespaces.items()):
        other = _one_spelling(namespace)
        if name != repository and (other.startswith(own) or own.startswith(other)):
            raise LakeUnreadable(
                f"lake {lake}: repository {name} has the storage namespace {namespace}, which overlaps {own_namespace} of {repository}; "
                "the files of one would look dead to the other, so nothing is collected. Delete one of them, or move it."
            )


def _one_spelling(namespace: str) -> str:
    """Returns the namespace, ending in one `/`. Servers keep it as it was typed; a local block
    store cleans its path (`block/local/adapter.go`).
    """
    if not namespace.startswith(_LOCAL):
        return f"{namespace.rstrip('/')}/"
    return f"{_LOCAL}{posixpath.normpath('/' + namespace.removeprefix(_LOCAL).lstrip('/')).rstrip('/')}/"
