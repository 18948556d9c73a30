"""Find the metadata files of Nessie contents, and directories of contents we cannot list."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import JsonValue

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.nessie.models import Content
from gc_assets.lakes.nessie.operations import LISTED, NAMESPACE, TABLE
from gc_assets.lakes.protocol import ContentRoot

# For each content type, the fields that contain addresses (`Content` in Nessie's OpenAPI document).
# Other fields contain text, such as the SQL of a function. For an unknown content type, any field
# except those with text may contain an address.
_ADDRESS_FIELDS: Final = {
    "DELTA_LAKE_TABLE": ("metadataLocationHistory", "checkpointLocationHistory", "lastCheckpoint"),
    "UDF": ("metadataLocation",),
}
_TEXT_FIELDS: Final = ("sqlText", "dialect")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|/")
_LOCAL: Final = re.compile(r"(?:file:(?://(?P<host>[^/]*))?)?(?P<path>/.*)", re.DOTALL)
# Subdirectories of a table or view that contain its metadata.
_METADATA_DIRECTORIES: Final = ("metadata", "_delta_log")


def build_content_roots(puts: Iterable[Content]) -> tuple[ContentRoot, ...]:
    """Return the distinct metadata files of the contents that a commit puts.

    If the files of a content type cannot be listed, its directories are returned instead, so that
    they are protected. An address may be impossible to resolve, and is empty if a table or view has
    no metadata location.
    """
    return tuple({(root.kind, root.address): root for content in puts for root in _roots(content)}.values())


def _roots(content: Content) -> Iterator[ContentRoot]:
    if content.type == NAMESPACE:
        return
    if content.type in LISTED:
        kind = Kind.METADATA_JSON if content.type == TABLE else Kind.VIEW_METADATA
        yield ContentRoot(content.metadata_location or "", kind, is_container=True)
        return
    names = _ADDRESS_FIELDS.get(content.type, content.fields.keys() - set(_TEXT_FIELDS))
    for address in _addresses([value for name, value in content.fields.items() if name in names]):
        folder = _table_folder(address)
        for place in dict.fromkeys((folder, _as_local(folder))):
            yield ContentRoot(place, Kind.UNLISTED_LOCATION, is_container=False, must_exist=False)


def _addresses(value: JsonValue) -> Iterator[str]:
    """Yield every string in a field that looks like an absolute address."""
    if isinstance(value, str) and _ADDRESS.match(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _addresses(item)
    elif isinstance(value, list):
        for item in value:
            yield from _addresses(item)


def _as_local(folder: str) -> str:
    """Remove the host from the address of a local directory, and resolve `..` as most systems do.

    Other addresses are returned unchanged.
    """
    match = _LOCAL.fullmatch(folder)
    if match is None or not (match["host"] or ".." in match["path"].split("/")):
        return folder
    return f"file://{posixpath.normpath(match['path']).rstrip('/')}/"


def _table_folder(address: str) -> str:
    """Return the directory of a table or view, given an address in it.

    If that is a metadata file, it is in a subdirectory such as `metadata/`.
    """
    folder = address.rstrip("/").rpartition("/")[0] if not address.endswith("/") else address.rstrip("/")
    parent, _, name = folder.rpartition("/")
    return (parent if name in _METADATA_DIRECTORIES else folder) + "/"
