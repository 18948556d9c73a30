"""Find content metadata files, and directories of unsupported contents."""

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
# Directories of metadata in the location of a table or view.
_METADATA_DIRECTORIES: Final = ("metadata", "_delta_log")


def build_content_roots(lake: str, commit: str, puts: Iterable[tuple[Key, Content]]) -> tuple[ContentRoot, ...]:
    """Return the distinct metadata files of the contents that a commit puts.

    For content types whose files cannot be listed, return the directories to protect.

    Raises:
        LakeUnreadable: If a table or view has no metadata location.
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
                f"lake {lake}: commit {commit} puts {content.type} {key} without a metadata location, so its files are unknown; "
                "commit the table again, or drop it"
            )
        kind = Kind.METADATA_JSON if content.type == TABLE else Kind.VIEW_METADATA
        yield ContentRoot(content.metadata_location, kind, is_container=True)
        return
    for address in _addresses(content.fields):
        yield ContentRoot(_table_folder(address), Kind.UNLISTED_LOCATION, is_container=False, must_exist=False)


def _addresses(value: JsonValue) -> Iterator[str]:
    """Yield every string in a content that looks like an absolute address."""
    if isinstance(value, str) and _ADDRESS.match(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _addresses(item)
    elif isinstance(value, list):
        for item in value:
            yield from _addresses(item)


def _table_folder(address: str) -> str:
    """Return the directory of a content. For a metadata file, it is the parent of `metadata/`."""
    folder = address.rstrip("/").rpartition("/")[0] if not address.endswith("/") else address.rstrip("/")
    parent, _, name = folder.rpartition("/")
    return (parent if name in _METADATA_DIRECTORIES else folder) + "/"
