"""Finds the objects that a content points at, and the folder of a content whose files cannot be
listed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import JsonValue

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.nessie.models import Content, Key
from gc_assets.lakes.nessie.operations import LISTED, NAMESPACE, TABLE, key_name
from gc_assets.lakes.protocol import ContentRoot

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|/")
# Folders in which formats keep their metadata, one below the place of the table or view.
_METADATA_FOLDERS: Final = ("metadata", "_delta_log")


def roots_of(lake: str, commit: str, puts: Iterable[tuple[Key, Content]]) -> tuple[ContentRoot, ...]:
    """Returns the metadata that the puts of a commit point at, each file once. For types whose
    files cannot be listed it returns the folders to leave alone.

    Raises `LakeUnreadable` for a table or view without a metadata location.
    """
    roots: dict[tuple[str, str], ContentRoot] = {}
    for key, content in puts:
        for root in _roots(lake, commit, key_name(key.elements), content):
            roots[root.kind, root.address] = root
    return tuple(roots.values())


def _roots(lake: str, commit: str, key: str, content: Content) -> Iterator[ContentRoot]:
    if content.type == NAMESPACE:
        return
    if content.type in LISTED:
        if not content.metadata_location:
            raise LakeUnreadable(
                f"lake {lake}: commit {commit} puts {content.type} {key} without a metadata location, so its files cannot be known; "
                "commit the table anew, or drop it"
            )
        kind = Kind.METADATA_JSON if content.type == TABLE else Kind.VIEW_METADATA
        yield ContentRoot(content.metadata_location, kind, is_container=True)
        return
    for address in _addresses(content.fields):
        yield ContentRoot(_place(address), Kind.UNLISTED_LOCATION, is_container=False, must_exist=False)


def _addresses(value: JsonValue) -> Iterator[str]:
    """Yields every text in a content that reads as an absolute address."""
    if isinstance(value, str) and _ADDRESS.match(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _addresses(item)
    elif isinstance(value, list):
        for item in value:
            yield from _addresses(item)


def _place(address: str) -> str:
    """The folder that holds all of it: of a metadata file the one above the metadata folder."""
    folder = address.rstrip("/").rpartition("/")[0] if not address.endswith("/") else address.rstrip("/")
    above, _, name = folder.rpartition("/")
    return (above if name in _METADATA_FOLDERS else folder) + "/"
